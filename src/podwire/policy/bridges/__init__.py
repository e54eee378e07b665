"""Policies for pods that are ports of a bridge: source checks per port, and isolation without br_netfilter."""
