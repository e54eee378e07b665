"""Who answers a query, by the entries of the maps: what the BPF program decides, as text (pure).

The program itself is ``src/bpf/dns_answers.bpf.c``; a test asks both the same questions.
"""

from collections.abc import Mapping
from ipaddress import ip_address

from podwire.dns import wire
from podwire.dns.bpf.entries import MAX_LABELS, NAME_BYTES, NameEntry
from podwire.dns.names import decode_name, split_labels


def decide(name: bytes, qtype: int, domain: bytes, entries: Mapping[bytes, NameEntry], *, closed: bool = True) -> str:
    """From which entry the kernel answers a query for a whole name; empty when the server answers.

    ``domain`` is the zone in wire form and lower case. ``closed``: a name without an entry does not exist.
    """
    lower = name.lower()
    labels, zone = split_labels(lower), split_labels(domain)
    if len(lower) > NAME_BYTES or len(labels) > MAX_LABELS or labels[len(labels) - len(zone) :] != zone:
        return ""
    entry = entries.get(lower.ljust(NAME_BYTES, b"\0"))
    if entry is not None:
        if entry.served or qtype not in (wire.A, wire.AAAA):
            return ""
        addresses = ", ".join(str(ip_address(packed)) for packed in (entry.v4 if qtype == wire.A else entry.v6))
        return f"entry {decode_name(lower)} with {addresses or 'no address of this family'}"
    relative = labels[: len(labels) - len(zone)]
    if not closed or qtype in (wire.AXFR, wire.IXFR) or not relative or relative[-1] == b"pod":
        return ""
    if relative[-1] == b"svc" and len(relative) > 3:
        owner = b"".join(bytes([len(label)]) + label for label in relative[-3:]) + domain
        if owner.ljust(NAME_BYTES, b"\0") in entries:
            return ""
    return "no entry, so the name does not exist"
