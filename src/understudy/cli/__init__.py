"""The `understudy` command."""
