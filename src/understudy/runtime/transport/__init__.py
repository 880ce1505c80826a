"""Messages between processes, over Arrow Flight."""
