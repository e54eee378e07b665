"""Reads what only nodes know by a pod on each, and removes the pods again: configurations of networks, kernel modules.

The API does not tell what the container runtime of a node reads, nor which modules its kernel has. A pod per node, ten
at the same time, mounts both directories read-only, lists what matters, and ends. The name of the pod follows from that
of the node, so that a run replaces what an interrupted one left. A node without the files of its kernel's modules, such
as one whose kernel has everything built in, has unknown modules.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable

from podwire.errors import ApiError, ClusterError
from podwire.kube.client import Client
from podwire.kube.podruns import PodRuns
from podwire.kube.resources import Json
from podwire.kube.steppod import step_pod
from podwire.model.meta import Fact
from podwire.upgrade.inventory.inventory import InventoryNode
from podwire.upgrade.nodepods import SUFFIXES, NodeFolders
from podwire.upgrade.plan.values import UpgradeFinding
from podwire.upgrade.preflight.checks import MODULES

NAME = "podwire-preflight"
NAMESPACE = "kube-system"
DIRECTORY = NodeFolders().conf_dir
DIRECTORIES = {"k3s": "/var/lib/rancher/k3s/agent/etc/cni/net.d"}
"""The directories of layouts that have another one."""
_PARALLEL = 10
_MODULES_DIR = "/lib/modules"
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]*")
_KNOWN = "modules-are-known"
"""The line of a node that has the files of its kernel's modules."""
_DEADLINE_S = 60
"""Seconds that a node has for the image, and for a directory that is missing."""


class NodeListing(Fact, frozen=True, kw_only=True):
    """What a pod read on its node."""

    configurations: tuple[str, ...] = ()
    """In the order in which a container runtime takes them."""
    modules: frozenset[str] | None = None
    """Those of :data:`MODULES` that the kernel has; None: not known."""


def pod_of(node: str, kernel: str, image: str, directory: str) -> Json:
    """The pod that reads a node whose kernel has a release such as ``6.1.0-18-amd64``."""
    digest = hashlib.sha256(node.encode()).hexdigest()[:10]
    release = kernel if _RELEASE.fullmatch(kernel) else "unknown"
    files = f"{_MODULES_DIR}/{release}/modules.builtin {_MODULES_DIR}/{release}/modules.dep"
    pattern = "|".join(sorted(MODULES))
    script = (
        f'ls -1 "$0" || exit 1; for file in {files}; do [ -e $file ] && echo {_KNOWN}; done; '
        f"grep -ohE '/({pattern})[.]ko' {files} 2>/dev/null | sort -u; exit 0"
    )
    container = {
        "name": "list",
        "image": image,
        "command": ["sh", "-c", script, directory],
        "volumeMounts": [
            {"name": "configurations", "mountPath": directory, "readOnly": True},
            {"name": "modules", "mountPath": _MODULES_DIR, "readOnly": True},
        ],
    }
    spec = {
        "hostNetwork": True,
        "activeDeadlineSeconds": _DEADLINE_S,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": "configurations", "hostPath": {"path": directory, "type": "Directory"}},
            {"name": "modules", "hostPath": {"path": _MODULES_DIR}},
        ],
    }
    return step_pod(f"{NAME}-{digest}", node, {"app.kubernetes.io/name": NAME}, spec)


def facts_of(listing: str) -> NodeListing:
    """What a pod listed."""
    lines = [line.strip() for line in listing.splitlines()]
    names = (line.removeprefix("/").removesuffix(".ko") for line in lines if line.startswith("/"))
    return NodeListing(
        configurations=tuple(sorted(line for line in lines if line.endswith(SUFFIXES))),
        modules=MODULES.intersection(names) if _KNOWN in lines else None,
    )


async def read_facts(
    client: Client, nodes: Iterable[InventoryNode], image: str, directory: str
) -> tuple[dict[str, NodeListing], tuple[UpgradeFinding, ...]]:
    """By node what was read there, and a warning for each node that could not be read.

    Raises: ApiUnreachable.
    """
    pods = PodRuns(client, NAMESPACE)
    gate = asyncio.Semaphore(_PARALLEL)
    results: dict[str, NodeListing] = {}
    problems: dict[str, str] = {}

    async def read(member: InventoryNode) -> None:
        node = member.name
        body = pod_of(node, member.status.node_info.kernel_version, image, directory)
        async with gate:
            try:
                succeeded, text = await pods.run_pod(body)
            except (ApiError, ClusterError) as failure:
                problems[node] = str(failure)
            else:
                if succeeded:
                    results[node] = facts_of(text)
                else:
                    problems[node] = text.strip().partition("\n")[0] or f"not within {_DEADLINE_S} s"

    members = list(nodes)
    for failure in await asyncio.gather(*map(read, members), return_exceptions=True):
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
        for node in (member.name for member in members)
        if node in problems
    )
    return results, findings
