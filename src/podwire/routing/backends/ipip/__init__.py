"""IP packets inside IPv4 packets."""
