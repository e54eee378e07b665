"""What one kernel should hold, as values with a text form."""
