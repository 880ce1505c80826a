"""Understudy's own kinds of sinks: rows to where the user wants them, in order and once."""
