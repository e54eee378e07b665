"""Runs ``podwire upgrade node`` on nodes by short pods, and reads what these pods need from the API."""

from collections.abc import Sequence

from podwire.errors import ClusterError, NotFound
from podwire.kube.client import Client
from podwire.kube.podruns import PodRuns
from podwire.kube.resources import DAEMONSETS, NAMESPACES, NODES, Json
from podwire.upgrade import nodepods
from podwire.upgrade.nodepods import NodeFolders, ProbeImage

MANAGER = "podwire-upgrade"
"""The field manager of writes during an upgrade, a rehearsal and a restore."""
_LOG_TAIL = 500


class NodeCommands:
    """Runs commands on nodes, one at a time on each."""

    def __init__(self, client: Client, namespace: str, image: ProbeImage, folders: NodeFolders) -> None:
        self._runs = PodRuns(client, namespace)
        self._image = image
        self.folders = folders

    async def run(self, node: str, arguments: Sequence[str]) -> str:
        """The output of ``podwire upgrade node`` on a node.

        Raises: ClusterError when the pod fails, or does not end in time; ApiError.
        """
        passed, log = await self._runs.run_pod(nodepods.node_pod(self._image, node, self.folders, arguments))
        if not passed:
            reason = " ".join(log.split())[-_LOG_TAIL:] or "the pod has no log"
            raise ClusterError(f"{node}: {arguments[0]} failed: {reason}")
        return log


async def node_commands(client: Client, namespace: str, image: str, folders: NodeFolders) -> NodeCommands:
    """The commands with an image, or with that of podwire's agents and their directories.

    Raises: ConfigError when there is neither.
    """
    agents = await agents_of(client, namespace)
    return NodeCommands(client, namespace, nodepods.image_of(agents, image), nodepods.folders_of(agents, folders))


async def agents_of(client: Client, namespace: str) -> Json | None:
    """The DaemonSet of podwire's agents; None without podwire."""
    try:
        return await client.get(DAEMONSETS.raw, nodepods.AGENTS, namespace)
    except NotFound:
        return None


async def cluster_id(client: Client) -> str:
    """The UID of the namespace kube-system, the identity of the cluster."""
    return str((await client.get(NAMESPACES.raw, "kube-system"))["metadata"]["uid"])


async def nodes_ready(client: Client) -> dict[str, bool]:
    """Whether each Node is Ready, by name and in the order of names."""
    nodes = {str(node["metadata"]["name"]): node_is_ready(node) for node in (await client.list(NODES.raw)).items}
    return dict(sorted(nodes.items()))


def node_is_ready(node: Json) -> bool:
    """Whether a Node is Ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
