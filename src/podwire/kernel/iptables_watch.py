"""Detects changes of iptables rules by other programs in a network namespace.

For the nft kind the kernel sends notifications. For legacy rules it sends none; ``changed`` then returns True every 30
s.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from podwire.kernel.iptables import FAMILIES, Programs, Ticker
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_monitor import NftMonitor

POLL_S = 30.0  # as kube-proxy's syncPeriod


class ChainWatch(Protocol):
    """Reports when another program may have changed rules."""

    def fileno(self) -> int:
        """Readable when :meth:`changed` should be called."""
        ...

    def changed(self) -> bool:
        """Whether another program may have changed a table since the last call."""
        ...

    def take_chains(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """The chains by family and table that other programs are known to have changed since the last call."""
        ...

    def ignore_process(self, process: int) -> None:
        """Must be called with the process id of an iptables program that podwire starts; its changes are ignored."""
        ...

    def notifications_off(self, write: Callable[[], int]) -> None:
        """Calls ``write`` with notifications off; ``write`` returns the number of changed tables."""
        ...

    def close(self) -> None:
        """Closes the descriptors."""
        ...


class _NftWatch:
    """Notifications of nf_tables, without podwire's own changes."""

    def __init__(self, netns_path: NetnsPath, tables: frozenset[str]) -> None:
        self._nft = Nft(netns_path)
        self._monitor = NftMonitor(netns_path)
        self._tables = tables
        self._missed = False
        self._lock = threading.Lock()
        """Held while the chains change, because another thread may take them."""
        self._chains: dict[tuple[str, str], set[str]] = {}
        self.ignore_process = self._monitor.ignore_port
        self.fileno = self._monitor.fileno

    def changed(self) -> bool:
        changes = self._monitor.read()
        missed, self._missed = self._missed, False
        own = {key: touched for key, touched in changes.items() if key[0] in FAMILIES and key[1] in self._tables}
        with self._lock:
            for key, touched in own.items():
                self._chains.setdefault(key, set()).update(touched.chains)
        return missed or any(f in ("", *FAMILIES) and (not t or t in self._tables) for f, t in changes)

    def take_chains(self) -> Mapping[tuple[str, str], frozenset[str]]:
        with self._lock:
            chains, self._chains = self._chains, {}
        return {table: frozenset(names) for table, names in chains.items()}

    def notifications_off(self, write: Callable[[], int]) -> None:
        self._monitor.pause()
        before = self._nft.generation()
        count = -1
        try:
            count = write()
        finally:
            self._monitor.resume()
            self._missed = self._nft.generation() != before + count

    def close(self) -> None:
        self._monitor.close()
        self._nft.close()


class _Poll:
    """Polling, since the kernel sends no notifications for legacy rules."""

    def __init__(self) -> None:
        self._ticker = Ticker(POLL_S)
        self.fileno = self._ticker.fileno
        self.changed = self._ticker.ticked
        self.close = self._ticker.close

    def take_chains(self) -> Mapping[tuple[str, str], frozenset[str]]:
        return {}

    def ignore_process(self, process: int) -> None:
        """Has no effect, since own changes cause no notifications."""

    def notifications_off(self, write: Callable[[], int]) -> None:
        write()


def watch(programs: Programs, tables: Iterable[str], netns_path: NetnsPath) -> ChainWatch:
    """A watch on the rules of this kind of iptables in these tables.

    Raises: KernelError.
    """
    return _NftWatch(netns_path, frozenset(tables)) if programs.kind == "nft" else _Poll()
