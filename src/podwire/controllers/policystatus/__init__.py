"""Annotates each policy with the number of nodes on which it is in force."""
