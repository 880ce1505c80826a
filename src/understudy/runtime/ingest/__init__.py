"""Ingest: from rows that arrive to sealed buckets that survive a crash."""
