"""The state of a local cluster: nodes, data planes in use and why, processes, what is wrong, the kubeconfig line."""

import asyncio
from pathlib import Path

import msgspec

from podwire.cluster.names import NODE_FALLBACK, NODE_POLICY, NODE_PROXY, NODE_ROUTING, NODE_SESSIONS
from podwire.errors import ApiUnreachable
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig, patient
from podwire.kube.resources import NODES, PODS
from podwire.local import credentials
from podwire.local.briefs import KEEPER, SUPERVISOR, ProcessStatus, processes_of
from podwire.local.lab.record import read_conditions
from podwire.local.topology import Topology
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.wording import columns, count
from podwire.runtime.clock import SystemClock

_MANY = 24


class NodeOverview(msgspec.Struct, frozen=True, rename="camel"):
    """One node; data planes are empty until its agent has announced them."""

    name: str
    ready: bool
    addresses: tuple[str, ...]
    pod_cidrs: tuple[str, ...] = msgspec.field(name="podCIDRs")
    pods: int
    routing: str
    services: str
    policies: str
    notice: str
    """The parts that run in degraded mode, and the reason."""
    sessions: str
    """The sessions of routing with peers, where the backend has any."""


class ClusterStatus(msgspec.Struct, frozen=True):
    """The whole status; ``problems`` has a line for each problem, and is empty when the cluster is healthy."""

    cluster: str
    kubeconfig: str
    problems: tuple[str, ...]
    nodes: tuple[NodeOverview, ...]
    processes: tuple[ProcessStatus, ...]
    links: tuple[str, ...] = ()
    """A line for each link of the fabric with a condition of ``podwire lab`` or of the configuration."""


async def read_status(topology: Topology, client: Client | None = None) -> ClusterStatus:
    """The state now; an API server that does not answer is a problem, not an exception.

    Raises: ConfigError when the kubeconfig cannot be read.
    """
    kubeconfig = credentials.kubeconfig_path(topology, "admin")
    processes = processes_of(topology)
    problems = list(_process_problems(topology.name, processes))
    nodes: tuple[NodeOverview, ...] = ()
    try:
        nodes = await _nodes_of(client, kubeconfig)
        problems += [f"{node.name} is not Ready" for node in nodes if not node.ready]
    except ApiUnreachable as failure:
        problems.append(f"the API server does not answer: {failure}")
    links = read_conditions(topology).lines()
    return ClusterStatus(topology.name, str(kubeconfig), tuple(problems), nodes, processes, links)


async def _nodes_of(client: Client | None, kubeconfig: Path) -> tuple[NodeOverview, ...]:
    if client is None and not kubeconfig.exists():
        raise ApiUnreachable("the cluster was not completely created")
    own = client or Client(patient(load_kubeconfig(kubeconfig)), SystemClock())
    try:
        nodes, pods = await asyncio.gather(own.list(NODES), own.list(PODS))
        return tuple(_node(node, tuple(pods.items)) for node in sorted(nodes.items, key=_order))
    finally:
        if client is None:
            await own.close()


def _order(node: Node) -> tuple[int, str]:
    return len(node.metadata.name), node.metadata.name


def _node(node: Node, pods: tuple[Pod, ...]) -> NodeOverview:
    meta = node.metadata
    return NodeOverview(
        name=meta.name,
        ready=node.ready,
        addresses=tuple(node.internal_ips),
        pod_cidrs=tuple(node.pod_cidrs),
        pods=sum(1 for pod in pods if pod.spec.node_name == meta.name and not pod.finished),
        routing=meta.annotations.get(NODE_ROUTING, ""),
        services=meta.annotations.get(NODE_PROXY, ""),
        policies=meta.annotations.get(NODE_POLICY, ""),
        notice=meta.annotations.get(NODE_FALLBACK, ""),
        sessions=meta.annotations.get(NODE_SESSIONS, ""),
    )


def _process_problems(cluster: str, processes: tuple[ProcessStatus, ...]) -> tuple[str, ...]:
    ended = [process.name for process in processes if not process.running]
    if KEEPER in ended or not processes:
        names = ", ".join(name for name in ended if name not in (KEEPER, SUPERVISOR))
        also = f"; these have ended: {names}" if names else ""
        problem = "the supervisor has ended, so nothing starts processes again that end"
        return (f"{problem}{also}; run `podwire up --name {cluster}`",)
    return tuple(f"{name} has ended; the {_STARTER.get(name, SUPERVISOR)} starts it again" for name in ended)


_STARTER = {SUPERVISOR: KEEPER}


def as_text(status: ClusterStatus) -> str:
    """Tables, problems, and the kubeconfig line."""
    notices = [f"{node.name}: {node.notice}" for node in status.nodes if node.notice]
    notices += [f"{node.name}: {node.sessions}" for node in status.nodes if node.sessions]
    sections = ["\n".join([_node_table(status.nodes), *notices])] if status.nodes else []
    sections.append(_process_table(status.processes))
    if status.links:
        sections.append("\n".join(f"link {line}" for line in status.links))
    if status.problems:
        sections.append("\n".join(f"problem: {problem}" for problem in status.problems))
    return "\n\n".join((*sections, f"export KUBECONFIG={status.kubeconfig}"))


def _node_table(nodes: tuple[NodeOverview, ...]) -> str:
    rows = [("NODE", "STATUS", "ADDRESS", "POD CIDR", "PODS", "ROUTING", "SERVICES", "POLICIES")]
    for node in nodes:
        rows.append(
            (
                node.name,
                "Ready" if node.ready else "NotReady",
                ",".join(node.addresses),
                ",".join(node.pod_cidrs),
                str(node.pods),
                node.routing or "-",
                node.services or "-",
                node.policies or "-",
            )
        )
    return columns(rows)


def _process_table(processes: tuple[ProcessStatus, ...]) -> str:
    """A row for each process; when there are many, only for ended processes."""
    shown = [process for process in processes if len(processes) <= _MANY or not process.running]
    rows = [
        (process.name, str(process.pid), "running" if process.running else "ended", process.version or "-")
        for process in shown
    ]
    table = columns([("PROCESS", "PID", "STATE", "VERSION"), *rows]) if rows else ""
    if len(processes) <= _MANY:
        return table
    ended = len(rows)
    total = f"{count(len(processes), 'process', 'processes')}, {ended} of them ended"
    return f"{total}\n{table}" if ended else total
