"""CNI plugin: protocol, server, address management."""
