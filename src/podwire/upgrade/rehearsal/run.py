"""Tries an upgrade in a local copy of a cluster: loads the copy, applies the plan under flows, verifies, goes back.

Guarantees: 1. nothing of the real cluster is written, and this module has no client of it; 2. the copy gets the same
patches, in the same order, with the same waves and gates, by the same code as the real upgrade; 3. a message that is
lost, a step that fails, and a connection that is not as expected are problems of the result; 4. what the copy lacks is
named in the result.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from podwire.errors import ApiError, ApiUnreachable, ClusterError, NotFound
from podwire.kube.client import MERGE_PATCH, Client
from podwire.kube.podruns import PodRuns
from podwire.kube.resources import (
    CLUSTERNETWORKPOLICIES,
    DAEMONSETS,
    DEPLOYMENTS,
    ENDPOINTSLICES,
    NAMESPACES,
    NETWORKPOLICIES,
    NODES,
    PODS,
    Json,
    Resource,
)
from podwire.kube.serverside import ApplyRequest, apply_object
from podwire.model.meta import Fact
from podwire.upgrade.apply.rollout import rollout_progress
from podwire.upgrade.apply.run import ApplyOptions, UpgradeRun
from podwire.upgrade.apply.steps import StepOptions
from podwire.upgrade.backup import selection
from podwire.upgrade.backup.clusterread import resources_of
from podwire.upgrade.inventory.inventory import SYSTEM
from podwire.upgrade.lossgate import FlowGate
from podwire.upgrade.nodecommands import MANAGER, cluster_id, nodes_ready
from podwire.upgrade.nodepods import ProbeImage
from podwire.upgrade.plan.values import UpgradePlan
from podwire.upgrade.rehearsal.nodes import CopiedNode
from podwire.upgrade.rehearsal.objects import CopySettings, RehearsalSource, copied_objects, is_dns
from podwire.upgrade.rehearsal.result import RehearsalResult, counts_of, result_of
from podwire.upgrade.rehearsal.settings import PROGRAM
from podwire.upgrade.rehearsal.steps import copied_plan
from podwire.upgrade.rehearsal.workloads import WorkloadRoles
from podwire.upgrade.verify.checks import KINDS
from podwire.upgrade.verify.stage import VerifyStage, take_down

MakeGate = Callable[[str], Awaitable[FlowGate]]
_LOCAL_DNS = "podwire-dns"
_WORKLOADS: dict[str, Resource[Json]] = {"DaemonSet": DAEMONSETS.raw, "Deployment": DEPLOYMENTS.raw}


class RehearsalOptions(Fact, frozen=True, kw_only=True):
    """How the copy is loaded and tried; ``back``: whether the way back is tried, too."""

    roles: WorkloadRoles
    service_cidrs: tuple[str, ...]
    most_pods: int = 30
    timeout_s: float = 300.0
    back: bool = True


class Rehearsal:
    """One rehearsal; ``client`` is that of the copy, and ``gate`` makes the flows of a direction by their title."""

    def __init__(
        self,
        client: Client,
        source: RehearsalSource,
        nodes: Sequence[CopiedNode],
        options: RehearsalOptions,
        gate: MakeGate,
    ) -> None:
        self._client = client
        self._source = source
        self._nodes = nodes
        self._options = options
        self._gate = gate
        self._runs = PodRuns(client, SYSTEM)
        self._refused: list[str] = []

    async def run(self, differences: Sequence[str]) -> RehearsalResult:
        """The result; ``differences`` are those that were known before the copy was made.

        Raises: ClusterError when the copy cannot be loaded; ApiError, ApiUnreachable.
        """
        for node in self._nodes:
            await self._client.patch(NODES, node.name, node.patch, patch_type=MERGE_PATCH)
        settings = CopySettings(
            roles=self._options.roles,
            service_cidrs=self._options.service_cidrs,
            api=await self._api_server(),
            most_pods=self._options.most_pods,
        )
        copied = copied_objects(self._source, settings)
        await self._load(copied.objects)
        result = result_of(self._source.plan, self._nodes, [*differences, *copied.differences, *self._refused])
        plan = copied_plan(self._source.plan, self._nodes, await cluster_id(self._client))
        return await self._try(plan, result)

    async def _api_server(self) -> tuple[str, int]:
        slice_ = await self._client.get(ENDPOINTSLICES.raw, "kubernetes", "default")
        return str(slice_["endpoints"][0]["addresses"][0]), int(slice_["ports"][0]["port"])

    async def _load(self, objects: Sequence[Json]) -> None:
        """Applies the objects and waits until their pods serve; podwire's own DNS server makes room for CoreDNS.

        Raises: ClusterError.
        """
        definitions = (obj for obj in objects if obj["kind"] == "CustomResourceDefinition")
        resources = resources_of(definitions)
        for resource in (NAMESPACES, NETWORKPOLICIES, CLUSTERNETWORKPOLICIES):
            resources[resource.api_version, resource.kind] = resource.raw
        for obj in objects:
            try:
                await apply_object(
                    self._client,
                    resources[obj["apiVersion"], obj["kind"]],
                    obj,
                    ApplyRequest(manager=MANAGER, force=True),
                )
            except ApiError as failure:
                if obj["kind"] in _WORKLOADS:
                    raise ClusterError(
                        f"the copy refuses {selection.title(obj)}: {failure.message.strip()}"
                    ) from failure
                self._refused.append(f"{selection.title(obj)} is missing: {failure.message.strip()}")
        workloads = [obj for obj in objects if obj["kind"] in _WORKLOADS]
        await self._runs.until(self._nodes_late, "the copy is not ready", self._options.timeout_s)
        for workload in workloads:
            await self._until_rolled_out(workload)
        if not self._source.has_own_agents and any(is_dns(obj) for obj in workloads):
            await self._end_local_dns()

    async def _nodes_late(self) -> str:
        ready = await nodes_ready(self._client)
        return ", ".join(f"{name} is not Ready" for name, is_ready in ready.items() if not is_ready)

    async def _until_rolled_out(self, workload: Json) -> None:
        meta, resource = workload["metadata"], _WORKLOADS[workload["kind"]]

        async def late() -> str:
            present = await self._client.get(resource, meta["name"], meta["namespace"])
            progress = rollout_progress({"kind": workload["kind"], **present})
            return "" if progress is None else f"pods wanted, new, available, old: {', '.join(map(str, progress))}"

        await self._runs.until(late, f"{selection.title(workload)} is not ready in the copy", self._options.timeout_s)

    async def _end_local_dns(self) -> None:
        """Ends the DNS server that every local cluster has; CoreDNS of the copy answers in its place."""
        try:
            await self._client.delete(DEPLOYMENTS, _LOCAL_DNS, SYSTEM, propagation="Background")
        except NotFound:
            return

        async def present() -> str:
            pods = (await self._client.list(PODS.raw, SYSTEM)).items
            names = (str(pod["metadata"]["name"]) for pod in pods)
            return ", ".join(name for name in names if name.startswith(f"{_LOCAL_DNS}-"))

        await self._runs.until(present, "the DNS server of the local cluster does not end", self._options.timeout_s)

    async def _try(self, plan: UpgradePlan, result: RehearsalResult) -> RehearsalResult:
        gate = await self._gate("Rehearsal of an upgrade")
        problems: list[str] = []
        try:
            await self._upgrade(gate, gate).apply(plan)
        except (ApiError, ApiUnreachable, ClusterError) as failure:
            problems.append(str(failure))
        result = msgspec.structs.replace(result, there=counts_of(gate.proof), problems=tuple(problems))
        if not problems:
            problems += await self._unexpected_connections()
        if self._options.back:
            gate = await self._gate("Rehearsal of the way back")
            problems += await self._back(gate)
            result = msgspec.structs.replace(result, back=counts_of(gate.proof))
        return msgspec.structs.replace(result, problems=tuple(problems))

    def _upgrade(self, gate: FlowGate, flows: FlowGate | None) -> UpgradeRun:
        options = ApplyOptions(image=PROGRAM, step=StepOptions(timeout_s=self._options.timeout_s), take_over=True)
        return UpgradeRun(self._client, options, gate.say, flows)

    async def _unexpected_connections(self) -> list[str]:
        """The connections that are not as expected after the upgrade."""
        stage = VerifyStage(self._client, SYSTEM, ProbeImage(image=PROGRAM))
        names = [node.name for node in self._nodes]
        try:
            await stage.set_up(names, KINDS)
            return [problem for entry in await stage.check(names, KINDS) for problem in entry.problems()]
        finally:
            await take_down(self._client, SYSTEM)

    async def _back(self, gate: FlowGate) -> list[str]:
        """Takes the upgrade back under flows; what went wrong."""
        await gate.begin()
        try:
            await self._upgrade(gate, None).rollback()
            return [f"rollback: {problem}" for problem in await gate.losses()]
        except (ApiError, ApiUnreachable, ClusterError) as failure:
            return [f"rollback: {failure}"]
        finally:
            await gate.end()
