"""Explains what becomes of a connection: the question, the views of nodes, one explainer for each part."""
