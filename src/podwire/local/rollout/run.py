"""Runs the upgrade of a local cluster under numbered flows, and its rollback.

Guarantees: 1. one run at a time: the cluster's lock refuses a second; 2. a step is recorded before it begins and when
it is done, and a run that was killed continues with the first step that is not done; a step that was interrupted is
repeated; 3. behind each step all nodes must serve, every flow must have answers, and no more messages may be lost than
allowed; otherwise everything is undone, in reverse; 4. the counts, the steps and the changes of all kernels are one
proof, which is written at the end, also after a rollback.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from podwire.errors import ClusterError, ConfigError, PodwireError
from podwire.flows.changes import KernelChange
from podwire.flows.count import DENIED, FlowReport
from podwire.flows.health import QUIET_S, FlowHealth
from podwire.flows.objects import FlowProgram
from podwire.flows.proof import LossProof, StepMark
from podwire.flows.prooffile import is_proof, write_proof
from podwire.flows.run import FlowRun
from podwire.flows.settings import FlowSettings
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.local import builds, credentials, inventory, serving
from podwire.local.briefs import processes_of
from podwire.local.builds import Build
from podwire.local.config import ClusterConfig, recall_config
from podwire.local.readiness import Waiting
from podwire.local.rollout import plan
from podwire.local.rollout.components import Swapper, every_build, in_thread, present_workloads
from podwire.local.rollout.plan import LocalBuild, LocalRecord, LocalStep
from podwire.local.topology import Topology
from podwire.runtime.clock import SystemClock
from podwire.runtime.files import write_atomically
from podwire.runtime.stateform import check_form

Say = Callable[[str], None]
_SERVE_S = 60.0
_BALANCER_S = 3.0


class RolloutOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says; ``pause_s`` follows each step, ``canary_pause_s`` those of the canary."""

    canary: str = ""
    pause_s: float = 1.0
    canary_pause_s: float = 6.0
    most_lost: int = 0
    interval_ms: int = 20
    least_messages: int = 0
    """The run goes on behind its last step until this many messages were sent."""


def folder_of(topology: Topology) -> Path:
    """The folder of a cluster's upgrade: record, backup, counts and proof."""
    return Path(topology.state) / "upgrade"


def read_record(topology: Topology) -> LocalRecord | None:
    """The record of the last upgrade; None when there was none.

    Raises: ConfigError.
    """
    file = folder_of(topology) / "record.json"
    if not file.exists():
        return None
    record = plan.parse_record(file.read_bytes(), str(file))
    check_form(record.format, plan.FORMAT, str(file))
    return record


def run(name: str, direction: plan.Direction, options: RolloutOptions, say: Say) -> int:
    """Upgrades a cluster to this build, or goes back; the exit status: 0, or 1 after a rollback that was not asked for.

    Raises: ConfigError, ClusterError.
    """
    topology = inventory.existing(name)
    with inventory.locked(name):
        config = recall_config(topology)
        if config is None:
            raise ClusterError(f"cluster {name!r} was not completely created; run `podwire up --name {name}` first")
        return asyncio.run(_run(topology, config, direction, options, say))


async def _run(
    topology: Topology, config: ClusterConfig, direction: plan.Direction, options: RolloutOptions, say: Say
) -> int:
    client = Client(load_kubeconfig(credentials.kubeconfig_path(topology, "admin")), SystemClock())
    try:
        upgrade = LocalUpgrade(topology, config, client, options, say)
        return await upgrade.run(direction)
    finally:
        await client.close()


class LocalUpgrade:
    """One run for one cluster."""

    def __init__(
        self, topology: Topology, config: ClusterConfig, client: Client, options: RolloutOptions, say: Say
    ) -> None:
        self._topology = topology
        self._config = config
        self._client = client
        self._options = options
        self._say = say
        self._folder = folder_of(topology)
        self._swapper = Swapper(topology, config, self._folder / "backup")
        self._nodes = tuple(node.name for node in topology.nodes(config.nodes))
        own = builds.own()
        program = FlowProgram(
            image="python",
            command=tuple(builds.command()),
            environment={"PYTHONPATH": own.root, builds.VARIABLE: own.label},
        )
        settings = FlowSettings(
            program=program, interval_ms=options.interval_ms, folder=self._folder / "flows", balancer_s=_BALANCER_S
        )
        self._flows = FlowRun(client, settings, say)
        self._health = FlowHealth(self._flows, client.clock, options.most_lost)
        self._own = own

    async def run(self, direction: plan.Direction) -> int:
        """Runs to the end in a direction; the exit status.

        Raises: ConfigError, ClusterError.
        """
        record = await self._begin(direction)
        await self._flows.start()
        if not record.began or all(step.state == "pending" for step in record.steps):
            record = self._write(msgspec.structs.replace(record, began=self._now()))
        asked = record.direction == "rollback"
        try:
            record = await self._steps(record)
        except (PodwireError, OSError) as failure:
            if record.direction == "rollback":
                raise
            record = await self._steps(self._as_rollback(str(failure)))
        await self._finish(msgspec.structs.replace(record, ended=self._now()))
        return 1 if record.direction == "rollback" and not asked else 0

    def _now(self) -> float:
        return self._client.clock.now().timestamp()

    async def _begin(self, direction: plan.Direction) -> LocalRecord:
        """The record to continue with, or a new one."""
        record = read_record(self._topology)
        if record is not None and record.finished:
            await self._flows.remove()  # a run that was killed at its very end has left them
        if direction == "rollback":
            return self._rollback_of(record)
        if record is not None and not record.finished:
            if record.after.label != self._own.label:
                problem = f"an upgrade to {record.after.label} is under way; continue it with that build, or go back"
                raise ConfigError("podwire upgrade", "", problem)
            if record.direction == "rollback":
                raise ConfigError(
                    "podwire upgrade",
                    "",
                    "a rollback is in progress; complete it first with `podwire upgrade local rollback`",
                )
            self._say("continuing an upgrade that was interrupted")
            return record
        before = builds.recall(Path(self._topology.state))
        if before is None:
            problem = "it is not known which build started the cluster; start it by `podwire up --version`"
            raise ConfigError("podwire upgrade", "", problem)
        if before.label == self._own.label:
            raise ConfigError("podwire upgrade", "", f"the cluster runs {before.label} already")
        builds.check(before)  # else there is no way back
        self._discard()
        workloads = await present_workloads(self._client)
        agents = self._config.network == "podwire"
        steps = plan.steps_of(self._nodes, self._options.canary or self._nodes[0], workloads, agents=agents)
        self._swapper.save()
        return self._write(
            LocalRecord(
                before=LocalBuild(before.root, before.label),
                after=LocalBuild(self._own.root, self._own.label),
                began=self._now(),
                steps=steps,
            )
        )

    def _rollback_of(self, record: LocalRecord | None) -> LocalRecord:
        if record is None or (record.finished and record.direction == "rollback"):
            raise ConfigError("podwire upgrade", "", "there is no upgrade to roll back")
        if record.direction == "rollback":
            return record
        if not record.finished:
            return self._as_rollback("asked for")
        return self._write(msgspec.structs.replace(self._as_rollback("asked for"), began=0.0))

    def _as_rollback(self, reason: str) -> LocalRecord:
        """The present record in the direction back."""
        self._say(f"going back: {reason}")
        record = read_record(self._topology)
        assert record is not None
        return self._write(msgspec.structs.replace(record, direction="rollback", reason=reason, ended=0.0))

    def _discard(self) -> None:
        """Removes what an earlier upgrade left: backup, record and counts. The proofs of its runs stay."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif not is_proof(path):
                path.unlink(missing_ok=True)

    def _write(self, record: LocalRecord) -> LocalRecord:
        write_atomically(self._folder / "record.json", msgspec.json.encode(record))
        return record

    async def _steps(self, record: LocalRecord) -> LocalRecord:
        """Does, or undoes, one step after the other."""
        direction = record.direction
        while (step := plan.next_step(record)) is not None:
            self._say(f"{'undo ' if direction == 'rollback' else ''}{step.id}")
            step = plan.begun(step, direction, self._now())
            record = self._write(plan.changed(record, step))
            await (self._do(step, record) if direction == "apply" else self._undo(step, record))
            await self._serving()
            if direction == "apply":
                await self._healthy(step)
            record = self._write(plan.changed(record, plan.ended(step, direction, self._now())))
        if direction == "apply":
            await in_thread(self._swapper.ensure)
            builds.remember(Path(self._topology.state), self._own)
            await self._enough()
            await self._healthy(None)
        else:
            builds.remember(Path(self._topology.state), Build(record.before.root, record.before.label))
        return record

    async def _do(self, step: LocalStep, record: LocalRecord) -> None:
        if step.kind == "supervisor":
            names = [process.name for process in processes_of(self._topology)]
            running = every_build(names, Build(record.before.root, record.before.label))
            await in_thread(lambda: self._swapper.start_supervisor(self._own, running))
        elif step.kind == "kinds":
            await self._swapper.update_kinds(self._client)
        elif step.kind == "pods":
            await self._swapper.renew_pods(self._client, step.id, record.after.label)
        else:
            await in_thread(lambda: self._swapper.start_process(step.id, None))

    async def _undo(self, step: LocalStep, record: LocalRecord) -> None:
        before = Build(record.before.root, record.before.label)
        if step.kind == "supervisor":
            await in_thread(lambda: self._swapper.start_supervisor(before, {}))
        elif step.kind == "pods":
            await self._swapper.renew_pods(self._client, step.id, record.before.label)
        else:
            await in_thread(lambda: self._swapper.start_process(step.id, before))

    async def _serving(self) -> None:
        """Waits until the API answers and all nodes serve.

        Raises: ClusterError.
        """
        late = await Waiting(self._client, self._nodes, ()).until_ready(_SERVE_S)
        if not late and self._config.network == "podwire":
            late = await serving.until_serving(self._topology, self._client, self._nodes, _SERVE_S)
        if late:
            raise ClusterError("; ".join(late))

    async def _healthy(self, step: LocalStep | None) -> None:
        """Waits for the pause behind a step, and until all flows have answers.

        Behind the last step (``step`` None) it waits until the fate of every message is known.

        Raises: ClusterError when flows stay silent, leak, or lost more than allowed, or a sender hangs.
        """
        canary = step is not None and step.node == (self._options.canary or self._nodes[0])
        await self._client.clock.sleep(self._options.canary_pause_s if canary else self._options.pause_s)
        if problems := await self._health.problems(decided=step is None):
            raise ClusterError("; ".join(problems[:3]))

    async def _enough(self) -> None:
        """Waits until enough messages were sent.

        Raises: ClusterError when the flows send no more.
        """
        clock, least = self._client.clock, self._options.least_messages
        most, until = -1, 0.0
        while (sent := _sent(await self._flows.reports())) < least:
            if sent > most:
                most, until = sent, clock.monotonic() + QUIET_S
            elif clock.monotonic() > until:
                raise ClusterError(f"{most} of {least} messages were sent, and the flows send no more")
            await clock.sleep(1.0)

    async def _finish(self, record: LocalRecord) -> None:
        """Writes the proof, then the record of the end, and removes the flows; a run that was killed repeats it."""
        reports = await self._flows.settle()
        self._flows.stop_outside()
        proof = proof_of(record, reports, await self._flows.changes(), len(self._nodes))
        write_proof(self._folder, proof)
        self._write(record)
        await self._flows.remove()
        for line in plan.lines(record)[:2] if record.reason else plan.lines(record)[:1]:
            self._say(line)


def proof_of(record: LocalRecord, flows: list[FlowReport], changes: list[KernelChange], nodes: int) -> LossProof:
    """The proof of a run."""
    marks = [StepMark(at=step.at, until=step.until, title=step.id) for step in record.steps if step.at]
    marks += [
        StepMark(at=step.undone_at, until=step.undone_until, title=f"undo {step.id}")
        for step in record.steps
        if step.undone_at
    ]
    word = "rolled back" if record.direction == "rollback" else "upgrade"
    return LossProof(
        title=f"podwire {word}: {record.before.label} to {record.after.label}",
        began=record.began,
        ended=record.ended,
        nodes=nodes,
        steps=tuple(sorted((mark for mark in marks if mark.at >= record.began), key=lambda mark: mark.at)),
        flows=tuple(flows),
        changes=tuple(changes),
    )


def _sent(reports: list[FlowReport]) -> int:
    return sum(flow.sent for flow in reports if flow.kind not in DENIED)
