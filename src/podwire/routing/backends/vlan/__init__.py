"""The backend ``vlan``."""
