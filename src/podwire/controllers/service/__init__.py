"""Services of type LoadBalancer: finalizer, status and Events; load balancers allocate the addresses."""
