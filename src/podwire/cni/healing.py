"""Restores pods' routes, neighbours, devices, sysctls and hostPorts that another program changed.

1. A deleted or changed route, neighbour, forwarding entry or rule of a pod, a changed or deleted device, a changed
sysctl that the kernel reports, and an added or deleted address of the node are followed by a check after
:data:`HEAL_S`. 2. The next check is :data:`HEAL_REST_S` later, so many new and deleted pods cost one check a second.
3. What the kernel refuses (a route from an address that the node has lost) is tried again with a backoff from 0.2 s to
10 s, and at once when an address is added. 4. The hostPort table and the source guards of pods are compared each second
in which nftables changed (:mod:`podwire.kernel.nft_drift`). 5. Sysctls whose changes the kernel does not report
are compared every :data:`COMPARE_S` (:mod:`podwire.cni.podsysctls`).

Not restored: what a program in a pod changes of routes, addresses and neighbours in its own namespace.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from podwire.cni.plumbing import KernelPlumber
from podwire.cni.repair import AttachmentRepair
from podwire.cni.wiring import OWNER
from podwire.errors import KernelError
from podwire.kernel.monitor import Event
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock

HEAL_S = 0.05
HEAL_REST_S = 1.0
COMPARE_S = 1.0
_ONE_ADDRESS = ("/32", "/128")
_NAMED = 4
"""Sysctls that a log line names."""


class PodHealing:
    """Restores the network of pods on the node's side."""

    def __init__(self, plumber: KernelPlumber, repair: AttachmentRepair, clock: Clock, log: Log) -> None:
        self._plumber = plumber
        self._clock = clock
        self._log = log
        self.repair = repair
        self.disturbed = asyncio.Event()
        """Set when something that pods need may have changed."""
        self.check_sysctls = True
        """Whether the next check includes all sysctls of the node's namespace."""

    async def run(self) -> None:
        """Restores routes, neighbours, devices and sysctls of pods after changes by other programs, until cancelled."""
        backoff = Backoff(0.2, 10.0)
        logged = ""
        with self._plumber.watch() as monitor:
            monitor.attach(self._changed)
            guards = self._plumber.guards
            self._plumber.ports.table.watch(partial(self._heal_table, "hostPorts", self.repair.heal_ports))
            guards.bridge.watch(partial(self._heal_table, "bridge guard", self.repair.heal_guard))
            guards.devices.watch(partial(self._heal_table, "source guard", self.repair.heal_sources))
            while True:
                await self.disturbed.wait()
                await self._clock.sleep(HEAL_S)
                self.disturbed.clear()
                sysctls, self.check_sysctls = self.check_sysctls, False
                failed = self.repair.heal(sysctls=sysctls)
                problem = f"{failed[0]}, and {len(failed) - 1} more" if failed else ""
                if problem and problem != logged:
                    self._log.warning("cannot restore the network of all pods; trying again", problem=problem)
                logged = problem
                if not problem:
                    backoff.reset()
                    await self._clock.sleep(HEAL_REST_S)
                    continue
                self.check_sysctls = True
                if not await self._disturbed_within(backoff.next_delay_s()):
                    self.disturbed.set()

    async def compare_sysctls(self) -> None:
        """Restores sysctls of pods whose changes the kernel does not report, until cancelled."""
        logged = ""
        while True:
            await self._clock.sleep(COMPARE_S)
            restored = self.repair.restore_sysctls()
            if restored.values:
                names = ", ".join(value.path for value in restored.values[:_NAMED])
                self._log.info("restored sysctls of pods", sysctls=names, count=len(restored.values))
            problem = restored.failures[0] if restored.failures else ""
            if problem and problem != logged:
                self._log.warning("cannot restore the sysctls of all pods; trying again", problem=problem)
            logged = problem

    async def _disturbed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self.disturbed.wait()
        except TimeoutError:
            return False

    def _heal_table(self, name: str, heal: Callable[[], None]) -> None:
        try:
            heal()
        except KernelError as failure:
            self._log.warning("cannot restore a table of pods; trying again", table=name, problem=failure)
        else:
            self._log.info("restored a table of pods after a change by another program", table=name)

    def _changed(self, events: Sequence[Event]) -> None:
        if any(map(self._concerns_pods, events)):
            self.check_sysctls = self.check_sysctls or any(event.kind in ("sysctl", "lost") for event in events)
            self.disturbed.set()

    def _concerns_pods(self, event: Event) -> bool:
        """Whether an event may have deleted or changed something that pods need.

        Routes that go with their device or with their source address are not announced (net/ipv4/fib_trie.c,
        ``fib_table_flush``): the device or the address is. A neighbour that another program changes keeps the mark.
        """
        own = event.proto == OWNER.route_protocol
        if event.kind == "neighbour":
            return self.repair.has_bridge(event.bridge) if event.bridge else own
        if event.kind == "rule":
            return event.removed and own
        if event.kind == "route" and not event.removed:
            return event.dst.endswith(_ONE_ADDRESS) and self.repair.has_address(event.dst.partition("/")[0])
        return own or event.kind != "route"
