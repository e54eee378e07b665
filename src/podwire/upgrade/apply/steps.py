"""Does a step of a plan, and takes one back. Both can be repeated from any point, also after a kill.

A step on a DaemonSet: its controller stops replacing pods (OnDelete), the template gets the new images, each wave of
nodes gets new pods and passes the gates, the strategy of before returns. A step on a Deployment: a pod of the new
template that serves nobody is tried first; then pods are added before others end. Replicas, resources, affinity,
tolerations and autoscalers are not touched: only the fields of the plan change.

The objects of a step change in the order of the plan, which is safe where one release accepts both texts of a Corefile.
Where neither does (:attr:`PlannedChange.exclusive`), no pod reads the text of the other release: new pods read a copy
under another name; when all pods are new, the ConfigMap itself gets the text, a second rollout returns to it, and the
copy is deleted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from podwire.errors import ClusterError
from podwire.kube.resources import Json
from podwire.model.meta import Fact
from podwire.upgrade.apply import fields, stepchanges
from podwire.upgrade.apply.gates import Breach, Gates
from podwire.upgrade.apply.objects import FieldConflict, UpgradeObjects
from podwire.upgrade.apply.record import ObjectBefore, StepRecord, UpgradeRecord
from podwire.upgrade.apply.rollout import Rollout, rollout_progress
from podwire.upgrade.plan.values import Component, PlannedChange, UpgradePlan, UpgradeStep
from podwire.upgrade.verify.objects import server_nodes

Say = Callable[[str], None]
_PROBED_NAME = "kubernetes.default.svc.cluster.local"


class StepOptions(Fact, frozen=True, kw_only=True):
    """``timeout_s``: for one pod to be ready; ``pause_s``: between two waves."""

    timeout_s: float = 300.0
    pause_s: float = 0.0


class StepRunner:
    """The steps of one plan."""

    def __init__(
        self,
        objects: UpgradeObjects,
        gates: Gates,
        rollout: Rollout,
        options: StepOptions,
        say: Say,
    ) -> None:
        self._objects = objects
        self._gates = gates
        self._rollout = rollout
        self._options = options
        self._say = say

    async def conflicts(self, plan: UpgradePlan) -> list[FieldConflict]:
        """The fields of other managers that the plan changes; nothing is changed.

        Raises: ConfigError when an object is gone; ApiError when the API refuses a change.
        """
        result = []
        for step in plan.steps:
            for change in stepchanges.changes_of(step, plan):
                result += await self._objects.conflicts(change, change.patch)
        return result

    async def apply(self, step: UpgradeStep, record: UpgradeRecord) -> None:
        """Does a step.

        Raises: Breach when a gate does not hold; ClusterError for a gate before the step; ApiError.
        """
        plan = record.plan
        assert plan is not None
        if step.action == "manual":
            await self._manual(step, plan)
            return
        await self._gates.before(step, plan)
        changes = stepchanges.changes_of(step, plan)
        entry = record.steps.get(step.id)
        if entry is None:
            before = [await self._before(step, change, changes) for change in changes]
            entry = StepRecord(state="begun", before=tuple(before))
            await self._objects.write_step(step.id, entry)
        workloads = [change for change in changes if change.kind in stepchanges.WORKLOADS]
        mounted = {change.title: await self._mounted(change, changes) for change in workloads}
        copied = {configmap.title for entries in mounted.values() for configmap, _ in entries}
        for change in changes:
            if change in workloads:
                await self._workload(step, change, mounted[change.title], record)
            elif change.title not in copied:
                await self._objects.set_fields(change, change.patch)
        if changes and changes[-1] not in workloads:
            await self._gates.after(step, await self._sample())
        await self._clean_up(step, changes, entry)
        await self._objects.write_step(step.id, StepRecord(state="done", before=entry.before))

    async def revert(self, step: UpgradeStep, record: UpgradeRecord) -> list[str]:
        """Takes a step back; the problems of nodes that did not get their old pod.

        Raises: ApiError, ConfigError.
        """
        plan, entry = record.plan, record.steps[step.id]
        assert plan is not None
        await self._objects.write_step(step.id, StepRecord(state="reverting", before=entry.before))
        entry = await self._without_deleted(entry)
        problems: list[str] = []
        for before in stepchanges.way_back(stepchanges.changes_of(step, plan), entry.before):
            live = await self._objects.get(before)
            await self._objects.set_fields(
                before, fields.merged(before.patch, stepchanges.strategy(step, before, live))
            )
            if before.kind in stepchanges.WORKLOADS:
                problems += await self._back(step, before, record)
        if not problems:
            await self._clean_up(step, stepchanges.changes_of(step, plan), entry)
            await self._objects.write_step(step.id, None)
        return problems

    async def _without_deleted(self, entry: StepRecord) -> StepRecord:
        """The step without the objects that somebody has deleted since: there is nothing to take back."""
        present = []
        for before in entry.before:
            if await self._objects.is_present(before):
                present.append(before)
            else:
                self._say(f"{before.title} is not in the cluster any more, and stays away")
        return StepRecord(state="reverting", before=tuple(present))

    async def _back(self, step: UpgradeStep, before: ObjectBefore, record: UpgradeRecord) -> list[str]:
        """Gives a workload its old pods; a node that fails does not stop the next ones."""
        if not stepchanges.is_by_node(step, before):
            try:
                await self._rollout.roll(before)
            except Breach as failure:
                return [str(failure)]
            return []
        held = _held(step, record)
        ready = await self._objects.nodes()
        nodes = [node for node in (*await self._rollout.outdated(before), *held) if ready.get(node)]
        waves = [[node for node in reversed(wave.nodes) if node in nodes] for wave in reversed(step.waves)]
        planned = {node for wave in step.waves for node in wave.nodes}
        problems = []
        for wave in [sorted({node for node in nodes if node not in planned}), *waves]:
            try:
                await self._rollout.replace(step.id, before, wave, held)
            except Breach as failure:
                problems.append(str(failure))
        return problems

    async def _before(self, step: UpgradeStep, change: PlannedChange, changes: Sequence[PlannedChange]) -> ObjectBefore:
        live = await self._objects.get(change)
        meanwhile = stepchanges.strategy(step, change, live)
        for configmap, volume in await self._mounted(change, changes):
            meanwhile = stepchanges.with_volume(meanwhile, volume, configmap.name)
        return stepchanges.before_of(change, live, meanwhile)

    async def _mounted(
        self, change: PlannedChange, changes: Sequence[PlannedChange]
    ) -> list[tuple[PlannedChange, Mapping[str, Any]]]:
        """The ConfigMaps of which a workload reads a copy meanwhile, with the volumes."""
        exclusive = [entry for entry in changes if entry.exclusive]
        if change.kind not in stepchanges.WORKLOADS or not exclusive:
            return []
        live = await self._objects.get(change)
        read = ((entry, stepchanges.volume_of(live, entry)) for entry in exclusive)
        return [(entry, volume) for entry, volume in read if volume is not None]

    async def _workload(
        self,
        step: UpgradeStep,
        change: PlannedChange,
        mounted: Sequence[tuple[PlannedChange, Mapping[str, Any]]],
        record: UpgradeRecord,
    ) -> None:
        live = await self._objects.get(change)
        first = final = dict(fields.merged(change.patch, stepchanges.strategy(step, change, live)))
        pending = []
        for configmap, volume in mounted:
            final = stepchanges.with_volume(final, volume, configmap.name)
            source = await self._objects.get(configmap)
            name = configmap.name
            if not fields.holds(source, configmap.patch):
                pending.append(configmap)
                name = stepchanges.copy_name(configmap)
                data = fields.merged(source.get("data") or {}, configmap.patch.get("data") or {})
                await self._objects.put_configmap(configmap.namespace, name, data)
            first = stepchanges.with_volume(first, volume, name)
        if pending:
            await self._roll(step, change, first, record)
        for configmap in pending:
            await self._objects.set_fields(configmap, configmap.patch)
        await self._roll(step, change, final, record)

    async def _roll(self, step: UpgradeStep, change: PlannedChange, patch: Json, record: UpgradeRecord) -> None:
        live = await self._objects.get(change)
        if change.kind == "Deployment" and stepchanges.answers_dns(live) and not fields.holds(live, patch):
            await self._canary(step, change, stepchanges.canary_pod(live, patch))
        await self._objects.set_fields(change, patch)
        if not stepchanges.is_by_node(step, change):
            await self._rollout.roll(change)
            await self._gates.after(step, await self._sample())
            return
        for number, nodes in enumerate(await self._waves(step, change)):
            if number and self._options.pause_s:
                await self._objects.client.clock.sleep(self._options.pause_s)
            await self._rollout.replace(step.id, change, nodes, _held(step, record))
            await self._gates.after(step, nodes)

    async def _waves(self, step: UpgradeStep, change: PlannedChange) -> list[list[str]]:
        """The waves of the plan with nodes that are Ready now; nodes that the plan does not know come last."""
        ready = await self._objects.nodes()
        waves = [[node for node in wave.nodes if ready.get(node)] for wave in step.waves]
        for node in (node for wave in step.waves for node in wave.nodes if not ready.get(node, True)):
            self._say(f"{node}: is not Ready; its pod becomes new when the step has ended")
        planned = {node for wave in step.waves for node in wave.nodes}
        extra = [node for node in await self._rollout.outdated(change) if node not in planned and ready.get(node)]
        return [wave for wave in (*waves, *([node] for node in extra)) if wave]

    async def _canary(self, step: UpgradeStep, change: PlannedChange, pod: Json) -> None:
        try:
            node, address = await self._rollout.canary(pod)
            await self._gates.name_server(step, node, address, _PROBED_NAME)
        finally:
            await self._rollout.end_canary(change)

    async def _sample(self) -> list[str]:
        """The nodes from which connections are tried after a change that concerns all nodes."""
        return list(server_nodes([node for node, ready in (await self._objects.nodes()).items() if ready]))

    async def _clean_up(self, step: UpgradeStep, changes: Sequence[PlannedChange], entry: StepRecord) -> None:
        """Gives workloads their strategies back, and deletes what the step has made."""
        for before in entry.before:
            if strategy := stepchanges.strategy_before(before):
                await self._objects.set_fields(before, strategy)
        for change in changes:
            if change.kind == "Deployment":
                await self._rollout.end_canary(change)
            elif change.exclusive:
                await self._objects.delete_configmap(change.namespace, stepchanges.copy_name(change))

    async def _manual(self, step: UpgradeStep, plan: UpgradePlan) -> None:
        """Passes a step of a person when its gates hold, and its workload has the new images.

        Raises: ClusterError with the command for the person.
        """
        todo = f"step {step.id} is for a person: {step.command}"
        component = next((entry for entry in plan.components if entry.name == step.component), None)
        is_done = True
        if component is not None and component.kind in stepchanges.WORKLOADS:
            is_done = await self._has_images(component, step)
        try:
            await self._gates.before(step, plan)
            if is_done:
                await self._gates.after(step, await self._sample())
        except ClusterError as failure:
            raise ClusterError(f"{todo}; then run this command again ({failure})") from failure
        if not is_done:
            raise ClusterError(f"{todo}; then run this command again")
        self._say(f"{todo}; its gates hold")
        await self._objects.write_step(step.id, StepRecord(state="done"))

    async def _has_images(self, component: Component, step: UpgradeStep) -> bool:
        target = PlannedChange(
            api_version="apps/v1", kind=component.kind, namespace=component.namespace, name=component.workload, patch={}
        )
        live = await self._objects.get(target)
        images = {str(item["image"]) for item in live["spec"]["template"]["spec"]["containers"]}
        expected = {str(image.after) for image in step.images if not image.init}
        return expected <= images and rollout_progress(live) is None


def _held(step: UpgradeStep, record: UpgradeRecord) -> list[str]:
    return [node for held_step, node in record.held if held_step == step.id]
