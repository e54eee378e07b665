"""Addresses of Services of type LoadBalancer, from IPAddressPools."""
