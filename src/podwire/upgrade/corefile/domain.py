"""The domain of a cluster by its Corefile: the first zone of the plugin kubernetes. Pure."""

from podwire.errors import ConfigError
from podwire.upgrade.corefile.document import parse_document

DEFAULT_DOMAIN = "cluster.local"
_REVERSE = ".arpa"


def domain_of(corefile: str) -> str:
    """The domain, without a dot at its end; Kubernetes' default where the Corefile names none or cannot be read."""
    try:
        document = parse_document(corefile, "Corefile")
    except ConfigError:
        return DEFAULT_DOMAIN
    for server in document.items:
        for plugin in server.block:
            if plugin.name == "kubernetes":
                zones = (zone.strip('"').rstrip(".") for zone in plugin.arguments)
                return next((zone for zone in zones if zone and not zone.endswith(_REVERSE)), DEFAULT_DOMAIN)
    return DEFAULT_DOMAIN
