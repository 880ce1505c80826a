"""Fragments, and the flow that they make, on Spark Structured Streaming."""
