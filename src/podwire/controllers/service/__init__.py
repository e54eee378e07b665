"""Services of type LoadBalancer: finalizer, status and Events, for whatever gives them their addresses."""
