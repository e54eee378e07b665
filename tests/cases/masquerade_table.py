"""Masquerade as a table: the source address that a receiver sees, for each source and destination.

The node of the source is node-1; ``other`` is a machine behind node-1 that is not a pod. The answers hold for both
families and both forms of the rules; docs/masquerade.md shows the same table.
"""

from typing import NamedTuple

SOURCES = ("pod", "node", "other")

MASQUERADE = {
    # destination: (source of a pod, of the node, of another machine)
    "pod on the same node": ("pod", "node", "other"),
    "pod on another node": ("pod", "node", "other"),
    "its own node": ("pod", "node", "other"),
    "node of the same subnet": ("pod", "node", "other"),
    "node behind a router": ("node", "node", "other"),
    "Service": ("pod", "node", "node"),
    "packet marked by Services": ("node", "node", "node"),
    "outside": ("node", "node", "other"),
    "non-masquerade CIDR": ("pod", "node", "other"),
    "multicast": ("pod", "node", "other"),
    "limited broadcast": ("pod", "node", "other"),
}

ONLY_V4 = ("limited broadcast",)
"""IPv6 has no broadcast."""


class MasqueradeCase(NamedTuple):
    """One packet; ``seen`` says whose address the receiver sees."""

    source: str
    destination: str
    version: int
    seen: str


CASES = tuple(
    MasqueradeCase(source, destination, version, observed)
    for destination, row in MASQUERADE.items()
    for source, observed in zip(SOURCES, row, strict=True)
    for version in ((4,) if destination in ONLY_V4 else (4, 6))
)
