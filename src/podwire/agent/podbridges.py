"""Connects the isolation of pods on bridges with the attached pods, metrics and degraded modes of the agent."""

from contextlib import suppress

from podwire.agent.shared import Shared
from podwire.cluster.degraded import BRIDGE_NOT_SEEN
from podwire.cluster.podbridge import BRIDGE
from podwire.errors import KernelError
from podwire.policy.bridges.dataplane import BridgeIsolation
from podwire.policy.runner import Enforcement

CHECK_S = 2.0
"""How often the bridge of podwire's own pods is checked: the kernel sends no event when netfilter is turned on."""


def connect(shared: Shared, bridges: BridgeIsolation, enforcement: Enforcement) -> None:
    """Connects the isolation on bridges with the agent."""
    bridges.attached = lambda: tuple(enforcement.attached.values())
    bridges.routed = frozenset({BRIDGE})
    bridges.report = lambda text: shared.degraded.report("bridges", BRIDGE_NOT_SEEN, text and f"policy: {text}")
    shared.health.metrics["policy bridges"] = bridges.hooks.samples


def follow(shared: Shared, bridges: BridgeIsolation, enforcement: Enforcement) -> None:
    """Adds a task that checks the bridge of podwire's own pods, where nothing else checks bridges."""

    async def check() -> None:
        while True:
            await shared.clock.sleep(CHECK_S)
            with suppress(KernelError):  # The next check reads the kernel again.
                if bridges.look():
                    enforcement.look_again()

    shared.tasks["policy bridges"] = check
