"""An edge: one producer partition and one consumer partition, each with its copies."""
