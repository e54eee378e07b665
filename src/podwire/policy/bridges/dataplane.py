"""A policy data plane for nodes whose pods may be ports of bridges: another data plane plus a bridge table.

1. Where no pod is a port of a bridge, nothing is written about bridges. 2. Every change, and every call of
:meth:`BridgeIsolation.look`, checks whether the hooks of IP see packets between the ports of a bridge
(``br_netfilter``). While they do not, pods that policies select are cut off from the other ports, ports without a known
pod are cut off too, and the problem names the bridge. 3. With ``show``, ``br_netfilter`` is turned on, for the bridges
of pods alone. 4. Where the kernel has no tables for bridges, the source address of each port is not checked, which is
reported; a change that would have to cut off a pod fails.
"""

import select
from collections.abc import Callable, Iterable, Mapping, Sequence

from podwire.dataplane.plane import Written
from podwire.errors import KernelError, Unsupported
from podwire.kernel import bridges
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.kernel.nft import Nft
from podwire.kernel.nft_socket import NftMonitor
from podwire.policy.bridges.layout import FAMILY, TABLE, Port, table
from podwire.policy.compile import Compiler, Delta
from podwire.policy.dataplane import Locking, PolicyDataPlane, PolicyFacts
from podwire.policy.runner import AttachedPod
from podwire.policy.status.counts import Counted
from podwire.policy.verdicts import RuleHit
from podwire.state.nft import Table
from podwire.state.nft_diff import Transaction, diff, removal

FEATURE = "nftables tables of the family bridge"


class BridgeIsolation:
    """``plane`` enforces policies; this one keeps pods of one bridge apart in one network namespace."""

    def __init__(self, plane: PolicyDataPlane, netns: NetnsPath = None) -> None:
        self._plane = plane
        self._netlink = Netlink(netns)
        self._both = select.epoll()
        self._both.register(plane.fileno(), select.EPOLLIN)
        self._nft: Nft | None = None
        self._monitor: NftMonitor | None = None
        self._missing: Unsupported | None = None
        self._open(netns)
        self._compiler: Compiler | None = None
        self._held: tuple[Port, ...] | None = None
        self._failure = ""
        self.attached: Callable[[], Iterable[AttachedPod]] = tuple
        """The pods that are there."""
        self.show = False
        """Whether to turn on what is missing."""
        self.told: Callable[[str], None] = lambda _: None
        """Hears what is not as it should be, with every change."""
        self.unseen: dict[str, dict[str, str]] = {}
        """By bridge and family: why packets between its ports are not seen; empty: they are."""

    def _open(self, netns: NetnsPath) -> None:
        try:
            self._nft = Nft(netns)
            self._monitor = NftMonitor(netns, (self._nft.port,))
        except Unsupported as missing:
            self._missing = missing
        else:
            self._both.register(self._monitor.fileno(), select.EPOLLIN)

    @property
    def name(self) -> str:
        """That of the data plane for everything else."""
        return self._plane.name

    @property
    def problem(self) -> str:
        """What is not as it should be, by name; empty when all is well."""
        texts = []
        for bridge, missing in sorted(self.unseen.items()):
            if missing:
                words = " and ".join(dict.fromkeys(missing.values()))
                texts.append(f"{bridge}: {words}; pods that policies select are cut off from its other pods")
        if self.unseen and self._missing is not None:
            texts.append(f"{', '.join(sorted(self.unseen))}: the kernel has no {FEATURE}; sources are not checked")
        if self._failure and texts:
            texts.append(self._failure)
        return "; ".join(texts)

    def look(self) -> bool:
        """Whether packets between ports are seen otherwise than before, or there are other ports where they are not.

        Raises: KernelError.
        """
        found = self._look(self.unseen)
        return found != self.unseen or self._strangers() != tuple(port for port in self._held or () if port.stranger)

    def _look(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        found = {}
        for bridge in names:
            try:
                found[bridge] = bridges.unseen(self._netlink, bridge)
            except KernelError:
                continue
        return found

    def load(self, compiler: Compiler, devices: Mapping[str, str], facts: PolicyFacts | None = None) -> Written:
        """Makes the kernel hold exactly what the compiler says, and the bridges' table.

        Raises: KernelError.
        """
        self._held = None
        return self._after(self._hold(compiler), self._plane.load(compiler, devices, facts))

    def update(
        self, compiler: Compiler, devices: Mapping[str, str], delta: Delta, facts: PolicyFacts | None = None
    ) -> Written:
        """Takes over a change.

        Raises: KernelError.
        """
        return self._after(self._hold(compiler), self._plane.update(compiler, devices, delta, facts))

    def heal(self) -> Written:
        """Restores what another program changed.

        Raises: KernelError.
        """
        self._held = None
        own = self._hold(self._compiler) if self._compiler is not None else ()
        return self._after(own, self._plane.heal())

    def _after(self, own: Written, done: Written) -> Written:
        """What both have done.

        Raises: Unsupported when pods cannot be shut off that have to be; everything else is done.
        """
        shut = [port.name for port in self._held or () if port.shut and not port.stranger]
        if self._missing is not None and shut:
            detail = f"cannot enforce policies between pods of one bridge: {self.problem}"
            raise Unsupported(FEATURE, self._missing.minimum, detail)
        return (*own, *done)

    def _hold(self, compiler: Compiler) -> Sequence[Transaction]:
        self._compiler = compiler
        pods = [one for one in self.attached() if one.port]
        self.unseen = self._look({one.device for one in pods})
        if self.show and any(self.unseen.values()):
            self._show()
        known = (self._port(one, compiler) for one in pods)
        ports = (*sorted(known, key=lambda port: port.name), *self._strangers())
        transaction = None
        if ports != self._held:
            transaction = self._apply(ports)
            self._held = ports
        self.told(self.problem)
        return (transaction,) if transaction else ()

    def _port(self, one: AttachedPod, compiler: Compiler) -> Port:
        pod = compiler.pods.get(one.pod)
        selected = pod is not None and (pod.ingress is not None or pod.egress is not None)
        shut = frozenset(self.unseen.get(one.device, ())) if selected else frozenset[str]()
        return Port(name=one.port, addresses=one.addresses, shut=shut)

    def _strangers(self) -> tuple[Port, ...]:
        """The ports of nobody who is known, of bridges whose packets are not seen: the hooks of IP do not stop them."""
        blind = {bridge: frozenset(missing) for bridge, missing in self.unseen.items() if missing}
        if not blind:
            return ()
        known = {one.port for one in self.attached()}
        wires = (wire for wire in bridges.read_wires(self._netlink) if wire.bridge in blind and wire.name not in known)
        ports = (Port(name=wire.name, addresses=(), shut=blind[wire.bridge], stranger=True) for wire in wires)
        return tuple(sorted(ports, key=lambda port: port.name))

    def _show(self) -> None:
        """Turns on what is missing; what cannot be is said with the problem."""
        lacking = {why for missing in self.unseen.values() for why in missing.values()}
        try:
            if not self._failure and any(bridges.MODULE in why for why in lacking):
                bridges.load_module()  # once: a machine that does not have it will not have it a moment later
            for bridge, missing in self.unseen.items():
                if missing:
                    bridges.show(self._netlink, bridge)
        except KernelError as failure:
            self._failure = failure.detail or str(failure)
        self.unseen = self._look(self.unseen)

    def _apply(self, ports: tuple[Port, ...]) -> Transaction | None:
        """Commits what differs from what is held; where that is not known, from what the kernel holds."""
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
        """Readable when :meth:`disturbed` should be asked."""
        return self._both.fileno()

    def locked(self) -> bool:
        """Whether somebody holds a lock that a change takes."""
        return isinstance(self._plane, Locking) and self._plane.locked()

    def disturbed(self) -> bool:
        """Whether another program may have changed what this data plane holds."""
        changed = self._monitor.changed() if self._monitor is not None else ()
        own = ("", "") in changed or (FAMILY, TABLE) in changed
        return self._plane.disturbed() or own

    def hit(self, prefix: str) -> RuleHit | None:
        """What a packet met that was logged with a prefix."""
        return self._plane.hit(prefix)

    def counts(self) -> tuple[Counted, ...]:
        """What rules have counted.

        Raises: KernelError.
        """
        return self._plane.counts()

    def desired(self) -> tuple[Table, ...]:
        """What the kernel should hold."""
        own = table(self._held or ()) if self._missing is None else None
        return (*self._plane.desired(), *((own.canonical(),) if own is not None else ()))

    def remove(self) -> None:
        """Takes all of it out of the kernel.

        Raises: KernelError.
        """
        self._plane.remove()
        if self._nft is not None:
            self._nft.delete(FAMILY, TABLE)
        self._held = None

    def close(self) -> None:
        """Closes the sockets to the kernel; what is in force stays."""
        self._both.close()
        self._plane.close()
        for each in (self._nft, self._monitor, self._netlink):
            if each is not None:
                each.close()


def clear(netns: NetnsPath = None) -> bool:
    """Removes what an earlier run left; returns whether there was anything.

    Raises: KernelError.
    """
    with Nft(netns) as nft:
        there = (FAMILY, TABLE) in nft.tables()
        nft.delete(FAMILY, TABLE)
    return there
