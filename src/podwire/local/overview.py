"""What a local cluster consists of, as text: nodes, data planes in use and why, processes, the kubeconfig line."""

import asyncio
from pathlib import Path

from podwire.cluster.names import NODE_FALLBACK, NODE_POLICY, NODE_PROXY, NODE_ROUTING
from podwire.errors import ApiUnreachable
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig, patient
from podwire.kube.resources import NODES, PODS
from podwire.local import credentials
from podwire.local.probe.result import columns
from podwire.local.topology import Topology
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.runtime.children import read_record
from podwire.runtime.clock import SystemClock


async def describe(topology: Topology, client: Client | None = None) -> str:
    """The text, several lines; when the API server does not answer, the text says so."""
    own = client or Client(patient(load_kubeconfig(credentials.kubeconfig_path(topology, "admin"))), SystemClock())
    try:
        nodes, pods = await asyncio.gather(own.list(NODES), own.list(PODS))
        text = _nodes(tuple(nodes.items), tuple(pods.items))
    except ApiUnreachable as failure:
        text = f"the API server does not answer: {failure}"
    finally:
        if client is None:
            await own.close()
    line = f"export KUBECONFIG={credentials.kubeconfig_path(topology, 'admin')}"
    return "\n\n".join((text, _processes(topology), line))


def _nodes(nodes: tuple[Node, ...], pods: tuple[Pod, ...]) -> str:
    rows = [("NODE", "STATUS", "ADDRESS", "POD CIDR", "PODS", "ROUTING", "SERVICES", "POLICIES")]
    notes: list[str] = []
    for node in sorted(nodes, key=_order):
        meta = node.metadata
        running = sum(1 for p in pods if p.spec.node_name == meta.name and not p.finished)
        rows.append(
            (
                meta.name,
                "Ready" if node.ready else "NotReady",
                ",".join(node.internal_ips),
                ",".join(node.pod_cidrs),
                str(running),
                meta.annotations.get(NODE_ROUTING, "-"),
                meta.annotations.get(NODE_PROXY, "-"),
                meta.annotations.get(NODE_POLICY, "-"),
            )
        )
        if fallback := meta.annotations.get(NODE_FALLBACK):
            notes.append(f"{meta.name}: {fallback}")
    return "\n".join([columns(rows), *notes])


def _order(node: Node) -> tuple[int, str]:
    return len(node.metadata.name), node.metadata.name


def _processes(topology: Topology) -> str:
    rows = [("PROCESS", "PID", "STATE")]
    ended = 0
    for file in sorted((Path(topology.run) / "processes").glob("*.json"), key=lambda f: (len(f.stem), f.stem)):
        record = read_record(file)
        if record is None:
            continue
        ended += not record.running
        rows.append((file.stem, str(record.pid), "running" if record.running else "ended"))
    if len(rows) > _MANY:
        return f"{len(rows) - 1} processes, {ended} of them ended"
    return columns(rows)


_MANY = 24
