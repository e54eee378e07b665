"""The peers of a tunnel by endpoint and by network (pure)."""

import ipaddress
from collections.abc import Iterable

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
        for peer in peers:
            endpoint = endpoint_address(peer.endpoint)
            self.endpoints[endpoint] = endpoint
            for network in map(ipaddress.ip_network, peer.networks):
                shift = network.max_prefixlen - network.prefixlen
                shifted = int(network.network_address) >> shift
                self._networks.setdefault((network.max_prefixlen, shift), {})[shifted] = endpoint
        self._networks = dict(sorted(self._networks.items()))

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
