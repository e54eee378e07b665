"""Where the pods of the whole cluster have their addresses from, kept current as nodes come and go (pure)."""

from collections.abc import Iterable
from ipaddress import collapse_addresses, ip_address, ip_network

from podwire.model.node import Node


class ClusterRanges:
    """The ranges of all nodes; where nodes have none (another IPAM), those that were configured.

    A configured range in which a node has its own address is left out then: addresses in it are not pods' alone. A
    node whose ranges did not change costs nothing but a look-up.
    """

    def __init__(self, configured: tuple[str, ...] = ()) -> None:
        self._configured = configured
        self._of: dict[str, tuple[str, ...]] = {}
        self._at: dict[str, tuple[str, ...]] = {}

    def configure(self, ranges: tuple[str, ...]) -> bool:
        """Takes over the configured ranges; whether :attr:`ranges` may be other ones now."""
        changed, self._configured = ranges != self._configured, ranges
        return changed

    def follow(self, name: str, node: Node | None) -> bool:
        """Takes over a node (None: it is gone); whether :attr:`ranges` may be other ones now."""
        ranges: tuple[str, ...] = ()
        addresses: tuple[str, ...] = ()
        if node is not None:
            ranges = node.spec.pod_cidrs or tuple(filter(None, (node.spec.pod_cidr,)))
            addresses = node.internal_ips
        if (self._of.get(name, ()), self._at.get(name, ())) == (ranges, addresses):
            return False
        for known, value in ((self._of, ranges), (self._at, addresses)):
            known.pop(name, None)
            if value:
                known[name] = value
        return True

    @property
    def ranges(self) -> tuple[str, ...]:
        """Disjoint, IPv4 first; what is no range is left out."""
        given = [text for texts in self._of.values() for text in texts]
        return _disjoint(given or [text for text in self._configured if not self._holds_a_node(text)])

    def _holds_a_node(self, text: str) -> bool:
        try:
            network = ip_network(text, strict=False)
            return any(ip_address(address) in network for addresses in self._at.values() for address in addresses)
        except ValueError:
            return False


def _disjoint(texts: Iterable[str]) -> tuple[str, ...]:
    four, six = [], []
    for text in texts:
        try:
            network = ip_network(text, strict=False)
        except ValueError:
            continue
        if network.version == 4:
            four.append(network)
        else:
            six.append(network)
    return tuple(str(each) for each in (*collapse_addresses(four), *collapse_addresses(six)))
