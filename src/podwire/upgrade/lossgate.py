"""Counts the losses of numbered flows during an upgrade, as a gate of its steps, and writes the loss proof at its end.

The flows begin before the first change and go on until the last step; the proof has the lines of the run as its steps.
In the folder are the counts of flows from outside and the proof of each run, which ``podwire upgrade report`` shows.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from podwire.errors import NotFound, PodwireError
from podwire.flows.changes import KernelChange
from podwire.flows.health import FlowHealth, WatchedFlows
from podwire.flows.objects import FlowProgram
from podwire.flows.proof import LossProof, ObjectDiff, StepMark
from podwire.flows.prooffile import write_proof
from podwire.flows.run import FlowRun
from podwire.flows.settings import FlowSettings
from podwire.kube.client import Client
from podwire.kube.resources import CONFIGMAPS
from podwire.model.meta import Fact
from podwire.runtime.clock import Clock
from podwire.upgrade.balancers import ANY_CLASS, own_classes
from podwire.upgrade.corefile.domain import DEFAULT_DOMAIN, domain_of
from podwire.upgrade.inventory.inventory import SYSTEM
from podwire.upgrade.nodecommands import agents_of
from podwire.upgrade.nodepods import image_of
from podwire.upgrade.plan.coredns import MAIN


class ProofOptions(Fact, frozen=True, kw_only=True):
    """Where the proof goes, and what its pods run: ``image``, or that of podwire's agents when it is empty."""

    folder: Path
    namespace: str = "kube-system"
    image: str = ""
    balancers: bool = False
    """Whether a load balancer and an Ingress are used that podwire does not serve, and that may cost money."""
    title: str = "Upgrade"
    interval_ms: int = 50


async def flow_gate(client: Client, options: ProofOptions, say: Callable[[str], None]) -> "FlowGate":
    """The gate of an upgrade.

    Raises: ConfigError when there is no image; ApiError, ApiUnreachable.
    """
    agents = await agents_of(client, options.namespace)
    probe = image_of(agents, options.image)
    program = FlowProgram(
        image=probe.image,
        command=probe.command,
        pull_policy=probe.pull_policy,
        pull_secrets=probe.pull_secrets,
    )
    installed = agents is not None
    classes = ANY_CLASS if options.balancers else await own_classes(client, options.namespace, installed=installed)
    if classes.balancer is None:
        say("load balancers are not tested: podwire serves none here, and one may cost money (--proof-balancers)")
    settings = FlowSettings(
        program=program,
        interval_ms=options.interval_ms,
        folder=options.folder / "flows",
        balancer_class=classes.balancer,
        ingress_class=classes.ingress,
        domain=await _cluster_domain(client),
    )
    gate = GateSettings(folder=options.folder, title=options.title)
    return FlowGate(FlowRun(client, settings, say), gate, client.clock, say)


async def _cluster_domain(client: Client) -> str:
    """The domain of cluster DNS by the Corefile of CoreDNS, or Kubernetes' default."""
    try:
        data = (await client.get(CONFIGMAPS, MAIN, SYSTEM)).get("data") or {}
    except NotFound:
        return DEFAULT_DOMAIN
    return domain_of(str(data.get("Corefile", "")))


class Flows(WatchedFlows, Protocol):
    """The flows of a cluster, as :class:`podwire.flows.run.FlowRun` runs them."""

    async def start(self) -> object:
        """Starts all flows, unless they run."""
        ...

    async def changes(self) -> list[KernelChange]:
        """What changed in the kernels."""
        ...

    async def remove(self) -> None:
        """Ends the flows, and removes their objects."""
        ...


class GateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate allows, and where the proof goes."""

    folder: Path
    title: str
    most_lost: int = 0


class FlowGate:
    """The gate of one run; ``say`` is where its lines go on."""

    def __init__(self, flows: Flows, settings: GateSettings, clock: Clock, say: Callable[[str], None]) -> None:
        self._flows = flows
        self._settings = settings
        self._clock = clock
        self._say = say
        self._health = FlowHealth(flows, clock, settings.most_lost)
        self._began = 0.0
        self.proof: LossProof | None = None
        """That of the last run."""
        self._marks: list[StepMark] = []
        self._objects: tuple[ObjectDiff, ...] = ()

    def describe(self, objects: Iterable[ObjectDiff]) -> None:
        """Sets what the steps of the run change, for its proof."""
        self._objects = tuple(objects)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def say(self, line: str) -> None:
        """Passes a line of the run on; one that begins a step becomes a step of the proof."""
        if line.startswith("step ") and self._began:
            self._close_mark()
            self._marks.append(StepMark(at=self._now(), title=line.removeprefix("step ").partition(";")[0]))
        self._say(line)

    def _close_mark(self) -> None:
        if self._marks and not self._marks[-1].until:
            self._marks[-1] = msgspec.structs.replace(self._marks[-1], until=self._now())

    async def begin(self) -> None:
        """Starts the flows; removes them again when that fails.

        Raises: ClusterError when flows have no answers before anything was changed.
        """
        try:
            await self._flows.start()
        except (PodwireError, OSError):
            await self._flows.remove()
            raise
        self._began = self._now()

    async def losses(self) -> list[str]:
        """Flows that stay without an answer, senders that hang, and messages lost beyond what is allowed, in words.

        It waits until the fate of all messages that were sent before is known, so that a loss counts at its step.
        """
        return await self._health.problems(decided=True)

    async def end(self) -> None:
        """Writes the proof, and removes the flows; does nothing unless they began."""
        if not self._began:
            return
        self._close_mark()
        try:
            await self._write()
        except (PodwireError, OSError) as failure:
            self._say(f"there is no loss proof: {failure}")
        self._began = 0.0
        await self._flows.remove()

    async def _write(self) -> None:
        ended = self._now()
        reports, changes = await self._flows.settle(), await self._flows.changes()
        self.proof = LossProof(
            title=self._settings.title,
            began=self._began,
            ended=ended,
            nodes=len({flow.source for flow in reports} - {"outside"}),
            steps=tuple(self._marks),
            flows=tuple(reports),
            changes=tuple(changes),
            objects=self._objects,
        )
        file = write_proof(self._settings.folder, self.proof)
        self._say(f"loss proof: {file}; `podwire upgrade report {file}` shows it")
