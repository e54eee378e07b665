"""The plan of an upgrade: components, findings, and steps in their order."""
