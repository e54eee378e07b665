"""Reads the configurations of networks on every node by a pod that lists their directory, and removes the pods again.

The API does not tell what the container runtime of a node reads. A pod per node, ten at the same time, mounts the
directory read-only, lists it, and ends. The name of the pod follows from that of the node, so that a run replaces what
an interrupted one left.
"""

import asyncio
import hashlib
from collections.abc import Iterable

from podwire.errors import ApiError, ClusterError
from podwire.kube.client import Client
from podwire.kube.podruns import PodRuns
from podwire.kube.resources import Json
from podwire.kube.steppod import step_pod
from podwire.upgrade.nodepods import SUFFIXES, NodeFolders
from podwire.upgrade.plan.values import UpgradeFinding

NAME = "podwire-preflight"
NAMESPACE = "kube-system"
DIRECTORY = NodeFolders().conf_dir
DIRECTORIES = {"k3s": "/var/lib/rancher/k3s/agent/etc/cni/net.d"}
"""The directories of layouts that have another one."""
_PARALLEL = 10
_DEADLINE_S = 60
"""Seconds that a node has for the image, and for a directory that is missing."""


def pod_of(node: str, image: str, directory: str) -> Json:
    """The pod that lists a directory of a node."""
    digest = hashlib.sha256(node.encode()).hexdigest()[:10]
    container = {
        "name": "list",
        "image": image,
        "command": ["ls", "-1", directory],
        "volumeMounts": [{"name": "configurations", "mountPath": directory, "readOnly": True}],
    }
    spec = {
        "hostNetwork": True,
        "activeDeadlineSeconds": _DEADLINE_S,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "configurations", "hostPath": {"path": directory, "type": "Directory"}}],
    }
    return step_pod(f"{NAME}-{digest}", node, {"app.kubernetes.io/name": NAME}, spec)


def configurations(listing: str) -> tuple[str, ...]:
    """The configurations of a listing in the order in which a container runtime takes them."""
    return tuple(sorted(line.strip() for line in listing.splitlines() if line.strip().endswith(SUFFIXES)))


async def read_configurations(
    client: Client, nodes: Iterable[str], image: str, directory: str
) -> tuple[dict[str, tuple[str, ...]], tuple[UpgradeFinding, ...]]:
    """By node its configurations, and a warning for each node that could not be read.

    Raises: ApiUnreachable.
    """
    pods = PodRuns(client, NAMESPACE)
    gate = asyncio.Semaphore(_PARALLEL)
    results: dict[str, tuple[str, ...]] = {}
    problems: dict[str, str] = {}

    async def read(node: str) -> None:
        body = pod_of(node, image, directory)
        async with gate:
            try:
                succeeded, text = await pods.run_pod(body)
            except (ApiError, ClusterError) as failure:
                problems[node] = str(failure)
            else:
                if succeeded:
                    results[node] = configurations(text)
                else:
                    problems[node] = text.strip().partition("\n")[0] or f"not within {_DEADLINE_S} s"

    names = list(nodes)
    for failure in await asyncio.gather(*map(read, names), return_exceptions=True):
        if failure is not None:
            raise failure
    findings = tuple(
        UpgradeFinding(
            severity="warning",
            object=f"Node {node}",
            field=directory,
            message=f"could not be read: {problems[node]}",
            remedy="look at the directory yourself, or give an image that the node can start",
        )
        for node in names
        if node in problems
    )
    return results, findings
