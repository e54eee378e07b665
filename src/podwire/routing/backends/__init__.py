"""One folder per routing backend; ``routing.registry`` has one line for each."""
