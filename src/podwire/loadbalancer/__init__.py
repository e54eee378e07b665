"""Addresses of load balancers: allocation (pure), announcement by ARP and NDP and by BGP, protection."""
