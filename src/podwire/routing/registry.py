"""The routing backends by name; a class is imported when it is asked for."""

from podwire.routing.backend import Backend, Options
from podwire.runtime.registry import Registry

BACKENDS: Registry[type[Backend]] = Registry(
    "routing backend",
    "routing.backend",
    {
        "hostgw": "podwire.routing.backends.hostgw:HostGateway",
        "vxlan": "podwire.routing.backends.vxlan:VxlanTunnel",
    },
)
FALLBACK = "hostgw"
"""The backend that every kernel can do; nodes of other subnets are out of its reach."""


def load(name: str, options: Options) -> Backend:
    """The backend of a name.

    Raises: ConfigError when there is none of that name.
    """
    return BACKENDS.load(name)(options)
