"""Processes: node, gateway, controller, and what they need to talk to each other and to the outside."""
