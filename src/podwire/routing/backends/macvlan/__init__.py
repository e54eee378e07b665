"""The backend ``macvlan``."""
