"""Runs numbered flows in a cluster, from before a change to its end, and reads what they counted.

Guarantees: 1. :meth:`FlowRun.start` returns when every flow has answers and the denied ones were tried, so a flow that
never worked is an error before anything is changed; 2. it can be called again: pods that run go on, so that a run that
was killed continues with the same counts; 3. :meth:`FlowRun.silent` names the flows without an answer for a while, for
a health gate; 4. :meth:`FlowRun.settle` waits until the fate of the last messages is known, and
:meth:`FlowRun.remove` removes all objects.

The flows from outside run in a thread of this process. Their counts are written to ``folder`` at each report; a run
that continues adds a file of its own, and :meth:`FlowRun.remove` removes the folder.
"""

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from podwire.flows import objects, plan, sending
from podwire.flows.changes import KernelChange
from podwire.flows.changes import parse as parse_changes
from podwire.flows.clusterobjects import FlowCluster
from podwire.flows.count import DENIED, LOST_S, FlowReport, FlowTarget, since
from podwire.flows.plan import FlowAddresses
from podwire.flows.settings import FlowSettings
from podwire.kube.client import Client
from podwire.kube.resources import NODES, PODS
from podwire.runtime.files import write_atomically

SILENT_MS = 2000
OUTSIDE = "outside"
_READY_S = 120.0
_TRIES = 10
"""Attempts of each denied flow before the first change."""


class Window(msgspec.Struct, frozen=True):
    """When the measured time began, in seconds since 1970, and whether the cluster enforces NetworkPolicies."""

    began: float = 0.0
    enforced: bool = True


class FlowRun:
    """The flows of one cluster."""

    def __init__(self, client: Client, settings: FlowSettings, say: Callable[[str], None]) -> None:
        self._client = client
        self._settings = settings
        self._say = say
        self._objects = FlowCluster(client, settings, say)
        self._nodes: list[str] = []
        self._outside: OutsideFlows | None = None
        self._window = Window()

    async def start(self) -> FlowAddresses:
        """Starts all flows; what they go to.

        Raises: ClusterError when flows have no answers.
        """
        program, settings = self._settings.program, self._settings
        ready = [node for node in (await self._client.list(NODES)).items if node.ready]
        self._nodes = [
            node.metadata.name for node in ready if node.metadata.name in settings.nodes or not settings.nodes
        ]
        await self._objects.prepare()
        for node in self._nodes:
            await self._objects.create(PODS, objects.server_pod(program, node))
            if settings.record:
                await self._objects.create(PODS, objects.recorder_pod(program, node))
        addresses = await self._objects.addresses(
            self._nodes, [address for node in ready for address in node.internal_ips]
        )
        interval = ("--interval-ms", str(settings.interval_ms))
        for node in self._nodes:
            arguments = [*interval, *sending.write_targets(plan.inside(addresses, node))]
            await self._objects.create(PODS, objects.sender_pod(program, node, arguments))
        if settings.folder is not None and (targets := plan.outside(addresses)):
            self._outside = OutsideFlows(settings.folder, targets, settings.interval_ms / 1000)
        await self._objects.runs.until(self._all_answer, "flows have no answers before anything was changed", _READY_S)
        await self._open_window()
        return addresses

    async def reports(self) -> list[FlowReport]:
        """The counts of all flows so far."""
        reports: list[FlowReport] = []
        for node in self._nodes:
            log = await self._objects.log(objects.pod_name("sender", node), 2)
            reports += [msgspec.structs.replace(flow, source=node) for flow in sending.parse(log)]
        if self._settings.folder is not None:
            reports += outside_reports(self._settings.folder)
        enforced = self._window.enforced
        return [since(flow, self._window.began) for flow in reports if enforced or flow.kind not in DENIED]

    async def _open_window(self) -> None:
        """Sets the beginning of the measured time, unless an earlier run has; leaks that go on show that no policy is
        enforced, and denied flows are left out then."""
        folder = self._settings.folder
        file = folder / "window.json" if folder is not None else None
        if file is not None and file.exists():
            self._window = msgspec.json.decode(file.read_bytes(), type=Window)
            return
        clock = self._client.clock
        began = clock.now().timestamp()
        if sum(flow.leaked for flow in await self.reports()):
            await clock.sleep(2 * sending.REPORT_S)
        enforced = not any(since(flow, began).leaked for flow in await self.reports())
        if not enforced:
            self._say("the cluster does not enforce NetworkPolicies: denied flows are left out")
        self._window = Window(began, enforced)
        if file is not None:
            write_atomically(file, msgspec.json.encode(self._window))

    def senders(self) -> frozenset[str]:
        """The sources whose senders run."""
        return frozenset([*self._nodes, *([OUTSIDE] if self._outside is not None else [])])

    def silent(self, reports: list[FlowReport]) -> list[str]:
        """The flows that had no answer lately, in words; of the denied ones those that leak."""
        current = [flow for flow in reports if flow.source != OUTSIDE or self._outside is not None]
        silent = [
            f"{_title(flow)}: no answer for {flow.silent_ms / 1000:.1f} s"
            for flow in current
            if flow.silent_ms > SILENT_MS
        ]
        absent = sorted({*self._nodes} - {flow.source for flow in reports})
        if self._outside is not None and self._outside.failure:
            silent.append(f"the flows from outside have ended: {self._outside.failure}")
        silent += [f"no counts of the flows from {node}" for node in absent]
        return silent + [f"{_title(flow)}: {flow.leaked} messages leaked" for flow in current if flow.leaked > 0]

    async def changes(self) -> list[KernelChange]:
        """What changed in the kernels of the nodes so far, by time."""
        changes: list[KernelChange] = []
        for node in self._nodes if self._settings.record else ():
            changes += parse_changes(await self._objects.whole_log(objects.pod_name("recorder", node)), node)
        return sorted(changes, key=lambda change: change.at)

    async def settle(self) -> list[FlowReport]:
        """The counts of all flows when the fate of every message that was sent until now is known.

        Raises: ClusterError when a node does not give its counts.
        """
        await self._client.clock.sleep(LOST_S + 2 * sending.REPORT_S)
        await self._objects.runs.until(self._counted, "the flows cannot be counted", _READY_S)
        return await self.reports()

    async def _counted(self) -> str:
        absent = {*self._nodes} - {flow.source for flow in await self.reports()}
        return f"no counts of the flows from {', '.join(sorted(absent))}" if absent else ""

    def stop_outside(self) -> None:
        """Ends the flows from outside; their counts stay in the folder."""
        if self._outside is not None:
            self._outside.stop()
            self._outside = None

    async def remove(self) -> None:
        """Removes all objects and the folder of counts; returns when they are gone."""
        self.stop_outside()
        await self._objects.remove()
        if self._settings.folder is not None:
            shutil.rmtree(self._settings.folder, ignore_errors=True)

    async def _all_answer(self) -> str:
        """Why the start is not complete; empty when it is."""
        reports = await self.reports()
        sources = {flow.source for flow in reports}
        if lacking := sorted(self.senders() - sources):
            return f"no counts of {', '.join(lacking)}"
        late = [
            flow
            for flow in reports
            if (flow.sent < _TRIES if flow.kind in DENIED else not flow.answered or flow.silent_ms > SILENT_MS)
        ]
        return f"{_title(late[0])}: no answer" if late else ""


class OutsideFlows:
    """The sender in a thread of this process; ``failure`` is why it ended before it was stopped."""

    def __init__(self, folder: Path, targets: Sequence[FlowTarget], interval_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob(f"{OUTSIDE}-*.json")))
        file = folder / f"{OUTSIDE}-{number}.json"
        self.failure = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: self._send(targets, file, interval_s), daemon=True)
        self._thread.start()

    def _send(self, targets: Sequence[FlowTarget], file: Path, interval_s: float) -> None:
        try:
            sending.send(
                targets,
                lambda line: write_atomically(file, line.encode()),
                interval_s=interval_s,
                ended=lambda _turns: self._ended.is_set(),
            )
        except OSError as failure:
            self.failure = str(failure)

    def stop(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()


def outside_reports(folder: Path) -> list[FlowReport]:
    """The counts of flows from outside, of all runs that wrote to a folder."""
    reports: list[FlowReport] = []
    for file in sorted(folder.glob(f"{OUTSIDE}-*.json")):
        reports += [msgspec.structs.replace(flow, source=OUTSIDE) for flow in sending.parse(file.read_text())]
    return reports


def _title(flow: FlowReport) -> str:
    return f"{flow.kind} from {flow.source} to {flow.target} ({flow.path})"
