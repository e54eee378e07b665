"""The backend ``bridge``."""
