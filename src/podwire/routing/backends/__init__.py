"""One module per routing backend."""
