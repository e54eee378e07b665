"""The loop that gives nodes interfaces and addresses of a cloud for their pods, and writes them to the Nodes.

Guarantees, besides those of :mod:`podwire.controllers.cloudroutes.loop`: 1. a Node or pod that appears, or disappears,
is followed by a run; 2. a Node has only addresses in its annotation that the cloud has assigned; an address that two
readings in a row lack is removed; 3. a Node that cannot have an address for each of its pods gets an Event.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping

from podwire.cluster.addresses import owns_addresses
from podwire.cluster.cloudinterfaces import NodeInterfaces, read_interfaces
from podwire.controllers.cloudaddresses.plan import AddressTargets, NodeDemand, plan
from podwire.controllers.cloudaddresses.provider import AddressProvider
from podwire.controllers.cloudroutes.execution import SyncOutcome, carry_out
from podwire.controllers.cloudroutes.loop import CloudLoop
from podwire.errors import CloudError, NotFound
from podwire.kube.client import MERGE_PATCH
from podwire.kube.controller import API_FAILURES, Environment
from podwire.kube.events import reference
from podwire.kube.resources import NODES, PODS
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.runtime.supervise import Supervisor

COMPONENT = "podwire-cloudaddresses"
REASON = "NoAddressForPods"


class CloudAddressesController:
    """Addresses of a cloud for pods; without a provider it does nothing."""

    def __init__(
        self,
        environment: Environment,
        provider: AddressProvider | None,
        targets: AddressTargets = AddressTargets(),  # noqa: B008
        namespace: str = "kube-system",
    ) -> None:
        self._client = environment.client
        self._log = environment.log
        self._provider = provider
        self._targets = targets
        self._problems: Mapping[str, str] = {}
        self._smaller: set[str] = set()
        """The nodes of which the last reading lacked addresses that they have in their annotations."""
        self._nodes = environment.of(NODES)
        self._events = environment.recorder(COMPONENT)
        self._loop = CloudLoop(environment.clock, self._events, namespace)
        if provider is not None:
            self._pods = environment.of(PODS)
            self._pods.subscribe(self._pod_changed)
            self._nodes.subscribe(self._node_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        if self._provider is not None:
            supervisor.start("cloudaddresses", lambda: self._loop.run(self.synchronize))

    def _node_changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.spec.provider_id != new.spec.provider_id:
            self._loop.changed.set()

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if old is None or new is None or old.spec.node_name != new.spec.node_name or old.finished != new.finished:
            self._loop.changed.set()

    async def synchronize(self) -> SyncOutcome:
        """One run: reads the cloud, makes the changes, writes what each Node has."""
        assert self._provider is not None
        demands = self._demands(self._provider)
        instances = {demand.instance for demand in demands if demand.instance}
        try:
            state = await asyncio.to_thread(self._provider.read, instances)
        except CloudError as failure:
            outcome = SyncOutcome(unavailable=str(failure))
            self._loop.report(outcome)
            return outcome
        planned = plan(demands, state, self._targets)
        for name, have in planned.have.items():
            try:
                await self._write(name, have)
            except API_FAILURES as failure:
                self._log.warning("cannot write the interfaces of a Node", node=name, problem=failure)
                return SyncOutcome({name: str(failure)})
        outcome = await carry_out(self._provider, planned, self._log)
        self._loop.report(outcome)
        self._report({} if outcome.unavailable else outcome.problems)
        return outcome

    def _demands(self, provider: AddressProvider) -> list[NodeDemand]:
        pods = Counter(pod.spec.node_name for pod in self._pods.objects.values() if owns_addresses(pod))
        demands = []
        for name, node in self._nodes.objects.items():
            instance, problem = "", ""
            try:
                instance = provider.instance(node.spec.provider_id)
            except ValueError as wrong:
                problem = str(wrong)
            demands.append(NodeDemand(name=name, instance=instance, pods=pods[name], problem=problem))
        return demands

    async def _write(self, name: str, have: NodeInterfaces) -> None:
        node = self._nodes.get(name)
        annotations = have.annotation()
        if node is None or annotations.items() <= node.metadata.annotations.items():
            self._smaller.discard(name)
            return
        earlier = read_interfaces(node.metadata.annotations)
        if earlier is not None and have.lacks(earlier) and name not in self._smaller:
            self._smaller.add(name)  # What the cloud shows may be older than its last answer.
            return
        self._smaller.discard(name)
        try:
            await self._client.patch(NODES, name, {"metadata": {"annotations": annotations}}, patch_type=MERGE_PATCH)
        except NotFound:
            return

    def _report(self, problems: Mapping[str, str]) -> None:
        """Records an Event for each new problem of a Node."""
        for name, problem in problems.items():
            node = self._nodes.get(name)
            if node is not None and self._problems.get(name) != problem:
                self._events.event(reference("v1", "Node", node.metadata), "Warning", REASON, problem)
        self._problems = problems
