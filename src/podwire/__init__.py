"""podwire: the network of a Kubernetes cluster."""
