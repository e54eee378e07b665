"""The backend ``hostgw``: plain routes through the peers."""
