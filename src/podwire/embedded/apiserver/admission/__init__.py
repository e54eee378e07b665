"""Admission: what changes, completes or refuses a write between its authorization and its storing."""
