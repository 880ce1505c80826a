"""The shape of a running flow: its partitions and their copies, which feeds which, and where they begin."""
