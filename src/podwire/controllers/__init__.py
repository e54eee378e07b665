"""Controllers of the cluster: node CIDRs, EndpointSlices, Services."""
