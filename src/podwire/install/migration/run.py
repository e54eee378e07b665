"""Runs a migration: node after node, step after step, with the state in the cluster.

Guarantees: 1. one run at a time: the Lease ``podwire-migration`` refuses a second; 2. nothing is changed before every
node has passed ``check``; 3. a step is recorded when it is done, and a run continues with the first step that is not;
a step that was interrupted is repeated; 4. a run stops at the first node that fails a step, and names it; 5. numbered
flows between pods of all nodes run from before the first change to the end, and their losses are counted.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from podwire.cluster import names
from podwire.errors import ClusterError, ConfigError
from podwire.flows import sending
from podwire.flows.count import FlowReport, summary
from podwire.install.migration import clusterplan
from podwire.install.migration.clusterobjects import ClusterObjects
from podwire.install.migration.record import MEANINGS, NAME, STEPS, Direction, MigrationRecord, NodeBefore, NodeRecord
from podwire.kube.alone import run_alone
from podwire.kube.client import Client
from podwire.kube.podruns import is_ready
from podwire.kube.resources import Json
from podwire.model.wording import count

Say = Callable[[str], None]
AGENT_FACTS = (
    names.NODE_ROUTING_FACTS, names.NODE_ROUTING, names.NODE_PROXY, names.NODE_POLICY, names.NODE_HEALTH_PORT,
    names.NODE_FALLBACK, names.NODE_SESSIONS,
)  # fmt: skip
"""Facts that an agent announces about its node; they are wrong as soon as the agent has ended."""
_SILENT_MS = 2000


class MigrationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line; ``nodes`` empty: all; ``daemonsets`` are further ones of the old network."""

    namespace: str = "kube-system"
    nodes: tuple[str, ...] = ()
    daemonsets: tuple[str, ...] = ()
    flows: bool = True


async def status(client: Client, namespace: str) -> Mapping[str, str]:
    """The state of each node in words."""
    try:
        objects = ClusterObjects(client, namespace)
        record = await objects.record.read()
        return {name: record.node(name).state for name in _names(await objects.nodes())}
    finally:
        await client.close()


async def run(action: str, client: Client, options: MigrationOptions, say: Say) -> int:
    """Runs ``plan``, ``apply`` or ``back``; the exit status.

    Raises: ConfigError, ClusterError and the errors of the API.
    """
    migration = Migration(ClusterObjects(client, options.namespace), options, say)
    try:
        return await run_alone(client, options.namespace, NAME, lambda: migration.run(action))
    finally:
        await client.close()


class Migration:
    """One run."""

    def __init__(self, objects: ClusterObjects, options: MigrationOptions, say: Say) -> None:
        self._objects = objects
        self._options = options
        self._say = say
        self._agents: Json = {}
        self._old: list[Json] = []
        self._record = MigrationRecord()
        self._targets: list[str] = []

    async def run(self, action: str) -> int:
        """Runs an action; the exit status.

        Raises: ConfigError, ClusterError.
        """
        self._agents = await self._objects.agents()
        self._old = clusterplan.old_daemonsets(await self._objects.daemonsets(), self._options.daemonsets)
        self._record = await self._objects.record.read()
        every = _names(await self._objects.nodes())
        chosen = self._options.nodes or tuple(every)
        if unknown := [name for name in chosen if name not in every]:
            raise ConfigError(
                "--node", "", f"{unknown[0]!r} is not a node of this cluster; the nodes are {', '.join(every)}"
            )
        clusterplan.check_agents(self._agents)
        if action == "plan":
            return await self._plan(chosen)
        await (self._apply(chosen, every) if action == "apply" else self._back(chosen, every))
        return 0

    async def _plan(self, nodes: Sequence[str]) -> int:
        for daemonset in self._old:
            meta = daemonset["metadata"]
            self._say(f"DaemonSet {meta['namespace']}/{meta['name']} would leave each node that podwire takes")
        faults = 0
        for node in nodes:
            before, passed = await self._check(node)
            faults += not passed
            proxy = f"kube-proxy in mode {before.kube_proxy}" if before.kube_proxy else "no kube-proxy"
            pods = count(before.pods, "pod")
            devices = f", tunnels {', '.join(before.devices)}" if before.devices else ""
            self._say(f"{node}: {pods} of host-local, {count(len(before.routes), 'route')}, {proxy}{devices}")
        for step in STEPS["apply"]:
            self._say(f"step {step}: {MEANINGS[step]}")
        return 1 if faults else 0

    async def _check(self, node: str) -> tuple[NodeBefore, bool]:
        pod = clusterplan.step_pod(self._agents, node, "check", ())
        passed, log = await self._objects.run_pod(pod)
        *lines, last = log.splitlines() or [""]
        try:
            before = msgspec.json.decode(last, type=NodeBefore)
        except msgspec.DecodeError as failure:
            raise ClusterError(f"{node}: check failed: {log.strip() or 'no log'}") from failure
        for line in lines:
            self._say(f"{node}: {line}")
        return before, passed

    async def _apply(self, nodes: Sequence[str], every: Sequence[str]) -> None:
        await self._objects.record.begin("apply")
        for node in nodes:
            if self._record.node(node).next_step("apply") == "check":
                before, passed = await self._check(node)
                if not passed:
                    raise ClusterError(f"{node} has a fault; nothing was changed on this node")
                await self._done(node, "apply", "check", msgspec.structs.replace(NodeRecord(), before=before))
        await self._start_flows(every)
        for daemonset in self._old:
            if patch := clusterplan.excluded(daemonset, exclude=True):
                await self._objects.change_daemonset(daemonset, patch)
        await self._steps("apply", nodes)
        await self._end_flows(every)

    async def _back(self, nodes: Sequence[str], every: Sequence[str]) -> None:
        await self._objects.record.begin("back")
        for node in await self._objects.nodes():
            name = str(node["metadata"]["name"])
            if clusterplan.selected(node) and self._record.node(name).state == "old network":
                # The run ended behind the label and before it was recorded.
                await self._done(name, "apply", "select", self._record.node(name))
        await self._start_flows(every)
        await self._steps("back", tuple(reversed(nodes)))
        await self._end_flows(every)
        if all(self._record.node(name).state == "old network" for name in every):
            for daemonset in clusterplan.old_daemonsets(await self._objects.daemonsets(), self._options.daemonsets):
                if patch := clusterplan.excluded(daemonset, exclude=False):
                    await self._objects.change_daemonset(daemonset, patch)
            await self._objects.record.delete()
            self._say("every node has the old network again")

    async def _steps(self, direction: Direction, nodes: Sequence[str]) -> None:
        for node in nodes:
            while step := self._record.node(node).next_step(direction):
                self._say(f"{node}: {step}")
                await self._step(node, step)
                await self._done(node, direction, step, self._record.node(node))

    async def _step(self, node: str, step: str) -> None:
        if step == "select":
            await self._objects.label(node, clusterplan.SELECTED)
            await self._until_old_pods(node, there=False)
            await self._objects.until(lambda: self._agent_runs(node), f"{node}: the agent has not started", 180)
            return
        if step == "release":
            await self._objects.label(node, None)
            await self._objects.until(lambda: self._agent_gone(node), f"{node}: the agent has not ended", 120)
            await self._objects.label(node, None, dict.fromkeys(AGENT_FACTS))
            return
        if step == "services-back":
            await self._until_old_pods(node, there=True)
        arguments = ["--before", msgspec.json.encode(self._record.node(node).before).decode()]
        if step.startswith("verify"):
            arguments = [word for target in self._targets for word in ("--target", target)]
        passed, log = await self._objects.run_pod(clusterplan.step_pod(self._agents, node, step, arguments))
        for line in log.splitlines():
            self._say(f"{node}:   {line}")
        if not passed:
            raise ClusterError(f"{node}: the step {step} failed; `podwire migrate back` undoes what was done")
        if step == "services":
            await self._objects.until(lambda: self._agent_ready(node), f"{node}: the agent is not ready", 180)
        if step.startswith("verify"):
            await self._objects.until(self._flows_go_on, f"{node}: flows have no answers", 60)

    async def _done(self, node: str, direction: Direction, step: str, entry: NodeRecord) -> None:
        entry = entry.after(direction, step)
        await self._objects.record.write_node(node, entry)
        self._record = MigrationRecord(direction=direction, nodes={**self._record.nodes, node: entry})

    async def _until_old_pods(self, node: str, *, there: bool) -> None:
        for daemonset in self._old:

            async def reached(daemonset: Json = daemonset) -> bool:
                pods = await self._objects.pods_of(daemonset, node)
                return any(map(is_ready, pods)) if there else not pods

            name = daemonset["metadata"]["name"]
            problem = f"{node}: the pod of {name} {'is not ready' if there else 'has not ended'}"
            await self._objects.until(reached, problem, 180)

    async def _agent_runs(self, node: str) -> bool:
        pods = await self._objects.pods_of(self._agents, node)
        return any((pod.get("status") or {}).get("phase") == "Running" for pod in pods)

    async def _agent_ready(self, node: str) -> bool:
        return any(map(is_ready, await self._objects.pods_of(self._agents, node)))

    async def _agent_gone(self, node: str) -> bool:
        return not await self._objects.pods_of(self._agents, node)

    async def _start_flows(self, nodes: Sequence[str]) -> None:
        """Starts the servers of all nodes, and the senders if they are wanted."""
        for node in nodes:
            await self._objects.ensure_pod(clusterplan.server_pod(self._agents, node))
        servers = [f"{clusterplan.FLOWS}-server-{node}" for node in nodes]
        self._targets = [await self._objects.address_of(name) for name in servers]
        service = await self._objects.ensure_service(clusterplan.flow_service())
        if any(self._record.node(node).before.kube_proxy for node in nodes):
            self._targets.append(service)
        if self._options.flows:
            for node in nodes:
                await self._objects.ensure_pod(clusterplan.sender_pod(self._agents, node, self._targets))
            await self._objects.until(self._flows_go_on, "flows have no answers before anything was changed", 60)

    async def _reports(self) -> dict[str, list[FlowReport]]:
        """The reports of the senders by the name of their node."""
        reports = {}
        for node in _names(await self._objects.nodes()):
            log = await self._objects.log(f"{clusterplan.FLOWS}-sender-{node}")
            reports[node] = sending.parse(log)
        return reports

    async def _flows_go_on(self) -> bool:
        """Whether every flow had an answer lately."""
        if not self._options.flows:
            return True
        reports = await self._reports()
        return all(counts and all(flow.silent_ms < _SILENT_MS for flow in counts) for counts in reports.values())

    async def _end_flows(self, nodes: Sequence[str]) -> None:
        if self._options.flows:
            reports = await self._reports()
            for node in nodes:
                for flow in reports.get(node, ()):
                    if flow.lost or flow.broken:
                        self._say(f"{node}: {flow.kind} to {flow.target}: {flow.lost} of {flow.sent} messages lost")
            for line in summary(flow for counts in reports.values() for flow in counts):
                self._say(line)
        await self._objects.delete_flows(clusterplan.FLOWS)


def _names(nodes: Sequence[Json]) -> list[str]:
    return [str(node["metadata"]["name"]) for node in nodes]
