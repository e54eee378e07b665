"""The stand-in server, which runs for images that no local command replaces."""
