"""The history of a run: its records, how they are written and read, and the judge of them."""
