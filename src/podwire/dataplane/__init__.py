"""What the data planes of Services and policies share."""
