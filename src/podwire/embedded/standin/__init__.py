"""The server that stands in for an image without a local command."""
