"""The masquerade rules of iptables in a network namespace: held, and watched for changes by other programs.

Changes are asked for, not notified of: of the kind ``nft`` the kernel's notifications that wait are read, of the kind
``legacy`` the tables are compared (:mod:`podwire.kernel.iptables_watch`). Other parts and programs write the table
``nat`` too; only changes of these chains and of the chain that jumps to them count. Cost of a question: one system
call, or two for each family in the kind ``legacy``; while no rules are held nothing.
"""

import contextlib
from collections.abc import Callable, Sequence

from podwire.errors import KernelError
from podwire.kernel import iptables, iptables_chains
from podwire.kernel.iptables_watch import ChainWatch, watch
from podwire.kernel.netns import NetnsPath
from podwire.state.chain_marks import MASQUERADE
from podwire.state.iptables import Ruleset

_CHAINS = MASQUERADE.constant["nat"] | {"POSTROUTING"}


class MasqueradeChains:
    """The chains of one namespace (None: that of the calling thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self._watch: ChainWatch | None = None

    def close(self) -> None:
        """Ends the watch; the rules stay in force."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def hold(self, desired: Sequence[Ruleset], write: Callable[[], Sequence[str]]) -> None:
        """Calls ``write``, which makes the kernel hold ``desired`` and returns what it wrote, one text for each table.

        Raises: KernelError of ``write``.
        """
        if not desired:
            self.close()
            write()
        elif self._watch is not None:
            self._watch.notifications_off(lambda: len(write()))
        else:
            write()
            with contextlib.suppress(KernelError):  # Without a watch the rules are compared in every full run.
                self._watch = self._open()
                self._watch.notifications_off(lambda: 0)

    def _open(self) -> ChainWatch:
        held = (programs for programs, _ in iptables_chains.marked(self._netns_path, MASQUERADE))
        programs = next(held, None) or iptables.choose(self._netns_path)
        return watch(programs, MASQUERADE.tables, self._netns_path)

    def changed(self) -> bool:
        """Whether another program may have changed the rules since the last call."""
        if self._watch is None or not self._watch.changed():
            return False
        touched = self._watch.take_chains()
        return not touched or any(not chains or chains & _CHAINS for chains in touched.values())
