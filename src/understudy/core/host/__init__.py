"""One process's share of a flow: the copies it hosts, and their edges to all others."""
