"""Numbered flows, which count the messages that a change of the network costs."""
