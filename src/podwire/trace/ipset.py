"""Whether a packet is in a set of ipset(8) (pure).

A match names for each part of an element whether it is the packet's source or destination: ``dst,dst,src`` for a set of
``hash:ip,port,ip``; of devices ``src`` is the one by which the packet comes in. Elements are texts as ipset(8) lists
them. Of several networks the narrowest one counts.
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
    marks: Mapping[str, tuple[int, int]] = {}
    """Value and mask of the marks that elements give to packets."""


Sets = Mapping[str, Elements]


def find(sets: Sets, name: str, ways: str, packet: Packet) -> str:
    """The element that a packet matches; empty: none.

    Raises: ProtocolError when there is no such set.
    """
    if name not in sets:
        raise ProtocolError("local", f"the rules name a set {name} that does not exist")
    held = sets[name]
    kinds = held.kind.partition(":")[2].split(",")
    parts = [_part(kind, way, packet) for kind, way in zip(kinds, ways.split(","), strict=False)]
    if held.kind == "bitmap:port":
        parts = [str(packet.destination_port)]
    if "net" not in kinds:
        text = ",".join(parts)
        return text if text in held.elements else ""
    place = kinds.index("net")
    found = (each for each in held.elements if _within(parts, each.split(","), place))
    return max(found, key=lambda each: ip_network(each.split(",")[place]).prefixlen, default="")


def _part(kind: str, way: str, packet: Packet) -> str:
    if kind == "port":
        return f"{packet.protocol}:{packet.destination_port if way == 'dst' else packet.source_port}"
    if kind == "iface":
        return packet.input if way == "src" else packet.output
    return packet.destination if way == "dst" else packet.source


def _within(parts: list[str], element: list[str], place: int) -> bool:
    """Whether all parts are those of an element, that at ``place`` in its network."""
    for index, (part, own) in enumerate(zip(parts, element, strict=True)):
        if index == place:
            if ip_address(part) not in ip_network(own):
                return False
        elif part != own:
            return False
    return True
