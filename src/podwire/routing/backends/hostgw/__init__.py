"""The backend ``hostgw``: plain routes by way of the peers."""
