"""The backend ``bgp``: plain routes, which BIRD exchanges with routers and with other nodes."""
