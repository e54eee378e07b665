"""Which link each pod of a node has, from the kernel's tables, where other CNI plugins wired the pods (pure).

The node's routing table says which device leads to a pod's address: a device of the pod's own, as ``ptp``, plain
routes and most routing plugins make it, or a bridge, as ``bridge`` and Flannel do. On a bridge the pod's port is the
veth whose other end has the address. If two ports have the address, the port that had it before is chosen, else the
port with fewer addresses of other pods: only root of the node can add routes, but a process with enough rights in a
pod's namespace can add addresses there.
"""

from collections.abc import Collection, Mapping
from ipaddress import ip_address, ip_network

import msgspec

from podwire.state.network import NetworkState

_MAIN = 254


class PodLink(msgspec.Struct, frozen=True):
    """The link of a pod: its own device, or a bridge and the pod's port of it."""

    device: str
    port: str = ""


class LinkTable:
    """Which device leads to an address: routes without a gateway, and the networks of the node's own addresses."""

    def __init__(self, state: NetworkState) -> None:
        links: dict[tuple[int, int, int], str] = {}
        for route in state.routes:
            direct = not route.via or route.dst == f"{route.via}/32"  # Podwire's own bridge names pods as next hops.
            if route.kind == "unicast" and direct and route.link and route.table == _MAIN:
                links.setdefault(_key(route.dst), route.link)
        for address in state.addresses:
            links.setdefault(_key(address.cidr), address.link)
        self._links = links
        self._lengths = sorted({(version, length) for version, length, _ in links}, reverse=True)

    def device(self, address: str) -> str:
        """The device of the longest prefix that contains an address; empty when there is none."""
        value = ip_address(address)
        for version, length in self._lengths:
            if version == value.version:
                shift = value.max_prefixlen - length
                link = self._links.get((version, length, int(value) >> shift))
                if link is not None:
                    return link
        return ""


def _key(cidr: str) -> tuple[int, int, int]:
    network = ip_network("::/0" if cidr == "default" else cidr, strict=False)
    return network.version, network.prefixlen, int(network.network_address) >> network.max_prefixlen - network.prefixlen


def locate(
    pods: Mapping[str, Collection[str]],
    state: NetworkState,
    ports: Mapping[str, Mapping[str, frozenset[str]]],
    before: Mapping[str, PodLink],
) -> dict[str, PodLink]:
    """The links of pods; pods without one are left out.

    ``pods`` are addresses by pod, ``ports`` the addresses behind each port by bridge, ``before`` the last known links.
    """
    table = LinkTable(state)
    kinds = {link.name: link for link in state.links}
    everybody = frozenset(address for addresses in pods.values() for address in addresses)
    links = {}
    for pod, addresses in pods.items():
        device = next(filter(None, (table.device(address) for address in addresses)), "")
        link = kinds.get(device)
        if link is None:
            continue
        if link.kind == "bridge":
            own = frozenset(addresses)
            port = _port(own, everybody, ports.get(device, {}), before.get(pod, PodLink("")).port)
            if port:
                links[pod] = PodLink(device, port)
        elif link.kind == "veth" and not link.master and not link.peer:
            links[pod] = PodLink(device)
    return links


def _port(own: frozenset[str], everybody: frozenset[str], ports: Mapping[str, frozenset[str]], before: str) -> str:
    candidates = [name for name, addresses in ports.items() if addresses & own]
    if before in candidates:
        return before
    return min(candidates, key=lambda name: (len(ports[name] & (everybody - own)), name), default="")
