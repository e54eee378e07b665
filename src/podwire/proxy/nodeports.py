"""Where node ports answer: ``nodePortAddresses`` as kube-proxy reads it (pure).

``primary`` alone (the default) means the node's internal addresses. Otherwise every address of the node in one of the
ranges; a family that no range names is not restricted. Loopback answers in mode ``iptables`` alone, for IPv4: the
kernel routes nothing from there unless it is told to.
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
    given = tuple(texts)
    if given == (PRIMARY,):
        return ()
    if PRIMARY in given:
        raise ValueError(f"{PRIMARY} must be the only entry, or all entries must be ranges")
    ranges = tuple(dict.fromkeys(str(ip_network(text)) for text in given))
    return (*ranges, *(all_of_it for family, all_of_it in _EVERYTHING.items() if not of_family(ranges, family)))


def localhost_node_ports(facts: NodeFacts) -> bool:
    """Whether node ports answer on IPv4 loopback, in the one mode that can."""
    ranges = (ip_network(text) for text in of_family(facts.node_port_ranges, "ip"))
    return facts.iptables.localhost_node_ports and any(LOOPBACKS["ip"].overlaps(network) for network in ranges)


def without_loopback(ranges: tuple[str, ...], family: str) -> tuple[str, ...]:
    """Those of one family, disjoint, and without loopback, which the kernel would not translate from."""
    loopback: Any = LOOPBACKS[family]
    left: list[Any] = []
    for text in of_family(ranges, family):
        network: Any = ip_network(text)
        if loopback.subnet_of(network):
            left.extend(network.address_exclude(loopback))
        elif not network.subnet_of(loopback):
            left.append(network)
    return tuple(map(str, collapse_addresses(left)))


def within(addresses: Iterable[str], ranges: Iterable[str]) -> tuple[str, ...]:
    """The addresses in one of the ranges, in their order; not those of loopback and of one link alone."""
    networks = [ip_network(text) for text in ranges]
    found = dict.fromkeys(addresses)
    values = ((text, ip_address(text)) for text in found)
    return tuple(
        text
        for text, value in values
        if not (value.is_loopback or value.is_link_local) and any(value in network for network in networks)
    )
