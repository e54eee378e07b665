"""The gates of a step: conditions before it, and after each of its waves.

A gate that does not hold in time is a breach (:class:`Breach`), which rolls the step back. Connections are tried by
short pods on the nodes of the wave; flows are counted by whoever implements :class:`LossGate`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from podwire.errors import ClusterError
from podwire.flows.proof import ObjectDiff
from podwire.upgrade.apply.objects import UpgradeObjects
from podwire.upgrade.plan.values import Gate, UpgradePlan, UpgradeStep
from podwire.upgrade.verify.checks import CheckKind, ConnectionCheck
from podwire.upgrade.verify.stage import VerifyStage, take_down

_CHECKS: tuple[tuple[Gate, tuple[CheckKind, ...]], ...] = (
    ("pods", ("pod",)),
    ("services", ("service", "nodeport")),
    ("dns", ("dns",)),
)
NODE_READY_S = 120


class Breach(ClusterError):
    """A gate of a step does not hold."""


class LossGate(Protocol):
    """Counts the losses of flows that run during the upgrade."""

    def describe(self, objects: Iterable[ObjectDiff]) -> None:
        """Sets what the steps of the run change, for its proof."""
        ...

    async def begin(self) -> None:
        """Starts the flows, unless they run."""
        ...

    async def losses(self) -> list[str]:
        """The losses beyond the budget since the flows began, in words; empty when there are none."""
        ...

    async def end(self) -> None:
        """Ends the flows."""
        ...


class Gates:
    """The gates of one run; ``stage`` None: connections are not tried; ``flows`` None: losses are not counted."""

    def __init__(self, objects: UpgradeObjects, stage: VerifyStage | None, flows: LossGate | None) -> None:
        self._objects = objects
        self._stage = stage
        self._flows = flows

    async def set_up(self, nodes: Sequence[str]) -> None:
        """Prepares what the gates use; the first breach could otherwise be the gate's own."""
        if self._stage is not None:
            await self._stage.set_up(nodes, checked_kinds())
        if self._flows is not None:
            await self._flows.begin()

    async def take_down(self) -> None:
        """Removes what the gates used."""
        try:
            if self._flows is not None:
                await self._flows.end()
        finally:
            await take_down(self._objects.client, self._objects.namespace)

    async def before(self, step: UpgradeStep, plan: UpgradePlan) -> None:
        """The gates before a step.

        Raises: ClusterError naming an API server that is older than the plan's version.
        """
        if "api-servers" not in step.gates:
            return
        expected = minor_of(plan.to_version)
        for server, version in await self._objects.server_versions():
            if minor_of(version) < expected:
                problem = f"{server} has version {version}, expected {plan.to_version} on every API server first"
                raise ClusterError(f"step {step.id}: {problem}")

    async def after(self, step: UpgradeStep, nodes: Sequence[str]) -> None:
        """The gates after a wave of nodes.

        Raises: Breach.
        """
        if "node-ready" in step.gates:
            await self._ready(nodes)
        kinds = tuple(kind for gate, checked in _CHECKS if gate in step.gates for kind in checked)
        if self._stage is not None and kinds:
            problems = [text for result in await self._stage.check(nodes, kinds) for text in result.problems()]
            if problems:
                raise Breach(f"step {step.id}: {'; '.join(problems)}")
        if self._flows is not None and "flows" in step.gates and (losses := await self._flows.losses()):
            raise Breach(f"step {step.id}: {'; '.join(losses)}")

    async def name_server(self, step: UpgradeStep, node: str, address: str, name: str) -> None:
        """Whether a name server answers at an address, before it serves anyone.

        Raises: Breach.
        """
        if self._stage is None:
            return
        check = ConnectionCheck(
            kind="server", transport="dns", target=f"the new name server {address}", address=address, port=53,
            expected=name,
        )  # fmt: skip
        result = await self._stage.attempt(node, [check])
        if problems := list(result.problems()):
            raise Breach(f"step {step.id}: {'; '.join(problems)}")

    async def _ready(self, nodes: Sequence[str]) -> None:
        async def ready() -> bool:
            present = await self._objects.nodes()
            return all(present.get(node, True) for node in nodes)

        try:
            await self._objects.runs.until(ready, f"not every node of {', '.join(nodes)} is Ready", NODE_READY_S)
        except ClusterError as failure:
            raise Breach(str(failure)) from failure


def checked_kinds() -> tuple[CheckKind, ...]:
    """The kinds of connections that gates try."""
    return tuple(kind for _, kinds in _CHECKS for kind in kinds)


def minor_of(version: str) -> tuple[int, int]:
    """Major and minor of a version such as ``v1.36.2`` or ``1.36``; zeros where there are none."""
    matched = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(matched[1]), int(matched[2])) if matched else (0, 0)
