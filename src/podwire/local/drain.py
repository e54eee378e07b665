"""Empties nodes before they are removed, as ``kubectl drain`` does: their pods end and are replaced on other nodes.

First a taint keeps new pods away (NoExecute, so that pods of DaemonSets are evicted, too). Then the pods are deleted
with their grace period: each leaves its Services before its program stops. Pods that remain after :data:`PATIENCE_S`
are deleted at once, together with the nodes. Of a removed node only the certificates remain. Cost: a list of pods every
:data:`_POLL_S` during the drain.
"""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path

from podwire.cluster.names import NODE_LEAVING
from podwire.embedded.kubelet.podrecord import load_record
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
    """Taints the nodes and returns when their pods have ended, or after :data:`PATIENCE_S`."""
    names = tuple(nodes)
    await asyncio.gather(*(_close(client, name) for name in names))
    clock = client.clock
    deadline = clock.monotonic() + PATIENCE_S
    leaving = [pod for pod in await _pods_on(client, names) if not pod.finished]
    await asyncio.gather(*(_delete(client, pod) for pod in leaving))
    # Pods that were added meanwhile tolerate every taint, and would be added again after a deletion.
    deleted = {pod.metadata.uid for pod in leaving}
    while clock.monotonic() < deadline:
        pods_left = {pod.metadata.uid for pod in await _pods_on(client, names) if not pod.finished}
        if not pods_left & deleted:
            return
        await clock.sleep(_POLL_S)


async def forget(client: Client, nodes: Iterable[str]) -> None:
    """Deletes the nodes, and deletes the pods that are still bound to them without a grace period."""
    names = tuple(nodes)
    await asyncio.gather(*(_forget(client, name) for name in names))
    remaining_pods = await _pods_on(client, names)
    await asyncio.gather(*(_delete(client, pod, grace_period_s=0) for pod in remaining_pods))


def remove(topology: Topology, node: str) -> None:
    """Ends the remaining processes of a node whose agent and kubelet have ended; removes its namespaces and folders."""
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
