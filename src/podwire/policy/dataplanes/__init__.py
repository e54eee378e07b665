"""One module per policy data plane."""
