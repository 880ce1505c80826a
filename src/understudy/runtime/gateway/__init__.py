"""The gateway: where rows come in and results go out."""
