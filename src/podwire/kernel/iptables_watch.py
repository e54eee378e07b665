"""Who else changes rules of iptables in a network namespace.

Rules of the nft kind tell of changes at once; legacy ones change in silence, so ``changed`` says yes every 30 s.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from podwire.kernel.iptables import FAMILIES, Programs, Ticker
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import NftMonitor

POLL_S = 30.0  # as kube-proxy's syncPeriod


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

    def __init__(self, netns_path: NetnsPath, tables: frozenset[str]) -> None:
        self._nft = Nft(netns_path)
        self._monitor = NftMonitor(netns_path)
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
        self._ticker = Ticker(POLL_S)
        self.fileno = self._ticker.fileno
        self.changed = self._ticker.ticked
        self.close = self._ticker.close

    def started(self, process: int) -> None:
        """Of no interest here."""

    def unheard(self, write: Callable[[], int]) -> None:
        write()


def watch(programs: Programs, tables: Iterable[str], netns_path: NetnsPath) -> Watch:
    """What tells of changes of that kind's rules in some tables.

    Raises: KernelError.
    """
    return _NftWatch(netns_path, frozenset(tables)) if programs.kind == "nft" else _Poll()
