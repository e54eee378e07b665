"""Keeps the kernel's rules and routes for the node's own DNS server current.

Guarantees: 1. nothing is written before the policies of the node are in force; what an earlier process wrote stays, but
for pods that a policy selects; 2. a pod that an egress policy begins to select is taken out before the policy is in
force; when the kernel refuses that, the tables are deleted, and when it refuses that too, the policies are not in force
either; 3. rules are written after the route that they need, and deleted before it; 4. rules that another program
changes are restored within a second, routes within :data:`CHECK_S`; 5. where a device has the Service address (IPVS, or
another node-local server), there are no rules.

The process is not on the path of a query: when it is killed, everything stays in force.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from podwire.dns.nodelocal.plan import (
    CLIENTS,
    FAMILIES,
    OWNER,
    TABLE,
    clients_set,
    family_of,
    occupied,
    plan_routes,
    plan_table,
    reachable,
)
from podwire.errors import KernelError, Unsupported
from podwire.kernel import network
from podwire.kernel.monitor import Event, Monitor
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.kernel.nft_drift import TableWatch
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.workqueue import wait_first
from podwire.state.network import NetworkState
from podwire.state.nft import AbsentTable, Table
from podwire.state.nft_diff import DeleteElements, Transaction
from podwire.state.value import StateValue

CHECK_S = 30.0
_SETTLE_S = 0.05
_NOT_USED = "the node's own DNS server is not used"

FreePods = Mapping[str, tuple[str, ...]]
"""The addresses of pods to which no egress policy applies, by device."""


class NodeLocalRules:
    """The rules on one node.

    ``addresses`` returns the addresses of the DNS Service (None: not known yet), ``sources`` those of the node (empty:
    not known yet); ``report`` gets the problem, or empty text.
    """

    def __init__(
        self, clock: Clock, addresses: Callable[[], Sequence[str] | None], sources: Callable[[], Sequence[str]]
    ) -> None:
        self._clock = clock
        self._addresses = addresses
        self._sources = sources
        self._log = Log("dns.nodelocal")
        self._wake = asyncio.Event()
        self._free: FreePods | None = None
        """None until policies were in force once, and while the kernel refuses to take out pods."""
        self.report: Callable[[str], None] = lambda _problem: None
        self.desired: tuple[StateValue, ...] = ()
        """What the kernel should hold."""
        self.switched = asyncio.Event()
        """Set when there are rules for the first time, or none any more."""

    # -- what policies say

    def narrow(self, free: FreePods) -> None:
        """Takes out pods that are not among ``free``; to be called before their policies are in force.

        Raises: KernelError when the kernel refuses it; the tables may be gone then.
        """
        before, self._free = self._free, None if self._free is None else _common(self._free, free)
        if before is not None and before == self._free:
            return
        try:
            with Nft() as nft:
                self._narrow_kernel(nft, free)
        except KernelError:
            self._free = None  # The rules may still have these pods: the next call has to take them out.
            raise

    def _narrow_kernel(self, nft: Nft, free: FreePods) -> None:
        try:
            for family in FAMILIES:
                self._take_out(nft, family, free)
        except KernelError as failure:
            self._log.error("cannot take pods out of the rules; deleting the rules", failure=failure)
            for family in FAMILIES:
                nft.delete(family, TABLE)
            self._wake.set()

    def _take_out(self, nft: Nft, family: str, free: FreePods) -> None:
        present = nft.read(family, TABLE)
        if present is None:
            return
        allowed = clients_set(family, free).elements
        for declared in present.sets:
            surplus = {key: element for key, element in declared.elements.items() if key not in allowed}
            if declared.name == CLIENTS and surplus:
                nft.commit(Transaction(family, TABLE, (DeleteElements(declared, surplus),)))

    def widen(self, free: FreePods) -> None:
        """Lets these pods and no others reach the server; to be called when the policies are in force."""
        if free != self._free:
            self._free = dict(free)
            self._wake.set()

    # -- the kernel

    def changed(self) -> None:
        """Writes what follows from other addresses of the Service or the node."""
        self._wake.set()

    async def run(self) -> None:
        """Keeps the kernel's rules and routes current until cancelled; they stay."""
        watch: TableWatch | None = None
        try:
            with Monitor(subjects=("link", "address")) as monitor:
                monitor.attach(self._devices_changed)
                while True:
                    self._wake.clear()
                    try:
                        if watch is None:
                            watch = TableWatch()
                            watch.attach(self._wake.set)
                        self.report(self._keep(watch))
                    except KernelError as failure:
                        self.report(f"{_NOT_USED}, the cluster's servers answer: {failure}")
                    await wait_first(self._wake, self._clock.sleep(CHECK_S))
                    await self._clock.sleep(_SETTLE_S)
        finally:
            if watch is not None:
                watch.close()

    def _devices_changed(self, events: Sequence[Event]) -> None:
        if any(event.kind in ("address", "lost") for event in events):
            self._wake.set()

    def _keep(self, watch: TableWatch) -> str:
        """Makes the kernel hold what it should; returns why it holds no rules, or empty text.

        Raises: KernelError.
        """
        free, known, sources, problem = self._free, self._addresses(), self._sources(), ""
        if free is None or known is None or not sources:
            return ""
        addresses = reachable(known, sources)
        if missing := [address for address in known if address not in addresses]:
            problem = f"{_NOT_USED} at {missing[0]}: the node has no address of this family"
        with Netlink() as netlink, Nft() as nft:
            conflict, device = occupied(addresses, network.read_paths(netlink)) if addresses else ("", "")
            if conflict:
                addresses = ()
                problem = f"{_NOT_USED}: the device {device} has its address {conflict}"
            tables = {family_of(address): plan_table(address, free) for address in addresses}
            routes = plan_routes(addresses, sources)
            for family in FAMILIES:
                if family not in tables:
                    nft.delete(family, TABLE)
            network.apply(netlink, routes, OWNER).check()
            for table in tables.values():
                nft.apply(table)
        before, self.desired = self.desired, (routes, *tables.values()) if tables else ()
        if bool(before) != bool(self.desired):
            self.switched.set()
        watch.expect(_expected(tables))
        return problem

    def samples(self) -> dict[str, int]:
        """How many queries over UDP and connections over TCP the rules led to the server, by chain."""
        sums: dict[str, int] = {}
        for value in self.desired:
            if not isinstance(value, Table):
                continue
            try:
                with Nft() as nft:
                    counted = nft.counters(value.family, TABLE)
            except KernelError:
                continue
            for chain, (packets, _) in counted.items():
                sums[chain] = sums.get(chain, 0) + packets
        return sums


def remove_rules() -> None:
    """Removes the rules and routes of an earlier agent, if there are any; a kernel without nf_tables has none.

    Raises: KernelError.
    """
    try:
        with Nft() as nft:
            present = [family for family, name in nft.tables() if name == TABLE]
            for family in present:
                nft.delete(family, TABLE)
    except Unsupported:
        return
    if present:
        with Netlink() as netlink:
            network.apply(netlink, NetworkState(), OWNER).check()


def _common(before: FreePods, free: FreePods) -> FreePods:
    return {device: own for device, own in before.items() if free.get(device) == own}


def _expected(tables: Mapping[str, Table]) -> list[Table | AbsentTable]:
    return [tables.get(family) or AbsentTable(family, TABLE) for family in FAMILIES]
