"""Who answers a query, by the entries of the maps: what the BPF program decides, as text (pure).

The program itself is ``src/bpf/dns_answers.bpf.c``; a test asks both the same questions.
"""

from collections.abc import Mapping
from ipaddress import ip_address

import msgspec

from podwire.dns import wire
from podwire.dns.bpf.entries import KEY_BYTES, MAX_LABELS, NAME_BYTES, NameEntry, relative_key
from podwire.dns.names import decode_name, split_labels


class KernelZone(msgspec.Struct, frozen=True):
    """The zone in the kernel: its name in wire form and lower case, and its entries.

    ``closed``: a name without an entry does not exist. ``long_names``: there are names that are too long for an entry.
    """

    domain: bytes
    entries: Mapping[bytes, NameEntry]
    closed: bool = True
    long_names: bool = False


def decide(name: bytes, qtype: int, zone: KernelZone) -> str:
    """From which entry the kernel answers a query for a whole name; empty when the server answers."""
    lower = name.lower()
    labels, below = split_labels(lower), split_labels(zone.domain)
    if len(lower) > NAME_BYTES or len(labels) > MAX_LABELS or labels[len(labels) - len(below) :] != below:
        return ""
    key = relative_key(lower, zone.domain)
    if not key and zone.long_names:
        return ""
    entry = zone.entries.get(key)
    if entry is not None:
        if entry.served or qtype not in (wire.A, wire.AAAA):
            return ""
        addresses = ", ".join(str(ip_address(packed)) for packed in (entry.v4 if qtype == wire.A else entry.v6))
        return f"entry {decode_name(lower)} with {addresses or 'no address of this family'}"
    relative = labels[: len(labels) - len(below)]
    if not zone.closed or qtype in (wire.AXFR, wire.IXFR) or not relative or relative[-1] == b"pod":
        return ""
    if relative[-1] == b"svc" and len(relative) > 3:
        owner = b"".join(bytes([len(label)]) + label for label in relative[-3:])
        if owner.ljust(KEY_BYTES, b"\0") in zone.entries:
            return ""
    return "no entry, so the name does not exist"
