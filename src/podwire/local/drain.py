"""Empties nodes that are to go, as ``kubectl drain`` does: their pods end in order and are replaced elsewhere.

A taint keeps new pods away first (NoExecute, so that DaemonSets leave too), then the pods are told to end: each
leaves its Services before its program stops. Whatever is left after :data:`PATIENCE_S` is deleted without waiting,
with the nodes themselves; then nothing of a node is left but its certificates. Cost: a list of pods every
:data:`_POLL_S` while it lasts.
"""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path

from podwire.cluster.names import NODE_LEAVING
from podwire.embedded.kubelet.sandbox import load_record
from podwire.errors import Conflict, NotFound
from podwire.kernel import netns
from podwire.kube.client import STRATEGIC_MERGE_PATCH, Client
from podwire.kube.resources import NODES, PODS
from podwire.local import teardown
from podwire.local.topology import Topology
from podwire.model.pod import Pod

PATIENCE_S = 10.0
_POLL_S = 0.05
_TAINT = {"key": NODE_LEAVING, "effect": "NoExecute"}


async def drain(client: Client, nodes: Iterable[str]) -> None:
    """Closes the nodes and returns when the pods on them have ended, or have not in time."""
    names = tuple(nodes)
    await asyncio.gather(*(_close(client, name) for name in names))
    clock = client.clock
    deadline = clock.monotonic() + PATIENCE_S
    leaving = [pod for pod in await _pods_on(client, names) if not pod.finished]
    await asyncio.gather(*(_delete(client, pod) for pod in leaving))
    # Those that came meanwhile tolerate any taint, and would come again.
    told = {pod.metadata.uid for pod in leaving}
    while clock.monotonic() < deadline:
        left = {pod.metadata.uid for pod in await _pods_on(client, names) if not pod.finished}
        if not left & told:
            return
        await clock.sleep(_POLL_S)


async def forget(client: Client, nodes: Iterable[str]) -> None:
    """Deletes the nodes, and at once the pods that are still bound to them."""
    names = tuple(nodes)
    await asyncio.gather(*(_forget(client, name) for name in names))
    left = await _pods_on(client, names)
    await asyncio.gather(*(_delete(client, pod, grace_period_s=0) for pod in left))


def remove(topology: Topology, node: str) -> None:
    """Ends what still runs on a node without agent and kubelet, and takes away its namespaces and folders."""
    run, state = Path(topology.node_run(node)), Path(topology.node_state(node))
    records = [load_record(folder) for folder in (state / "kubelet/pods").glob("*")]
    namespaces = [Path(topology.netns(node)), *(Path(r.netns) for r in records if r and r.netns)]
    teardown.end_inside(namespaces)
    for namespace in namespaces:
        netns.delete(namespace)
    teardown.unmount_below((run, state))
    for folder in (run, state):
        shutil.rmtree(folder, ignore_errors=True)


async def _close(client: Client, name: str) -> None:
    try:
        patch = {"spec": {"unschedulable": True, "taints": [_TAINT]}}
        await client.patch(NODES, name, patch, patch_type=STRATEGIC_MERGE_PATCH)
    except NotFound:
        pass


async def _forget(client: Client, name: str) -> None:
    try:
        await client.delete(NODES, name)
    except NotFound:
        pass


async def _pods_on(client: Client, names: tuple[str, ...]) -> list[Pod]:
    pods = await client.list(PODS)
    return [pod for pod in pods.items if pod.spec.node_name in names]


async def _delete(client: Client, pod: Pod, grace_period_s: int | None = None) -> None:
    try:
        meta = pod.metadata
        await client.delete(PODS, meta.name, meta.namespace, grace_period_s=grace_period_s, uid=meta.uid)
    except (NotFound, Conflict):
        pass
