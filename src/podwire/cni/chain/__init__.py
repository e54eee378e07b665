"""What a CNI chain adds to a pod's wiring."""
