"""One module per Service data plane."""
