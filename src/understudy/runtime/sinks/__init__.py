"""Egress's last step: rows to where the user wants them, in order and once."""
