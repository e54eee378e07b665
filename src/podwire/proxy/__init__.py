"""Services: from Service and EndpointSlice objects to what the kernel holds."""
