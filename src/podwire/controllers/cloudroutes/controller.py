"""The loop that keeps a cloud's route tables: a route to each node's pods, and the condition of each Node.

Guarantees, besides those of :mod:`podwire.controllers.cloudroutes.loop`: 1. a Node that appears, disappears or changes
its pod CIDRs, its addresses or its instance is followed by a run; 2. ``NetworkUnavailable`` of a Node is False
(``RouteCreated``) once all its routes are there, and True with the reason while one is missing; a Node keeps its
condition while the cloud cannot be asked, or while it uses another backend; 3. each problem of a Node is an Event.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from podwire.cluster.names import NODE_ROUTING
from podwire.controllers.cloudroutes.execution import SyncOutcome, carry_out
from podwire.controllers.cloudroutes.loop import CloudLoop
from podwire.controllers.cloudroutes.plan import CloudNode, plan
from podwire.controllers.cloudroutes.provider import CloudProvider, Network
from podwire.errors import CloudError, NotFound
from podwire.kube.client import STRATEGIC_MERGE_PATCH
from podwire.kube.controller import API_FAILURES, Environment
from podwire.kube.events import reference
from podwire.kube.resources import NODES
from podwire.model.node import Node
from podwire.runtime.clock import rfc3339
from podwire.runtime.supervise import Supervisor

BACKEND = "cloudroutes"
COMPONENT = "podwire-cloudroutes"
CONDITION = "NetworkUnavailable"
READY, NOT_READY = "RouteCreated", "NoRouteCreated"


class CloudRoutesController:
    """Routes of a cloud; without a provider it does nothing. ``networks`` are the cluster's pod networks."""

    def __init__(
        self,
        environment: Environment,
        provider: CloudProvider | None,
        networks: Sequence[Network] = (),
        namespace: str = "kube-system",
    ) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._log = environment.log
        self._provider = provider
        self._networks = tuple(networks)
        self._nodes = environment.of(NODES)
        self._events = environment.recorder(COMPONENT)
        self._loop = CloudLoop(self._clock, self._events, namespace)
        if provider is not None:
            self._nodes.subscribe(self._changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        if self._provider is not None:
            supervisor.start("cloudroutes", lambda: self._loop.run(self.synchronize))

    def _changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or _facts(old) != _facts(new):
            self._loop.changed.set()

    async def synchronize(self) -> SyncOutcome:
        """One run: reads the cloud, makes the changes, writes conditions and Events."""
        assert self._provider is not None
        nodes = [self._node(node) for node in self._nodes.objects.values()]
        try:
            state = await asyncio.to_thread(self._provider.read, {node.instance for node in nodes if node.instance})
            planned = plan(nodes, state, self._networks)
        except CloudError as failure:
            outcome = SyncOutcome({node.name: str(failure) for node in nodes if node.networks}, (), 0, str(failure))
        else:
            outcome = await carry_out(self._provider, planned, self._log)
        self._loop.report(outcome)
        for node in nodes:
            if node.networks:
                try:
                    await self._write(node.name, outcome)
                except API_FAILURES as failure:
                    self._log.warning("cannot write the condition of a Node", node=node.name, problem=failure)
        return outcome

    def _node(self, node: Node) -> CloudNode:
        assert self._provider is not None
        instance, problem = "", ""
        try:
            instance = self._provider.instance(node.spec.provider_id)
        except ValueError as wrong:
            problem = str(wrong)
        return CloudNode(
            name=node.metadata.name,
            instance=instance,
            addresses=node.internal_ips,
            networks=node.pod_networks if node.metadata.deletion_timestamp is None else (),
            problem=problem,
        )

    async def _write(self, name: str, outcome: SyncOutcome) -> None:
        """Writes the condition of a Node where it differs, and an Event for a problem."""
        node = self._nodes.get(name)
        if node is None:
            return
        problem = outcome.problems.get(name, "")
        present = next((condition for condition in node.status.conditions if condition.type == CONDITION), None)
        if problem and outcome.unavailable and present is not None:
            return  # Nothing new is known about this Node.
        if not problem:
            desired = ("False", READY, "the cloud routes to the node's pods")
            differs = present is None or present.status != "False"
        elif node.metadata.annotations.get(NODE_ROUTING, BACKEND) != BACKEND:
            return  # Another backend carries the packets of this node still, and its agent writes the condition.
        else:
            desired = ("True", NOT_READY, problem)
            differs = present is None or (present.status, present.message) != ("True", problem)
        if not differs:
            return
        if problem:
            subject = reference("v1", "Node", node.metadata)
            self._events.event(
                subject, "Warning", "FailedToCreateRoute", f"no route to the pods of this node: {problem}"
            )
        try:
            body = {"status": {"conditions": [self._condition(desired)]}}
            await self._client.patch(NODES, name, body, patch_type=STRATEGIC_MERGE_PATCH, subresource="status")
        except NotFound:
            return

    def _condition(self, desired: tuple[str, str, str]) -> Mapping[str, Any]:
        status, reason, message = desired
        now = rfc3339(self._clock.now())
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        return {"type": CONDITION, "status": status, "reason": reason, "message": message, **times}


def _facts(node: Node) -> tuple[object, ...]:
    """The fields of a Node on which routes and conditions depend."""
    conditions = [(c.status, c.reason) for c in node.status.conditions if c.type == CONDITION]
    return (
        node.spec.provider_id,
        node.pod_cidrs,
        node.internal_ips,
        node.metadata.annotations.get(NODE_ROUTING),
        node.metadata.deletion_timestamp is None,
        conditions,
    )
