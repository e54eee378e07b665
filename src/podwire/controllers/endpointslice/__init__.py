"""EndpointSlices (and the older Endpoints) of Services with a selector."""
