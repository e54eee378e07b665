"""Explains what happens to a connection: the question, the views of nodes, one explainer for each part."""
