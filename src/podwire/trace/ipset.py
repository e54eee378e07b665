"""Whether a packet is in a set of ipset(8) (pure).

A match names for each part of an element whether it is the packet's source or destination: ``dst,dst,src`` for a set of
``hash:ip,port,ip``. Elements are texts as ipset(8) lists them.
"""

from collections.abc import Collection, Mapping
from ipaddress import ip_address, ip_network

import msgspec

from podwire.errors import ProtocolError
from podwire.trace.packet import Packet


class Elements(msgspec.Struct, frozen=True):
    """A set: its type, such as ``hash:ip,port``, and what it holds."""

    kind: str
    elements: Collection[str]


Sets = Mapping[str, Elements]


def find(sets: Sets, name: str, ways: str, packet: Packet) -> str:
    """The element that a packet matches; empty: none.

    Raises: ProtocolError when there is no such set.
    """
    if name not in sets:
        raise ProtocolError("local", f"no set {name}")
    held = sets[name]
    kinds = held.kind.partition(":")[2].split(",")
    parts = [_part(kind, way, packet) for kind, way in zip(kinds, ways.split(","), strict=False)]
    if held.kind == "bitmap:port":
        parts = [str(packet.destination_port)]
    if "net" not in kinds:
        text = ",".join(parts)
        return text if text in held.elements else ""
    return next((each for each in held.elements if _within(parts, each.split(","))), "")


def _part(kind: str, way: str, packet: Packet) -> str:
    if kind == "port":
        return f"{packet.protocol}:{packet.destination_port if way == 'dst' else packet.source_port}"
    return packet.destination if way == "dst" else packet.source


def _within(parts: list[str], element: list[str]) -> bool:
    *exact, address = parts
    return exact == element[:-1] and ip_address(address) in ip_network(element[-1])
