"""The topology lab: what is wrong, on purpose, with the links between the stations of a local cluster."""
