"""The routes, neighbours and forwarding entries of peers, made of texts that are canonical already.

A node with 1,000 peers has 1,000 of each that differ in an address or two. So they are copies of one that was checked,
with other addresses: 0.3 us each, instead of 1-2 us for texts that nobody has checked before.
"""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from msgspec.structs import force_setattr

from podwire.state.address import mac_text, prefix_text
from podwire.state.route import Fdb, Neighbour, Route

_CACHED = 256
"""More than a node has devices and source addresses."""


@lru_cache(_CACHED)
def _route(link: str, src: str, *, onlink: bool) -> Any:
    return Route(dst="192.0.2.0/24", link=link, onlink=onlink, src=src)


@lru_cache(_CACHED)
def _neighbour(link: str) -> Any:
    return Neighbour(link=link, ip="192.0.2.1")


@lru_cache(_CACHED)
def _forwarding(link: str, *, bridge: bool) -> Any:
    return Fdb(link=link, mac="02:00:00:00:00:01", bridge=bridge)


def route_to(
    network: IPv4Network | IPv6Network, via: str = "", *, link: str, src: str = "", onlink: bool = False
) -> Route:
    """The route to a network; ``via`` and ``src`` are canonical."""
    if not network.prefixlen:
        return Route(dst=prefix_text(network), via=via, link=link, onlink=onlink, src=src)
    route: Route = _route(link, src, onlink=onlink).__copy__()
    force_setattr(route, "dst", prefix_text(network))
    if via:
        force_setattr(route, "via", via)
    return route


def neighbour_at(ip: str, mac: str, *, link: str) -> Neighbour:
    """The neighbour with an address, which is canonical.

    Raises: ValueError when ``mac`` is not a hardware address.
    """
    neighbour: Neighbour = _neighbour(link).__copy__()
    force_setattr(neighbour, "ip", ip)
    force_setattr(neighbour, "mac", mac_text(mac))
    return neighbour


def forwarding_to(mac: str, dst: str = "", *, link: str, bridge: bool = False) -> Fdb:
    """The forwarding entry of a hardware address; ``dst`` is canonical.

    Raises: ValueError when ``mac`` is not a hardware address.
    """
    entry: Fdb = _forwarding(link, bridge=bridge).__copy__()
    force_setattr(entry, "mac", mac_text(mac))
    if dst:
        force_setattr(entry, "dst", dst)
    return entry
