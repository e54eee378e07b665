"""Reads and writes the objects of a migration in the API: DaemonSets, Nodes, and pods with their logs."""

from collections.abc import Awaitable, Callable, Mapping

from podwire.errors import ConfigError, NotFound
from podwire.install.agentpods import AGENTS
from podwire.install.migration.clusterplan import LABEL
from podwire.install.migration.recordstore import RecordStore
from podwire.kube.client import STRATEGIC_MERGE_PATCH, Client
from podwire.kube.podruns import PodRuns, is_owned
from podwire.kube.resources import DAEMONSETS, NODES, PODS, Json

EVENT_LINES = 200


class ClusterObjects:
    """The objects of one cluster; ``namespace`` is podwire's."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._pods = PodRuns(client, namespace)
        self.namespace = namespace
        self.record = RecordStore(client, namespace)

    async def agents(self) -> Json:
        """The DaemonSet of podwire's agents.

        Raises: ConfigError when podwire is not installed.
        """
        try:
            return await self._client.get(DAEMONSETS, AGENTS, self.namespace)
        except NotFound as failure:
            problem = f"there is no DaemonSet {AGENTS}; install podwire's chart first"
            raise ConfigError(f"namespace {self.namespace}", "", problem) from failure

    async def daemonsets(self) -> list[Json]:
        """All DaemonSets."""
        return list((await self._client.list(DAEMONSETS.raw)).items)

    async def nodes(self) -> list[Json]:
        """All Nodes, by name."""
        return sorted((await self._client.list(NODES.raw)).items, key=lambda node: str(node["metadata"]["name"]))

    async def change_daemonset(self, daemonset: Json, patch: Json) -> None:
        """Changes the template of a DaemonSet."""
        meta = daemonset["metadata"]
        await self._client.patch(DAEMONSETS, meta["name"], patch, meta["namespace"])

    async def label(self, node: str, value: str | None, annotations: Mapping[str, None] = {}) -> None:
        """Sets the label that selects podwire, or removes it; ``annotations`` are removed."""
        meta: Json = {"labels": {LABEL: value}}
        if annotations:
            meta["annotations"] = dict(annotations)
        await self._client.patch(NODES, node, {"metadata": meta}, patch_type=STRATEGIC_MERGE_PATCH)

    async def pods_of(self, daemonset: Json, node: str) -> list[Json]:
        """The pods of a DaemonSet on a node."""
        namespace = daemonset["metadata"]["namespace"]
        page = await self._client.list(PODS.raw, namespace, field_selector=f"spec.nodeName={node}")
        return [pod for pod in page.items if is_owned(pod, daemonset)]

    async def ensure_service(self, body: Json) -> str:
        """The address of a Service, which is created when it is missing."""
        return str((await self._pods.ensure_service(body))["spec"]["clusterIP"])

    async def ensure_pod(self, body: Json) -> None:
        """Creates a pod unless it is there; one that has ended is replaced."""
        await self._pods.ensure_pod(body)

    async def delete_flows(self, name: str) -> None:
        """Deletes the pods and the Service of flows."""
        await self._pods.delete_labelled(name)

    async def address_of(self, name: str) -> str:
        """The address of a pod, when it is ready."""
        return await self._pods.address_of(name)

    async def run_pod(self, body: Json) -> tuple[bool, str]:
        """Runs a pod to its end; whether it succeeded, and the end of its log."""
        passed, text = await self._pods.run_pod(body)
        return passed, "\n".join(text.splitlines()[-EVENT_LINES:])

    async def log(self, name: str) -> str:
        """The end of a pod's log; empty when it cannot be read."""
        return await self._pods.log(name, EVENT_LINES)

    async def until(self, reached: Callable[[], Awaitable[bool]], problem: str, seconds: float) -> None:
        """Returns when ``reached`` does.

        Raises: ClusterError with the problem after some seconds.
        """
        await self._pods.until(reached, problem, seconds)
