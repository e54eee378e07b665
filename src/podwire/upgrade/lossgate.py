"""Counts the losses of numbered flows during an upgrade, as a gate of its steps, and writes the loss proof at its end.

The flows begin before the first change and go on until the last step; the proof has the lines of the run as its steps.
In the folder are the counts of flows from outside and ``proof.json``, which ``podwire upgrade report`` shows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from podwire.errors import ClusterError, PodwireError
from podwire.flows.changes import KernelChange
from podwire.flows.count import FlowReport
from podwire.flows.objects import FlowProgram
from podwire.flows.proof import LossProof, StepMark, render_json
from podwire.flows.run import FlowRun
from podwire.flows.settings import FlowSettings
from podwire.kube.client import Client
from podwire.runtime.clock import Clock
from podwire.runtime.files import write_atomically
from podwire.upgrade.nodecommands import agents_of
from podwire.upgrade.nodepods import image_of

PROOF = "proof.json"
_QUIET_S = 30.0
_POLL_S = 0.5


async def flow_gate(client: Client, namespace: str, image: str, folder: Path, say: Callable[[str], None]) -> "FlowGate":
    """The gate of an upgrade; its pods run ``image``, or the image of podwire's agents when that is empty.

    Raises: ConfigError when there is no image.
    """
    probe = image_of(await agents_of(client, namespace), image)
    program = FlowProgram(
        image=probe.image,
        command=probe.command,
        pull_policy=probe.pull_policy,
        pull_secrets=probe.pull_secrets,
    )
    flows = FlowRun(client, FlowSettings(program=program, folder=folder / "flows"), say)
    return FlowGate(flows, GateSettings(folder=folder, title="Upgrade"), client.clock, say)


class Flows(Protocol):
    """The flows of a cluster, as :class:`podwire.flows.run.FlowRun` runs them."""

    async def start(self) -> object:
        """Starts all flows, unless they run."""
        ...

    async def silent(self) -> list[str]:
        """The flows without answers, in words."""
        ...

    async def reports(self) -> list[FlowReport]:
        """The counts so far."""
        ...

    async def settle(self) -> list[FlowReport]:
        """The counts when the fate of every message is known."""
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
        self._began = 0.0
        self._marks: list[StepMark] = []

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
        """Flows that stay without an answer, and the messages lost beyond what is allowed, in words.

        It waits until the fate of all messages that were sent before is known, so that a loss counts at its step.
        """
        try:
            await self._flows.settle()
        except ClusterError as failure:
            return [str(failure)]
        deadline = self._clock.monotonic() + _QUIET_S
        while (silent := await self._flows.silent()) and self._clock.monotonic() < deadline:
            await self._clock.sleep(_POLL_S)
        lost = sum(flow.lost for flow in await self._flows.reports())
        if lost > self._settings.most_lost:
            silent.append(f"{lost} messages were lost, at most {self._settings.most_lost} may be")
        return silent

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
        proof = LossProof(
            title=self._settings.title,
            began=self._began,
            ended=ended,
            nodes=len({flow.source for flow in reports} - {"outside"}),
            steps=tuple(self._marks),
            flows=tuple(reports),
            changes=tuple(changes),
        )
        self._settings.folder.mkdir(parents=True, exist_ok=True)
        file = self._settings.folder / PROOF
        write_atomically(file, render_json(proof).encode())
        self._say(f"loss proof: {file}; `podwire upgrade report {file}` shows it")
