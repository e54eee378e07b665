"""The peers of a tunnel by endpoint and by network (pure)."""

import ipaddress
from collections.abc import Iterable, Iterator

from podwire.state.udptunnel import UdpPeer, endpoint_address

Endpoint = tuple[str, int]
_REMEMBERED = 1 << 16
"""Number of addresses whose peer is remembered; beyond, all are forgotten."""


class PeerTable:
    """The peers, and the peer to which an address belongs: that of the longest network with the address."""

    def __init__(self, peers: Iterable[UdpPeer] = ()) -> None:
        self.endpoints: dict[Endpoint, Endpoint] = {}
        """Each endpoint by itself, so that one object stands for a peer."""
        self._networks: dict[tuple[int, int], dict[int, Endpoint]] = {}
        self._remembered: dict[bytes, Endpoint | None] = {}
        self.change(new=peers)

    def change(self, gone: Iterable[UdpPeer] = (), new: Iterable[UdpPeer] = ()) -> None:
        """Removes peers, and adds others; costs 10 us for each of them."""
        for peer in gone:
            del self.endpoints[endpoint_address(peer.endpoint)]
            for kind, number in _numbers(peer):
                del self._networks[kind][number]
        for peer in new:
            endpoint = endpoint_address(peer.endpoint)
            self.endpoints[endpoint] = endpoint
            for kind, number in _numbers(peer):
                self._networks.setdefault(kind, {})[number] = endpoint
        self._networks = dict(sorted(self._networks.items()))
        self._remembered.clear()

    def owner(self, address: bytes) -> Endpoint | None:
        """The endpoint of the peer of an address of 4 or 16 bytes; None for an address of no peer."""
        try:
            return self._remembered[address]
        except KeyError:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            endpoint = self._remembered[address] = self._search(address)
            return endpoint

    def _search(self, address: bytes) -> Endpoint | None:
        number = int.from_bytes(address, "big")
        for (bits, shift), networks in self._networks.items():
            if bits == len(address) * 8 and number >> shift in networks:
                return networks[number >> shift]
        return None


def _numbers(peer: UdpPeer) -> Iterator[tuple[tuple[int, int], int]]:
    """For each network the bits of an address and of the host part, and the prefix as a number."""
    for network in map(ipaddress.ip_network, peer.networks):
        shift = network.max_prefixlen - network.prefixlen
        yield (network.max_prefixlen, shift), int(network.network_address) >> shift
