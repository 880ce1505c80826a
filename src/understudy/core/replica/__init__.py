"""One copy of a partition: consumer below, producer above, and how its state moves."""
