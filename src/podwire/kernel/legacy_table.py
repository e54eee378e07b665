"""The rules of a table of legacy iptables as the kernel encodes them, divided into chains (pure).

The entries of the kernel's own chains come first, then those of the other chains, each behind an entry that names the
chain. A rule leads to a chain by the offset of the chain's first rule.

Source: ``include/uapi/linux/netfilter_ipv4/ip_tables.h``, ``netfilter_ipv6/ip6_tables.h``, ``netfilter/x_tables.h``.
"""

import re
import struct
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

INFO = struct.Struct("=32sI5I5III")
"""struct ipt_getinfo: name, valid hooks, their entries and policies as offsets, the number of entries, their size."""
COUNTERS_BYTES = 16  # struct xt_counters
_HOOKS = 5
_HEADER = struct.Struct("=HHI")
"""In an entry: the offset of its target, the offset of the next entry, and a value of the kernel's (``comefrom``)."""
_NAME = re.compile(rb"\x40\x00ERROR\x00{25}([^\x00]{1,29})\x00", re.DOTALL)
"""struct xt_error_target, which names a chain; the last one stands behind all chains."""
_NAME_BYTES = 64
_STANDARD = bytes(29)
"""The name of the target that holds a verdict: an offset, or a negative number for ACCEPT, DROP and RETURN."""
_VERDICT = struct.Struct("=2x29sxi")

Owns = Callable[[str], bool]
"""Whether a chain is podwire's."""


class EntryFormat(NamedTuple):
    """Offsets in the head of an entry of one family: struct ipt_entry, struct ip6t_entry."""

    header: int
    counters: int
    matches: int


FORMATS = {"ip": EntryFormat(88, 96, 112), "ip6": EntryFormat(140, 152, 168)}


class ChainBytes(NamedTuple):
    """The bytes of a chain."""

    start: int
    end: int


class LegacyTable:
    """One table: ``info`` is struct ipt_getinfo, ``entries`` are its entries."""

    def __init__(self, family: str, info: bytes, entries: memoryview) -> None:
        self.info = info
        self.entries = entries
        self._format = FORMATS[family]
        _, valid, *numbers = INFO.unpack(info)
        self.count: int = numbers[-2]
        """The number of entries."""
        starts = {numbers[hook]: f"\0{hook}" for hook in range(_HOOKS) if valid >> hook & 1}
        starts |= {m.start() - self._format.matches: m[1].decode("latin-1") for m in _NAME.finditer(entries)}
        offsets = sorted(starts)
        self.chains = {
            starts[start]: ChainBytes(start, end)
            for start, end in zip(offsets, (*offsets[1:], len(entries)), strict=True)
        }
        """Chains in their order; those of the kernel have a zero and the number of their hook as name."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The number of entries by chain; counting takes 5 ms with 8,000 rules."""
        return {name: self._size(chain) for name, chain in self.chains.items()}

    def take_sizes(self, other: "LegacyTable") -> None:
        """Takes :attr:`sizes` of another state of the table where a chain has as many bytes; others are counted."""
        self.sizes = {
            name: other.sizes[name] if _bytes(other.chains.get(name)) == _bytes(chain) else self._size(chain)
            for name, chain in self.chains.items()
        }

    @property
    def is_whole(self) -> bool:
        """Whether the chains have all entries of the table."""
        return sum(self.sizes.values()) == self.count

    def foreign(self, owns: Owns) -> dict[str, list[bytes]]:
        """The rules that are not podwire's, by chain, comparable with those of another state of the table."""
        return {
            name: [entry for entry, leads in self.rules(name) if not (leads and owns(leads))]
            for name in self.chains
            if not owns(name)
        }

    def rules(self, name: str) -> Iterator[tuple[bytes, str]]:
        """Each entry of a chain without counters and offsets, and the chain to which it leads."""
        for offset in self._offsets(self.chains[name]):
            target, size, _ = _HEADER.unpack_from(self.entries, offset + self._format.header)
            entry = bytearray(self.entries[offset : offset + size])
            counted = slice(self._format.header + 4, self._format.matches)
            entry[counted] = bytes(counted.stop - counted.start)
            kind, verdict = _VERDICT.unpack_from(entry, target)
            leads = ""
            if kind == _STANDARD and verdict >= 0:
                leads = "" if verdict == offset + size else self._first_rules.get(verdict, "?")
                entry[target + _VERDICT.size - 4 :] = leads.encode("latin-1")
            yield bytes(entry), leads

    @cached_property
    def _first_rules(self) -> dict[int, str]:
        """The names of chains by the offset of their first rule."""
        return {chain.start + self._format.matches + _NAME_BYTES: name for name, chain in self.chains.items()}

    def _size(self, chain: ChainBytes) -> int:
        return sum(1 for _ in self._offsets(chain))

    def _offsets(self, chain: ChainBytes) -> Iterator[int]:
        offset = chain.start
        while offset < chain.end:
            yield offset
            offset += _HEADER.unpack_from(self.entries, offset + self._format.header)[1]


def _bytes(chain: ChainBytes | None) -> int:
    return chain.end - chain.start if chain else 0


def carried_counters(before: LegacyTable, now: LegacyTable, counters: bytes, owns: Owns) -> bytes:
    """The counters of ``now`` for the entries of ``before``; zero for podwire's chains of another size.

    What is not podwire's is the same in both, and both are whole.
    """
    held: dict[str, bytes] = {}
    position = 0
    for name, size in now.sizes.items():
        held[name] = counters[position : position + COUNTERS_BYTES * size]
        position += len(held[name])
    carried: list[bytes] = []
    for name, size in before.sizes.items():
        if not owns(name):
            carried += _matched(before, now, name, held[name])
        elif _bytes(now.chains.get(name)) == _bytes(before.chains[name]):
            carried.append(held[name])
        else:
            carried.append(bytes(COUNTERS_BYTES * size))
    return b"".join(carried)


def _matched(before: LegacyTable, now: LegacyTable, name: str, counters: bytes) -> Iterator[bytes]:
    """The counters of the entries of a chain that both have; zero for those that ``now`` lacks."""
    held: dict[bytes, list[bytes]] = {}
    for position, (entry, _) in enumerate(now.rules(name)):
        held.setdefault(entry, []).append(counters[COUNTERS_BYTES * position :][:COUNTERS_BYTES])
    for entry, _ in before.rules(name):
        same = held.get(entry)
        yield same.pop(0) if same else bytes(COUNTERS_BYTES)
