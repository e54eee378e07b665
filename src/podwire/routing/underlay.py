"""Finds the device that carries the node's own addresses, by the addresses and never by name or order."""

from collections.abc import Sequence
from ipaddress import ip_interface

from podwire.routing.nodes import Address, Device, Underlay
from podwire.state.network import NetworkState

DEFAULT_MTU = 1500


def find(state: NetworkState, addresses: Sequence[Address]) -> Underlay | None:
    """The device with the first of the addresses that any device has, or None.

    Its MTU is the device's, or that of its default route if that is smaller.
    """
    for node_address in addresses:
        for address in state.addresses:
            if ip_interface(address.cidr).ip == node_address:
                return _describe(state, address.link)
    return None


def _describe(state: NetworkState, name: str) -> Underlay:
    link = state.link(name)
    sizes = [link.mtu if link is not None and link.mtu else DEFAULT_MTU]
    sizes += [route.mtu for route in state.routes if route.link == name and route.mtu and _is_default(route.dst)]
    own = (ip_interface(a.cidr) for a in state.addresses if a.link == name)
    devices = {link.name: Device(link.mtu or DEFAULT_MTU, link.master) for link in state.links}
    return Underlay(name, min(sizes), tuple(a for a in own if not a.is_link_local), devices)


def _is_default(dst: str) -> bool:
    return dst in ("default", "::/0", "0.0.0.0/0")
