"""The rules of one mode in a network namespace: who else changes them, what was left of them, and their removal.

Rules of the nft kind tell of changes at once; legacy ones change in silence, so ``changed`` says yes every 30 s.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from podwire.kernel.iptables import Iptables, Kind, Programs, Ticker, find, legacy_tables, nft_tables
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import NftMonitor
from podwire.proxy.xtables.ownership import MARKS, Ownership
from podwire.proxy.xtables.restore import Saved, count_tables, own_part, removal
from podwire.state.iptables import Ruleset, parse_save

FAMILIES = ("ip", "ip6")
_POLL_S = 30.0  # as kube-proxy's syncPeriod

Place = Path | str | None


class Watch(Protocol):
    """Tells when somebody else may have changed rules."""

    def fileno(self) -> int:
        """Readable when :meth:`changed` should be asked."""
        ...

    def changed(self) -> bool:
        """Whether somebody else may have changed a table since the last call."""
        ...

    def started(self, process: int) -> None:
        """A program of ours that writes rules has started."""
        ...

    def unheard(self, write: Callable[[], int]) -> None:
        """Does a large write that returns how many tables it changed, while nothing is told."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class _NftWatch:
    """Notifications of nf_tables, without those of our own calls."""

    def __init__(self, place: Place, tables: frozenset[str]) -> None:
        self._nft = Nft(place)
        self._monitor = NftMonitor(place)
        self._tables = tables
        self._unheard = False
        self.started = self._monitor.leave_out
        self.fileno = self._monitor.fileno

    def changed(self) -> bool:
        found = self._monitor.changed()
        unheard, self._unheard = self._unheard, False
        return unheard or any(f in ("", *FAMILIES) and (not t or t in self._tables) for f, t in found)

    def unheard(self, write: Callable[[], int]) -> None:
        self._monitor.pause()
        before = self._nft.generation()
        count = -1
        try:
            count = write()
        finally:
            self._monitor.resume()
            self._unheard = self._nft.generation() != before + count

    def close(self) -> None:
        self._monitor.close()
        self._nft.close()


class _Poll:
    """Legacy rules change in silence."""

    def __init__(self) -> None:
        self._ticker = Ticker(_POLL_S)
        self.fileno = self._ticker.fileno
        self.changed = self._ticker.ticked
        self.close = self._ticker.close

    def started(self, process: int) -> None:
        """Of no interest here."""

    def unheard(self, write: Callable[[], int]) -> None:
        write()


def watch(programs: Programs, owner: Ownership, place: Place) -> Watch:
    """What tells of changes of that kind's rules.

    Raises: KernelError.
    """
    return _NftWatch(place, frozenset(owner.tables)) if programs.kind == "nft" else _Poll()


def read(tool: Iptables) -> Saved:
    """All rules of a family.

    Raises: KernelError.
    """
    return parse_save(tool.save())


def remove(tool: Iptables, owner: Ownership) -> int:
    """Takes a mode's rules of one family away; how many tables that changed.

    Raises: KernelError.
    """
    saved = read(tool)
    text = removal(saved, owner.beside(_marks(saved)))
    tool.restore(text)
    return count_tables(text)


def _marks(saved: Saved) -> frozenset[str]:
    return frozenset(MARKS) & saved.get("nat", {}).keys()


def left(place: Place, *marks: str) -> Iterator[tuple[Programs, dict[str, Saved]]]:
    """Kinds of iptables in which rules with one of the marks are, and all that they print, by family.

    Where no table of iptables exists no program is run.

    Raises: KernelError.
    """
    kinds: tuple[tuple[Kind, bool], ...] = (("nft", bool(nft_tables(place))), ("legacy", bool(legacy_tables(place))))
    for kind, used in kinds:
        programs = find(kind) if used else None
        if programs is None:
            continue
        saved: dict[str, Saved] = {}
        for family in FAMILIES:
            with Iptables(family, programs, place) as tool:
                saved[family] = read(tool)
        if any(mark in tables.get("nat", {}) for tables in saved.values() for mark in marks):
            yield programs, saved


def held_by(place: Place, owner: Ownership) -> Programs | None:
    """The kind that holds rules of an earlier run, where both are in use; a start goes on with that one."""
    if not nft_tables(place) or not legacy_tables(place):
        return None
    return next((programs for programs, _ in left(place, owner.mark)), None)


def clear(place: Place, owner: Ownership, *marks: str) -> bool:
    """Takes away what an earlier data plane of the mode left, or whose marks these are; whether there was anything.

    Raises: KernelError.
    """
    found = False
    for programs, saved in left(place, owner.mark, *marks):
        found = True
        for family, tables in saved.items():
            with Iptables(family, programs, place) as tool:
                tool.restore(removal(tables, owner.beside(_marks(tables))))
    return found


def held(place: Place, owner: Ownership) -> tuple[Ruleset, ...]:
    """What the kernel holds of the mode, a table each.

    Raises: KernelError.
    """
    return tuple(
        own_part(family, table, tables.get(table, {}), owner)
        for _, saved in left(place, owner.mark)
        for family, tables in saved.items()
        for table in sorted(owner.tables)
    )
