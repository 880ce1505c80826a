"""A node: one process with its own Spark application, hosting copies of partitions."""
