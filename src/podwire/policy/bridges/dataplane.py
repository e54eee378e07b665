"""A policy data plane for nodes whose pods may be ports of bridges: another data plane plus a bridge table.

1. If no pod is a port of a bridge, no bridge table is written. 2. Every change, and every call of
:meth:`BridgeIsolation.look`, checks whether the IP hooks see packets between the ports of a bridge (``br_netfilter``).
If they do not, pods that policies select are isolated from the other ports, ports without a known pod are isolated
too, and the problem names the bridge. 3. With ``enable_netfilter``, ``br_netfilter`` is turned on, only for bridges
with pods. 4. If the kernel has no bridge tables, the source address of each port is not checked, which is reported; a
change that needs to isolate a pod fails.
"""

import select
from collections.abc import Callable, Iterable, Mapping, Sequence

from podwire.dataplane.plane import Written
from podwire.errors import KernelError, Unsupported
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_monitor import NftMonitor
from podwire.policy.attached import AttachedPod
from podwire.policy.bridges.hooks import BridgeHooks
from podwire.policy.bridges.layout import FAMILY, TABLE, BridgePort, table
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import Locking, PolicyDataPlane, PolicyFacts
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.status.counts import Counted
from podwire.policy.verdicts import RuleHit
from podwire.state.nft import Table
from podwire.state.nft_diff import Transaction, diff, removal

FEATURE = "nftables tables of the family bridge"


class BridgeIsolation:
    """Adds a bridge table to the data plane ``plane``, in one network namespace (None: that of this thread)."""

    def __init__(self, plane: PolicyDataPlane, netns: NetnsPath = None) -> None:
        self._plane = plane
        self.hooks = BridgeHooks(netns)
        """Whether the IP hooks see the packets of the bridges."""
        self._events = select.epoll()
        self._events.register(plane.fileno(), select.EPOLLIN)
        self._nft: Nft | None = None
        self._monitor: NftMonitor | None = None
        self._missing: Unsupported | None = None
        self._open(netns)
        self._compiler: Compiler | None = None
        self._held: tuple[BridgePort, ...] | None = None
        self.attached: Callable[[], Iterable[AttachedPod]] = tuple
        """Returns the pods on this node."""
        self.routed: frozenset[str] = frozenset()
        """Bridges whose pods reach each other through the node's routing table: the IP hooks see all they need."""
        self.enable_netfilter = False
        """Whether to turn on ``br_netfilter`` for bridges of pods where it is off."""
        self.report: Callable[[str], None] = lambda _: None
        """Called with :attr:`problem` after every change."""

    def _open(self, netns: NetnsPath) -> None:
        try:
            self._nft = Nft(netns)
            self._monitor = NftMonitor(netns, (self._nft.port,))
        except Unsupported as missing:
            self._missing = missing
        else:
            self._events.register(self._monitor.fileno(), select.EPOLLIN)

    @property
    def name(self) -> str:
        """The name of the data plane ``plane``."""
        return self._plane.name

    @property
    def problem(self) -> str:
        """The bridges where policies are enforced only in part, and why; empty when there are none."""
        texts = []
        for bridge, missing in sorted(self.hooks.unseen.items()):
            if missing and bridge not in self.routed:
                features = " and ".join(dict.fromkeys(missing.values()))
                texts.append(
                    f"{bridge}: {features}; pods that policies select are isolated from the bridge's other pods"
                )
        if self.hooks.unseen and self._missing is not None:
            texts.append(
                f"{', '.join(sorted(self.hooks.unseen))}: the kernel has no {FEATURE}; source addresses are not checked"
            )
        if self.hooks.failure and texts:
            texts.append(self.hooks.failure)
        return "; ".join(texts)

    def look(self) -> bool:
        """Reads the kernel; returns whether netfilter of a bridge was turned on or off, or ports without a pod changed.
        Raises: KernelError.
        """
        unseen = self.hooks.read(self.hooks.unseen)
        return unseen != self.hooks.unseen or self.hooks.unknown_ports(self.attached()) != tuple(
            port for port in self._held or () if port.unknown
        )

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None) -> Written:
        """Makes the kernel hold exactly the compiler's policies, and the bridge table.

        Raises: KernelError.
        """
        self._held = None
        return self._after(self._hold(compiler), self._plane.load(compiler, devices, facts))

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: PolicyDelta, facts: PolicyFacts | None = None
    ) -> Written:
        """Writes a change of the compiler.

        Raises: KernelError.
        """
        return self._after(self._hold(compiler), self._plane.update(compiler, devices, delta, facts))

    def heal(self) -> Written:
        """Restores state that another program changed.

        Raises: KernelError.
        """
        self._held = None
        own = self._hold(self._compiler) if self._compiler is not None else ()
        return self._after(own, self._plane.heal())

    def _after(self, own: Written, written: Written) -> Written:
        """The changes to the bridge table and those of the data plane.

        Raises: Unsupported when pods have to be isolated and the kernel has no bridge tables.
        """
        isolated = [port.name for port in self._held or () if port.isolated and not port.unknown]
        if self._missing is not None and isolated:
            detail = f"cannot enforce policies between pods of one bridge: {self.problem}"
            raise Unsupported(FEATURE, self._missing.minimum, detail)
        return (*own, *written)

    def _hold(self, compiler: Compiler) -> Sequence[Transaction]:
        self._compiler = compiler
        pods = [pod for pod in self.attached() if pod.port]
        self.hooks.unseen = self.hooks.read({pod.device for pod in pods})
        if self.enable_netfilter and any(self.hooks.unseen.values()):
            self.hooks.enable()
        known = (self.hooks.port(pod, compiler) for pod in pods)
        ports = (*sorted(known, key=lambda port: port.name), *self.hooks.unknown_ports(self.attached()))
        transaction = None
        if ports != self._held:
            transaction = self._apply(ports)
            self._held = ports
        self.report(self.problem)
        return (transaction,) if transaction else ()

    def _apply(self, ports: tuple[BridgePort, ...]) -> Transaction | None:
        """Commits the difference to the last committed table, or to the kernel's table when that is not known."""
        if self._nft is None:
            return None
        want = table(ports)
        have = table(self._held) if self._held else self._nft.read(FAMILY, TABLE)
        if want is None and have is None:
            return None
        transaction = diff(have, want) if want is not None else removal(FAMILY, TABLE)
        try:
            self._nft.commit(transaction)
        except Unsupported as missing:
            self._missing = missing
            return None
        except KernelError:
            self._held = None
            raise
        self._missing = None
        return transaction

    def fileno(self) -> int:
        """A descriptor that is readable when :meth:`disturbed` should be called."""
        return self._events.fileno()

    def locked(self) -> bool:
        """Whether another process holds the lock that a change takes."""
        return isinstance(self._plane, Locking) and self._plane.locked()

    def disturbed(self) -> bool:
        """Whether another program may have changed the rules of this data plane."""
        changed = self._monitor.changed() if self._monitor is not None else ()
        own = ("", "") in changed or (FAMILY, TABLE) in changed
        return self._plane.disturbed() or own

    def hit(self, prefix: str) -> RuleHit | None:
        """The rule that logs packets with a prefix; None: the rule is unknown or was deleted long ago."""
        return self._plane.hit(prefix)

    def counts(self) -> tuple[Counted, ...]:
        """The counts of all rules.

        Raises: KernelError.
        """
        return self._plane.counts()

    def desired(self) -> tuple[Table, ...]:
        """The tables that the kernel should hold."""
        own = table(self._held or ()) if self._missing is None else None
        return (*self._plane.desired(), *((own.canonical(),) if own is not None else ()))

    def remove(self) -> None:
        """Deletes all rules and sets from the kernel.

        Raises: KernelError.
        """
        self._plane.remove()
        if self._nft is not None:
            self._nft.delete(FAMILY, TABLE)
        self._held = None

    def close(self) -> None:
        """Closes the sockets to the kernel; the rules stay in force."""
        self._events.close()
        self._plane.close()
        for resource in (self._nft, self._monitor, self.hooks):
            if resource is not None:
                resource.close()


def clear(netns: NetnsPath = None) -> bool:
    """Deletes the bridge table that an earlier run left; returns whether there was one.

    Raises: KernelError.
    """
    with Nft(netns) as nft:
        exists = (FAMILY, TABLE) in nft.tables()
        nft.delete(FAMILY, TABLE)
    return exists
