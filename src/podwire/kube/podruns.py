"""Short pods of a command: made, awaited, their logs read, deleted.

A step on a node is a pod that runs to its end there; its log is the answer. A pod that serves stays until deleted.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from podwire.errors import AlreadyExists, ClusterError, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import PODS, SERVICES, Json

_POLL_S = 0.3
START_S = 120
END_S = 300


class PodRuns:
    """The pods of a command in one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def ensure_service(self, body: Json) -> Json:
        """A Service, which is created when it is missing."""
        try:
            return await self._client.create(SERVICES, body, self.namespace)
        except AlreadyExists:
            return await self._client.get(SERVICES, body["metadata"]["name"], self.namespace)

    async def ensure_pod(self, body: Json) -> None:
        """Creates a pod unless it is there; one that has ended is replaced."""
        name = body["metadata"]["name"]
        present = await self.pod(name)
        if present is not None and phase(present) in ("Failed", "Succeeded"):
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

    async def delete_labelled(self, name: str) -> None:
        """Deletes the pods with the label ``app.kubernetes.io/name``, and the Service of this name."""
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
            pod = await self.pod(name)
            if pod is not None and is_ready(pod):
                addresses.append(str(pod["status"]["podIP"]))
            return bool(addresses)

        await self.until(ready, f"pod {name} is not ready", START_S)
        return addresses[0]

    async def run_pod(self, body: Json) -> tuple[bool, str]:
        """Runs a pod to its end; whether it succeeded, and its log.

        The pod is deleted in any case: one that starts late must not act when nobody waits for it any more.

        Raises: ClusterError when it does not end in time; ApiError, ApiUnreachable.
        """
        name = body["metadata"]["name"]
        await self.delete_pod(name)
        await self._client.create(PODS, body, self.namespace)
        phases: list[str] = []

        async def ended() -> bool:
            pod = await self.pod(name)
            phases.append(phase(pod) if pod is not None else "Failed")
            return phases[-1] in ("Succeeded", "Failed")

        try:
            await self.until(ended, f"pod {name} has not ended", END_S)
            text = await self.log(name)
        finally:
            await self.delete_pod(name)
        return phases[-1] == "Succeeded", text

    async def log(self, name: str, lines: int | None = None) -> str:
        """A pod's log, or its last lines; empty when it cannot be read."""
        path = PODS.path(self.namespace, name, "log")
        answer = await self._client.raw("GET", path, {"tailLines": str(lines)} if lines else None)
        return answer.body.decode(errors="replace") if answer.status < 400 else ""

    async def until(self, reached: Callable[[], Awaitable[bool | str]], problem: str, seconds: float) -> None:
        """Returns when ``reached`` returns True, or an empty text; another text is the reason why not.

        Raises: ClusterError with the problem, and the reason, after some seconds.
        """
        clock = self._client.clock
        until = clock.monotonic() + seconds
        while (state := await reached()) not in (True, ""):
            if clock.monotonic() > until:
                raise ClusterError(f"{problem} after {seconds:.0f} s" + (f": {state}" if state else ""))
            await clock.sleep(_POLL_S)

    async def pod(self, name: str) -> Json | None:
        """A pod; None when it is not there."""
        try:
            return await self._client.get(PODS.raw, name, self.namespace)
        except NotFound:
            return None

    async def _is_gone(self, name: str) -> bool:
        return await self.pod(name) is None


def is_ready(pod: Json) -> bool:
    """Whether a pod is ready and is not being deleted."""
    conditions: list[Any] = (pod.get("status") or {}).get("conditions") or []
    deleted = "deletionTimestamp" in pod["metadata"]
    return not deleted and any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def phase(pod: Json) -> str:
    """The phase of a pod; empty before its first status."""
    return str((pod.get("status") or {}).get("phase") or "")


def is_owned(pod: Json, owner: Json) -> bool:
    """Whether an object is an owner of the pod."""
    return any(entry["uid"] == owner["metadata"]["uid"] for entry in pod["metadata"].get("ownerReferences") or ())
