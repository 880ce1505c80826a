"""The demonstration: network sessions behind a firewall, two machines lost while they are being watched."""
