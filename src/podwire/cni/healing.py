"""Restores pods' routes, neighbours, devices, sysctls and hostPorts that another program changed.

1. A deleted route or neighbour of a pod, a changed device or sysctl, and an added or deleted address of the node are
followed by a check after :data:`HEAL_S`. 2. The next check is :data:`HEAL_REST_S` later, so many new and deleted pods
cost one check a second. 3. What the kernel refuses (a route from an address that the node has lost) is tried again with
a backoff from 0.2 s to 10 s, and at once when an address is added. 4. The hostPort table and the source guards of
pods are compared each second in which nftables changed (:mod:`podwire.kernel.nft_drift`). 5. State without change
events (some sysctls) is checked when ``check_sysctls`` is set, which the sweep of :mod:`podwire.cni.service` does.
"""

import asyncio
from collections.abc import Sequence

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
        """Whether the next check includes state without change events."""

    async def run(self) -> None:
        """Restores routes, neighbours, devices and sysctls of pods after changes by other programs, until cancelled."""
        backoff = Backoff(0.2, 10.0)
        logged = ""
        with self._plumber.watch() as monitor:
            monitor.attach(self._changed)
            self._plumber.ports.table.watch(self._heal_ports)
            self._plumber.guards.bridge.watch(self._heal_guard)
            self._plumber.guards.devices.watch(self._heal_sources)
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

    async def _disturbed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self.disturbed.wait()
        except TimeoutError:
            return False

    def _heal_ports(self) -> None:
        try:
            self.repair.heal_ports()
        except KernelError as failure:
            self._log.warning("cannot restore the hostPorts of pods; trying again", problem=failure)
        else:
            self._log.info("restored the hostPorts of pods after a change by another program")

    def _heal_guard(self) -> None:
        try:
            self.repair.heal_guard()
        except KernelError as failure:
            self._log.warning("cannot restore the source guard of the bridge of pods; trying again", problem=failure)
        else:
            self._log.info("restored the source guard of the bridge of pods after a change by another program")

    def _heal_sources(self) -> None:
        try:
            self.repair.heal_sources()
        except KernelError as failure:
            self._log.warning("cannot restore the source guard of pods; trying again", problem=failure)
        else:
            self._log.info("restored the source guard of pods after a change by another program")

    def _changed(self, events: Sequence[Event]) -> None:
        if any(_concerns_pods(event) for event in events):
            self.check_sysctls = self.check_sysctls or any(event.kind in ("sysctl", "lost") for event in events)
            self.disturbed.set()


def _concerns_pods(event: Event) -> bool:
    """Whether an event may have deleted or changed something that pods need.

    Routes that go with their device or with their source address are not announced (net/ipv4/fib_trie.c,
    ``fib_table_flush``): the device or the address is.
    """
    if event.kind in ("route", "neighbour"):
        return event.removed and event.proto == OWNER.route_protocol
    return True
