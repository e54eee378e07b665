"""Whether a packet is in a set of ipset(8). Pure.

A match names for each dimension of an element whether it is compared with the packet's source or destination:
``dst,dst,src`` for a set of ``hash:ip,port,ip``; for devices ``src`` is the input device. Elements are texts as
ipset(8) lists them. Of several matching networks the longest prefix counts.
"""

from collections.abc import Collection, Mapping

import msgspec

from podwire.errors import ProtocolError
from podwire.trace.networks import network, within
from podwire.trace.packet import Packet


class Elements(msgspec.Struct, frozen=True):
    """A set: its type, such as ``hash:ip,port``, and its elements."""

    kind: str
    elements: Collection[str]
    marks: Mapping[str, tuple[int, int]] = {}
    """Value and mask of the marks that elements set on packets."""


Sets = Mapping[str, Elements]


def find(sets: Sets, name: str, directions: str, packet: Packet) -> str:
    """The element that a packet matches; empty: none.

    Raises: ProtocolError when the set does not exist.
    """
    if name not in sets:
        raise ProtocolError("local", f"the rules name a set {name} that does not exist")
    elements = sets[name]
    kinds = elements.kind.partition(":")[2].split(",")
    values = [
        _dimension_value(kind, direction, packet) for kind, direction in zip(kinds, directions.split(","), strict=False)
    ]
    if elements.kind == "bitmap:port":
        values = [str(packet.destination_port)]
    if "net" not in kinds:
        text = ",".join(values)
        return text if text in elements.elements else ""
    position = kinds.index("net")
    matching = (element for element in elements.elements if _within(values, element.split(","), position))
    return max(matching, key=lambda element: network(element.split(",")[position]).prefixlen, default="")


def _dimension_value(kind: str, direction: str, packet: Packet) -> str:
    if kind == "port":
        return f"{packet.protocol}:{packet.destination_port if direction == 'dst' else packet.source_port}"
    if kind == "iface":
        return packet.input if direction == "src" else packet.output
    return packet.destination if direction == "dst" else packet.source


def _within(values: list[str], element: list[str], position: int) -> bool:
    """Whether the values equal those of an element; that at ``position`` may lie in the element's network."""
    for index, (value, element_value) in enumerate(zip(values, element, strict=True)):
        if index == position:
            if not within(value, element_value):
                return False
        elif value != element_value:
            return False
    return True
