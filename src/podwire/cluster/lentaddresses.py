"""The addresses of a node's ranges that other nodes use, from what these announce (pure).

A node that borrows an address announces it as a range of one address. To the node whose range the address is in, it is
an address of another node: its policies, which drop packets to addresses that no pod of the node has, leave it out.
Cost: nothing where no node borrows.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from podwire.model.node import POD_BLOCKS, Node

Network = IPv4Network | IPv6Network


class LentAddresses:
    """The addresses that each node of the cluster has borrowed."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Network, ...]] = {}

    def follow(self, name: str, node: Node | None) -> bool:
        """Sets a node, None: it was deleted; whether it has other borrowed addresses than before."""
        before, now = self._of.get(name, ()), _singles(node)
        self._of.pop(name, None)
        if now:
            self._of[name] = now
        return now != before

    def outside(self, name: str, ranges: Iterable[Network]) -> tuple[Network, ...]:
        """The ranges of a node without the addresses that other nodes have borrowed."""
        result = list(ranges)
        for borrower, singles in self._of.items():
            for single in singles if borrower != name else ():
                result = [remainder for network in result for remainder in _without(network, single)]
        return tuple(result)


def _singles(node: Node | None) -> tuple[Network, ...]:
    if node is None or POD_BLOCKS not in node.metadata.annotations:
        return ()
    return tuple(network for network in node.pod_networks if network.prefixlen == network.max_prefixlen)


def _without(network: Network, single: Network) -> list[Network]:
    if isinstance(network, IPv4Network) and isinstance(single, IPv4Network) and single.subnet_of(network):
        return sorted(network.address_exclude(single))
    if isinstance(network, IPv6Network) and isinstance(single, IPv6Network) and single.subnet_of(network):
        return sorted(network.address_exclude(single))
    return [network]
