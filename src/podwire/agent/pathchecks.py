"""Constructs the checks of the paths between nodes: programs of others on the node, and the self-test."""

import asyncio
from collections.abc import Iterable
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from podwire.agent.neededports import needed_ports
from podwire.agent.shared import Shared
from podwire.cluster.announcer import node_condition
from podwire.cluster.degraded import CHECKSUMS_WRONG, FORWARD_BLOCKED, INPUT_BLOCKED, MTU_MISMATCH
from podwire.cni.wiring import HOST_MAC
from podwire.kernel import ethtool
from podwire.kernel.firewall_chains import FirewallChains
from podwire.kernel.pathprobe import PathProber
from podwire.observe.log import Log
from podwire.routing import hostfiles
from podwire.routing.backend import Backend
from podwire.routing.firewalls import FirewallPass
from podwire.routing.inputs import NeededPort
from podwire.routing.linkfiles import link_files
from podwire.routing.machine import KernelMachine
from podwire.routing.nodes import Network
from podwire.routing.plan import Plan
from podwire.routing.probes import EVERY_TUNNEL, PathResult, ProbeTarget, mismatches
from podwire.routing.router import Router
from podwire.routing.selftest import SelfTest
from podwire.routing.settings import RoutingSettings

CONDITION = "PodwireMTUMismatch"
LOOK_S = 5.0
"""The least time between two lists of targets: one of 1,000 peers takes 15 ms, and plans change often."""


def add(shared: Shared, router: Router, machine: KernelMachine) -> FirewallPass:
    """Adds both checks; returns the one whose rules are part of the node's state."""

    def networks() -> tuple[Network, ...]:
        return router.plan.sets.pod_networks if router.plan is not None else ()

    report = partial(shared.degraded.report, "firewalls", FORWARD_BLOCKED)
    report_inputs = partial(shared.degraded.report, "inputs", INPUT_BLOCKED)
    firewalls = FirewallPass(FirewallChains(), shared.clock, networks, report, report_inputs)
    firewalls.needs = NodePorts(shared, router).needed
    keep_link_files(shared)
    paths = PathReports(shared, router)
    router.own.plain_checksums = machine.plain_checksums()
    if ethtool.is_older_than_safe(release := ethtool.running_release()):
        router.own.plain_checksums |= {EVERY_TUNNEL}
        paths.report_checksums(f"Linux {release} is older than 5.7: checksums of tunnels are computed by the kernel")
    test = SelfTest(PathProber(), shared.clock, paths.targets, paths.is_plain, paths.report)
    shared.tasks |= {"firewalls": firewalls.run, "self-test": test.run, "path condition": paths.publish}
    return firewalls


class NodePorts:
    """The ports of this node that its firewalls must not close, by the settings as they are."""

    def __init__(self, shared: Shared, router: Router) -> None:
        self._shared = shared
        self._router = router
        self._loaded: tuple[RoutingSettings, Backend] | None = None

    def needed(self) -> tuple[NeededPort, ...]:
        """The ports; none while the Node is not known."""
        node, plan, settings = self._shared.own_node(), self._router.plan, self._router.settings
        if node is None or plan is None:
            return ()
        if self._loaded is None or self._loaded[0] is not settings:
            self._loaded = settings, settings.load()[settings.backend]
        versions = sorted({ip_address(address).version for address in node.internal_ips})
        return tuple(needed_ports(self._shared.config, self._loaded[1], plan.sets.pod_networks, versions))


def keep_link_files(shared: Shared) -> None:
    """Writes or deletes the files for programs that manage network devices, where the configuration names ``/etc``."""
    section, files = shared.config.link_files, link_files(HOST_MAC)
    if section.etc:
        change = hostfiles.write if section.enabled else hostfiles.remove
        for text in change(Path(section.etc), files):
            Log("agent").info("wrote the files for network managers", change=text)


class PathReports:
    """Publishes the results of the self-test of one node, and switches the checksum offload of tunnels off."""

    def __init__(self, shared: Shared, router: Router) -> None:
        self._shared = shared
        self._router = router
        self._changed = asyncio.Event()
        self._plan: Plan | None = None
        self._targets: tuple[ProbeTarget, ...] = ()
        """Those of the plan."""
        self._next_look = float("-inf")

    def targets(self) -> tuple[ProbeTarget, ...]:
        """The targets of a plan, which is :data:`LOOK_S` old at most; none where the test is switched off."""
        plan = self._router.plan
        if plan is None or not self._router.settings.self_test:
            return ()
        now = self._shared.clock.monotonic()
        if plan is not self._plan and now >= self._next_look:
            self._plan, self._targets, self._next_look = plan, plan.targets, now + LOOK_S
        return self._targets

    def is_plain(self, device: str) -> bool:
        """Whether the offload of a device is off or configured, so that it need not be tested."""
        plain = self._router.own.plain_checksums
        return device in plain or EVERY_TUNNEL in plain or self._router.settings.tx_checksum != "auto"

    def report(self, results: Iterable[PathResult]) -> None:
        """Takes the results of all targets that were tested so far."""
        known = list(results)
        text = mismatches(known)
        self._shared.degraded.report("mtu", MTU_MISMATCH, text)
        if text:
            condition = node_condition(CONDITION, "True", "PathTooNarrow", text)
        elif len(known) >= len(self.targets()):
            condition = node_condition(CONDITION, "False", "PathsCarryMTU", "all paths carry the MTU of pods")
        else:
            return
        self._shared.announcer.conditions[CONDITION] = condition
        self._changed.set()
        for result in known:
            device = result.target.device
            if not result.checksums and not self.is_plain(device):
                self._router.own.plain_checksums |= {device}
                self._router.changed()
                problem = f"packets in {device} arrive at {result.target.peer} with wrong checksums"
                self.report_checksums(f"{problem}: its checksum offload is off (ethtool -K {device} tx off)")

    def report_checksums(self, text: str) -> None:
        """Reports why a tunnel has no checksum offload."""
        self._shared.degraded.report("checksums", CHECKSUMS_WRONG, text)

    async def publish(self) -> None:
        """Writes the condition after each change, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._shared.announcer.insist({})
