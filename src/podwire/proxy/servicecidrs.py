"""The address ranges of Services, from the configuration or from the cluster's ServiceCIDR objects (pure)."""

from collections.abc import Callable, Iterable
from ipaddress import ip_network

from podwire.model.service import ServiceCidr


def cidrs_of(objects: Iterable[ServiceCidr]) -> tuple[str, ...]:
    """The ranges of ServiceCIDR objects, each once, sorted; malformed ranges are left out."""
    texts = (text for service_cidr in objects for text in service_cidr.spec.cidrs)
    ranges: set[str] = set()
    for text in texts:
        try:
            ranges.add(str(ip_network(text)))
        except ValueError:
            continue
    return tuple(sorted(ranges))


class ServiceCidrs:
    """The ranges in use: the configured ones, or else those of the objects that ``objects`` returns."""

    def __init__(self, configured: tuple[str, ...], objects: Callable[[], Iterable[ServiceCidr]]) -> None:
        self._configured = configured
        self._objects = objects

    @property
    def ranges(self) -> tuple[str, ...]:
        """The ranges as they are now."""
        return self._configured or cidrs_of(self._objects())
