"""The backend ``ipvlan``."""
