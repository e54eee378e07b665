"""The routing backends by name; a class is imported when it is asked for."""

from podwire.routing.backend import Backend
from podwire.runtime.registry import Registry

BACKENDS: Registry[type[Backend]] = Registry(
    "routing backend",
    "routing.backend",
    {
        "hostgw": "podwire.routing.backends.hostgw.backend:HostGateway",
        "vxlan": "podwire.routing.backends.vxlan.backend:VxlanTunnel",
    },
)
DEFAULT = "vxlan"
PLAIN = "hostgw"
"""The backend that every kernel can run and every node receives: for peers of the same subnet where direct routing is
configured, and in place of a backend that the kernel lacks."""
