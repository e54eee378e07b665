"""Runs ``podwire upgrade apply``, ``rollback`` and ``status``, with the state in the cluster.

Guarantees: 1. one run at a time: the Lease ``podwire-upgrade`` refuses a second and names the first; 2. nothing is
changed before the plan was compared with the cluster, and before other managers of its fields are known; 3. a step is
recorded before its first change, so a run that was killed continues, or goes back, from any point; 4. a step whose gate
does not hold is rolled back at once, and the run ends; 5. `rollback` takes all steps back in reverse order.
"""

from collections.abc import Callable, Iterable

from podwire.errors import ClusterError, ConfigError
from podwire.kube.client import Client
from podwire.model.meta import Fact
from podwire.upgrade.apply import fields, stepchanges
from podwire.upgrade.apply.gates import Breach, Gates, LossGate
from podwire.upgrade.apply.objects import UpgradeObjects
from podwire.upgrade.apply.record import UpgradeRecord
from podwire.upgrade.apply.rollout import Rollout
from podwire.upgrade.apply.steps import StepOptions, StepRunner
from podwire.upgrade.nodecommands import NodeCommands, agents_of, cluster_id
from podwire.upgrade.nodepods import NodeFolders, folders_of, image_of
from podwire.upgrade.plan.values import Component, PlannedChange, UpgradePlan, text_digest
from podwire.upgrade.verify.stage import VerifyStage

Say = Callable[[str], None]


class ApplyOptions(Fact, frozen=True, kw_only=True):
    """What the command line says; ``probes`` false: gates try no connections."""

    namespace: str = "kube-system"
    image: str = ""
    folders: NodeFolders = NodeFolders()
    probes: bool = True
    take_over: bool = False
    """Whether fields of controllers that write again and again are changed, too."""
    roll_back: bool = True
    """Whether a step whose gate does not hold is rolled back at once."""
    planned_now: bool = False
    """Whether the plan was made by this run: an upgrade to the same version that is in progress is continued."""
    step: StepOptions = StepOptions()


class UpgradeRun:
    """One run, under the Lease."""

    def __init__(self, client: Client, options: ApplyOptions, say: Say, flows: LossGate | None = None) -> None:
        self._client = client
        self._options = options
        self._say = say
        self._flows = flows
        self._objects = UpgradeObjects(client, options.namespace)

    async def apply(self, plan: UpgradePlan | None) -> None:
        """Does the steps of a plan, or continues those of the record (``plan`` None).

        Raises: ConfigError when the plan does not fit the cluster; ClusterError when a gate did not hold.
        """
        record = await self._begin(plan)
        if self._flows is not None and record.plan is not None:
            self._flows.describe(stepchanges.object_changes(record.plan))
        gates, steps = await self._steps()
        if not record.pending():
            await gates.take_down()
            self._say("the upgrade is done" if record.begun() else "there is nothing to upgrade")
            return
        for step in record.begun():
            if record.steps[step.id].state == "reverting":
                await self._take_back(steps, record, [step.id])
                raise ClusterError(f"step {step.id} was rolled back; run the command again to try it once more")
        try:
            await gates.set_up([node for node, ready in (await self._objects.nodes()).items() if ready])
            for step in record.pending():
                record = await self._objects.read_record()
                self._say(f"step {step.id}: {step.component}")
                try:
                    await steps.apply(step, record)
                except Breach as failure:
                    await self._breach(steps, step.id, failure)
        finally:
            await gates.take_down()
        self._say("the upgrade is done; `podwire upgrade rollback` takes it back")

    async def _breach(self, steps: StepRunner, step: str, failure: Breach) -> None:
        """Rolls a step back.

        Raises: ClusterError, always.
        """
        if not self._options.roll_back:
            raise ClusterError(f"{failure}; the step was not rolled back") from failure
        self._say(f"step {step}: {failure}; the step is rolled back")
        record = await self._objects.read_record()
        if step in record.steps:
            await self._take_back(steps, record, [step])
        raise ClusterError(f"step {step} was rolled back: {failure}") from failure

    async def rollback(self) -> None:
        """Takes all steps back, the last one first.

        Raises: ClusterError when a pod does not come back; run it again then.
        """
        record = await self._objects.read_record()
        if record.plan is None:
            self._say("there is no upgrade to take back")
            return
        gates, steps = await self._steps()
        await gates.take_down()
        await self._take_back(steps, record, [step.id for step in reversed(record.begun())])
        await self._objects.delete_record()
        self._say("everything is as before the upgrade")

    async def _take_back(self, steps: StepRunner, record: UpgradeRecord, ids: Iterable[str]) -> None:
        assert record.plan is not None
        by_id = {step.id: step for step in record.plan.steps}
        for step_id in ids:
            self._say(f"step {step_id}: back")
            if problems := await steps.revert(by_id[step_id], record):
                todo = "run `podwire upgrade rollback` again when the reason is gone"
                raise ClusterError(f"step {step_id} is not back: {'; '.join(problems)}; {todo}")

    async def _begin(self, plan: UpgradePlan | None) -> UpgradeRecord:
        """The record of the run, which is new unless one is in progress."""
        record = await self._objects.read_record()
        if record.plan is not None and (plan is None or plan.id == record.plan.id):
            return record
        if record.plan is not None and record.pending():
            if plan is not None and self._options.planned_now and plan.to_version == record.plan.to_version:
                self._say(f"the upgrade to {plan.to_version} that is in progress continues")
                return record
            problem = f"another upgrade is in progress (plan {record.plan.id}); finish it without --plan, or roll back"
            raise ConfigError("--plan", "", problem)
        if plan is None:
            raise ConfigError("--plan", "", "no upgrade is in progress; name a plan or a target version")
        await self._check(plan)
        await self._objects.write_plan(plan)
        return await self._objects.read_record()

    async def _check(self, plan: UpgradePlan) -> None:
        """Refuses a plan that does not fit the cluster of now.

        Raises: ConfigError.
        """
        source = f"plan {plan.id}"
        if plan.blocked:
            blockers = [str(finding) for finding in plan.findings if finding.severity == "blocker"]
            raise ConfigError(source, "findings", "; ".join(blockers))
        if plan.cluster and plan.cluster != await cluster_id(self._client):
            raise ConfigError(source, "cluster", "the plan was made for another cluster")
        for component in plan.components:
            await self._check_generation(plan, component)
        for step in plan.steps:
            for change in step.changes:
                await self._check_texts(change)
        _, steps = await self._steps()
        refused = []
        for conflict in await steps.conflicts(plan):
            if fields.is_person(conflict.manager) or self._options.take_over:
                self._say(f"{conflict}; the field is taken over")
            else:
                refused.append(str(conflict))
        if refused:
            todo = "change it there, or use --force-conflicts"
            raise ConfigError(source, "", f"{'; '.join(refused)}, which would write it again; {todo}")

    async def _check_generation(self, plan: UpgradePlan, component: Component) -> None:
        changes = [change for step in plan.steps for change in stepchanges.changes_of(step, plan)]
        for change in changes:
            if change.title != component.title or not component.generation:
                continue
            generation = int((await self._objects.get(change))["metadata"].get("generation", 0))
            if generation != component.generation:
                problem = f"has changed since the plan (generation {generation}, expected {component.generation})"
                raise ConfigError(component.title, "metadata.generation", f"{problem}; make a new plan")

    async def _check_texts(self, change: PlannedChange) -> None:
        """Refuses a new text, such as a Corefile, that was made from another text than that of now.

        Raises: ConfigError.
        """
        data = (await self._objects.get(change)).get("data") or {} if change.digests else {}
        for key, digest in change.digests.items():
            if text_digest(str(data.get(key, ""))) != digest:
                raise ConfigError(change.title, f"data.{key}", "has changed since the plan was made; make a new plan")

    async def _steps(self) -> tuple[Gates, StepRunner]:
        options = self._options
        agents = await agents_of(self._client, options.namespace)
        commands = stage = None
        if options.image or agents is not None:
            image = image_of(agents, options.image)
            commands = NodeCommands(self._client, options.namespace, image, folders_of(agents, options.folders))
            stage = VerifyStage(self._client, options.namespace, image) if options.probes else None
        elif options.probes:
            image_of(None, "")  # says which option is missing
        gates = Gates(self._objects, stage, self._flows)
        rollout = Rollout(self._objects, commands, self._say, options.step.timeout_s)
        return gates, StepRunner(self._objects, gates, rollout, options.step, self._say)


async def status(client: Client, namespace: str) -> dict[str, str]:
    """The state of the upgrade and of each of its steps, in words."""
    record = await UpgradeObjects(client, namespace).read_record()
    result = {"upgrade": record.state}
    for step in record.plan.steps if record.plan is not None else ():
        entry = record.steps.get(step.id)
        result[step.id] = entry.state if entry is not None else "pending"
    return result
