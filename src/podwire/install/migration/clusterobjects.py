"""Reads and writes the objects of a migration in the API: DaemonSets, Nodes, and pods with their logs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from podwire.errors import AlreadyExists, ClusterError, ConfigError, NotFound
from podwire.install.migration.clusterplan import AGENTS, LABEL
from podwire.install.migration.recordstore import RecordStore
from podwire.kube.client import STRATEGIC_MERGE_PATCH, Client
from podwire.kube.resources import DAEMONSETS, NODES, PODS, SERVICES, Json

_POLL_S = 0.3
EVENT_LINES = 200


class ClusterObjects:
    """The objects of one cluster; ``namespace`` is podwire's."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
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
        meta = daemonset["metadata"]
        page = await self._client.list(PODS.raw, meta["namespace"], field_selector=f"spec.nodeName={node}")
        return [pod for pod in page.items if any(owner["uid"] == meta["uid"] for owner in _owners(pod))]

    async def ensure_service(self, body: Json) -> str:
        """The address of a Service, which is created when it is missing."""
        name = body["metadata"]["name"]
        try:
            present = await self._client.create(SERVICES, body, self.namespace)
        except AlreadyExists:
            present = await self._client.get(SERVICES, name, self.namespace)
        return str(present["spec"]["clusterIP"])

    async def ensure_pod(self, body: Json) -> None:
        """Creates a pod unless it is there; one that has ended is replaced."""
        name = body["metadata"]["name"]
        present = await self._pod(name)
        if present is not None and _phase(present) in ("Failed", "Succeeded"):
            await self.delete_pod(name)
            present = None
        if present is None:
            await self._client.create(PODS, body, self.namespace)

    async def delete_pod(self, name: str) -> None:
        """Deletes a pod and waits until it is gone."""
        try:
            await self._client.delete(PODS, name, self.namespace, grace_period_s=0)
        except NotFound:
            return
        await self.until(lambda: self._is_gone(name), f"pod {name} is not deleted", 60)

    async def delete_flows(self, name: str) -> None:
        """Deletes the pods and the Service of flows."""
        selector = f"app.kubernetes.io/name={name}"
        for pod in (await self._client.list(PODS.raw, self.namespace, label_selector=selector)).items:
            await self.delete_pod(pod["metadata"]["name"])
        try:
            await self._client.delete(SERVICES, name, self.namespace)
        except NotFound:
            pass

    async def address_of(self, name: str) -> str:
        """The address of a pod, when it is ready."""
        addresses: list[str] = []

        async def ready() -> bool:
            pod = await self._pod(name)
            if pod is not None and is_ready(pod):
                addresses.append(str(pod["status"]["podIP"]))
            return bool(addresses)

        await self.until(ready, f"pod {name} is not ready", 120)
        return addresses[0]

    async def run_pod(self, body: Json) -> tuple[bool, str]:
        """Runs a pod to its end; whether it succeeded, and its log."""
        name = body["metadata"]["name"]
        await self.delete_pod(name)
        await self._client.create(PODS, body, self.namespace)
        phases: list[str] = []

        async def ended() -> bool:
            pod = await self._pod(name)
            phases.append(_phase(pod) if pod is not None else "Failed")
            return phases[-1] in ("Succeeded", "Failed")

        await self.until(ended, f"pod {name} has not ended", 300)
        text = await self.log(name)
        await self.delete_pod(name)
        return phases[-1] == "Succeeded", text

    async def log(self, name: str) -> str:
        """The end of a pod's log; empty when it cannot be read."""
        path = PODS.path(self.namespace, name, "log")
        answer = await self._client.raw("GET", path, {"tailLines": str(EVENT_LINES)})
        return answer.body.decode(errors="replace") if answer.status < 400 else ""

    async def until(self, reached: Callable[[], Awaitable[bool]], problem: str, seconds: float) -> None:
        """Returns when ``reached`` does.

        Raises: ClusterError with the problem after some seconds.
        """
        clock = self._client.clock
        until = clock.monotonic() + seconds
        while not await reached():
            if clock.monotonic() > until:
                raise ClusterError(f"{problem} after {seconds:.0f} s")
            await clock.sleep(_POLL_S)

    async def _pod(self, name: str) -> Json | None:
        try:
            return await self._client.get(PODS.raw, name, self.namespace)
        except NotFound:
            return None

    async def _is_gone(self, name: str) -> bool:
        return await self._pod(name) is None


def is_ready(pod: Json) -> bool:
    """Whether a pod is ready and is not being deleted."""
    conditions: list[Any] = (pod.get("status") or {}).get("conditions") or []
    deleted = "deletionTimestamp" in pod["metadata"]
    return not deleted and any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _phase(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def _owners(pod: Json) -> list[Any]:
    return list(pod["metadata"].get("ownerReferences") or ())
