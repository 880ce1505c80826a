"""Known ways to get the protocol wrong, each built into the real machines by a patch.

One file for each part of `core` that is broken: `edges`, `replicas`, `hosts`, `controllers`.
"""
