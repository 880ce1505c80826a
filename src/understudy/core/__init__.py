"""The protocols, as pure machines: no clock, no I/O, no threads, no Spark, no randomness."""
