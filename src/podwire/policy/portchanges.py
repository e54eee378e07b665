"""Port tables that differ in a few ports: one made from another, and the entries that differ (pure).

A table of a thousand ports has two thousand entries. Here they are only copied and compared as whole tuples, which
costs microseconds, so one more port costs about the same in a small and in a large table.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import msgspec

from podwire.policy.ports import PROTOCOLS, PortRuling, PortTable, Ruling

_RANKS = {protocol: rank for rank, protocol in enumerate(PROTOCOLS)}

Entries = tuple[PortRuling, ...]


class TableChange(msgspec.Struct, frozen=True, gc=False):
    """A port table before and after a change."""

    before: PortTable
    after: PortTable
    removed: Entries
    """The entries of the first difference to the last, as they were."""
    added: Entries
    """The entries that take their place."""

    @property
    def protocols(self) -> set[str]:
        """The protocols with different entries."""
        return {entry.protocol for entry in (*self.removed, *self.added)}


def change_of(before: PortTable, after: PortTable) -> TableChange:
    """The change from one table to another."""
    old, new = before.entries, after.entries
    shorter = min(len(old), len(new))
    start = _common(old, new, shorter)
    end = _common(old[::-1], new[::-1], shorter - start)
    return TableChange(before, after, old[start : len(old) - end], new[start : len(new) - end])


def _common(old: Entries, new: Entries, most: int) -> int:
    """The number of equal entries at the beginning, at most ``most``."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def with_ports(table: PortTable, rulings: Mapping[tuple[str, int], Ruling]) -> PortTable:
    """The table with other rulings for some ports, by protocol and port; neighbours must have other rulings."""
    entries = table.entries
    for (protocol, port), ruling in rulings.items():
        index = bisect_left(entries, (_RANKS[protocol], port), key=_end)
        replaced = entries[index]
        if replaced.ruling != ruling:
            entries = (*entries[:index], *_cut(replaced, port, ruling), *entries[index + 1 :])
    return PortTable(entries=entries, other=table.other)


def _end(entry: PortRuling) -> tuple[int, int]:
    return _RANKS[entry.protocol], entry.last


def _cut(entry: PortRuling, port: int, ruling: Ruling) -> Iterator[PortRuling]:
    """The entry with another ruling for one of its ports."""
    protocol = entry.protocol
    if entry.first < port:
        yield PortRuling(protocol, entry.first, port - 1, entry.ruling)
    yield PortRuling(protocol, port, port, ruling)
    if port < entry.last:
        yield PortRuling(protocol, port + 1, entry.last, entry.ruling)
