"""The routing backends by name; a class is imported when it is asked for."""

from podwire.dataplane import registry
from podwire.errors import ConfigError
from podwire.routing.backend import Backend, Options

BACKENDS = {
    "hostgw": "podwire.routing.backends.hostgw:HostGateway",
    "vxlan": "podwire.routing.backends.vxlan:VxlanTunnel",
}
FALLBACK = "hostgw"
"""The backend that every kernel can do; nodes of other subnets are out of its reach."""


def load(name: str, options: Options) -> Backend:
    """The backend of a name.

    Raises: ConfigError when there is none of that name.
    """
    if name not in BACKENDS:
        raise ConfigError(
            "configuration", "routing.backend", f"{name!r} is not a routing backend; there are {', '.join(BACKENDS)}"
        )
    backend: Backend = registry.load(BACKENDS[name])(options)
    return backend
