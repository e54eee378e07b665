"""The addresses at which node ports answer: ``nodePortAddresses`` with the meaning of kube-proxy (pure).

``primary`` alone (the default) means the node's internal addresses. Otherwise node ports answer at every address of the
node that is in one of the ranges; a family without a range is not restricted. Loopback answers only in mode
``iptables`` and for IPv4, because the kernel does not route packets from loopback by default.
"""

from collections.abc import Iterable
from ipaddress import collapse_addresses, ip_address, ip_network
from typing import Any

from podwire.proxy.servicemap import NodeFacts, of_family

PRIMARY = "primary"
LOOPBACKS = {"ip": ip_network("127.0.0.0/8"), "ip6": ip_network("::1/128")}
_EVERYTHING = {"ip": "0.0.0.0/0", "ip6": "::/0"}


def parse_ranges(texts: Iterable[str]) -> tuple[str, ...]:
    """The ranges for :class:`podwire.proxy.servicemap.NodeFacts`; empty for ``primary``.

    Raises: ValueError naming the text that is wrong.
    """
    entries = tuple(texts)
    if entries == (PRIMARY,):
        return ()
    if PRIMARY in entries:
        raise ValueError(f"{PRIMARY} must be the only entry, or all entries must be ranges")
    ranges = tuple(dict.fromkeys(str(ip_network(text)) for text in entries))
    return (*ranges, *(everything for family, everything in _EVERYTHING.items() if not of_family(ranges, family)))


def localhost_node_ports(facts: NodeFacts) -> bool:
    """Whether node ports answer on IPv4 loopback in mode ``iptables``."""
    ranges = (ip_network(text) for text in of_family(facts.node_port_ranges, "ip"))
    return facts.iptables.localhost_node_ports and any(LOOPBACKS["ip"].overlaps(network) for network in ranges)


def without_loopback(ranges: tuple[str, ...], family: str) -> tuple[str, ...]:
    """The ranges of one family without overlaps and without loopback, from which the kernel does not translate."""
    loopback: Any = LOOPBACKS[family]
    remaining: list[Any] = []
    for text in of_family(ranges, family):
        network: Any = ip_network(text)
        if loopback.subnet_of(network):
            remaining.extend(network.address_exclude(loopback))
        elif not network.subnet_of(loopback):
            remaining.append(network)
    return tuple(map(str, collapse_addresses(remaining)))


def within(addresses: Iterable[str], ranges: Iterable[str]) -> tuple[str, ...]:
    """The addresses in one of the ranges, in their order, without loopback and link-local addresses."""
    networks = [ip_network(text) for text in ranges]
    values = ((text, ip_address(text)) for text in dict.fromkeys(addresses))
    return tuple(
        text
        for text, value in values
        if not (value.is_loopback or value.is_link_local) and any(value in network for network in networks)
    )
