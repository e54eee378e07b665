"""The backend ``none``: no routes between nodes."""
