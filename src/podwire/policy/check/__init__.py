"""What is probably not meant in policies: ``podwire policy check``."""
