"""The text of each packet field that a rule of nftables reads. Pure."""

import msgspec

from podwire.errors import ProtocolError
from podwire.trace.packet import LocalAddresses, Packet

_DNAT_BIT = 32  # linux/netfilter/nf_conntrack_common.h: IPS_DST_NAT

_OF_PACKET = {
    "saddr": "source",
    "daddr": "destination",
    "sport": "source_port",
    "dport": "destination_port",
    "protocol": "protocol",
    "nexthdr": "protocol",
    "l4proto": "protocol",
    "mark": "mark",
    "iifname": "input",
    "oifname": "output",
}
"""Attribute of the packet by the last word of the field."""


class FlowContext(msgspec.Struct, frozen=True):
    """The data of a packet's flow that the packet itself does not have."""

    original: Packet
    """The packet as it arrived."""
    translated: bool
    machine: LocalAddresses


def text_of(name: str, packet: Packet, context: FlowContext) -> str:
    """A field as nft writes its value.

    Raises: ProtocolError for an unsupported field.
    """
    first, _, rest = name.partition(" ")
    if first in ("ct", "fib"):
        return _tracked(rest, context) if first == "ct" else _routed(rest, packet, context)
    if name == "meta protocol":
        return packet.family
    if name in ("icmp type", "icmpv6 type"):
        return "echo-request"
    last = name.rpartition(" ")[2]
    if last == "nfproto":
        return "ipv4" if packet.family == "ip" else "ipv6"
    if last not in _OF_PACKET:
        raise ProtocolError("local", f"the tracer does not know the field {name}")
    return str(getattr(packet, _OF_PACKET[last]))


def _tracked(name: str, context: FlowContext) -> str:
    original = context.original
    match name:
        case "state":
            return original.state
        case "direction":
            return "original"
        case "status":
            return str(_DNAT_BIT if context.translated else 0)
        case "mark":
            return "0"
        case "original ip saddr" | "original ip6 saddr":
            return original.source
        case "original ip daddr" | "original ip6 daddr":
            return original.destination
        case "original proto-src":
            return str(original.source_port)
        case "original proto-dst":
            return str(original.destination_port)
    raise ProtocolError("local", f"the tracer does not know the field ct {name}")


def _routed(name: str, packet: Packet, context: FlowContext) -> str:
    match name:
        case "saddr type":
            return "local" if context.machine.owns(packet.source) else "unicast"
        case "daddr type":
            return "local" if context.machine.owns(packet.destination) else "unicast"
    raise ProtocolError("local", f"the tracer does not know the field fib {name}")
