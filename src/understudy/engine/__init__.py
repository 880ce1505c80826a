"""One fragment, and a whole flow, on Spark Structured Streaming."""
