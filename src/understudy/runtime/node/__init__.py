"""A node: one process with its own Spark application, hosting a replica."""
