"""A whole control plane in one event loop: the real API server, all local controllers, and hollow nodes.

A hollow node is a kubelet without containers: it reports itself ready and answers for the pods bound to it.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import NODES, PODS
from podwire.local.controllers import LocalControllerConfig
from podwire.model.pod import Pod
from podwire.runtime.clock import rfc3339

T = TypeVar("T")


class HollowNodes:
    """Kubelets without containers; ``unready`` holds prefixes of pod names that never get ready."""

    def __init__(self, client: Client, names: list[str], *, delay_s: float = 0.0) -> None:
        self.client = client
        self.names = names
        self.delay_s = delay_s
        self.unready: set[str] = set()
        self.outcome: dict[str, str] = {}
        """The phase that pods reach, by the prefix of their name; those not named get Running."""
        self.pods = Informer(client, PODS)
        self.done: dict[str, str] = {}
        self.addresses = itertools.count(1)
        self.tasks: set[asyncio.Task[None]] = set()

    async def register(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Creates the Node, ready, with room for pods."""
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        }
        await self.client.create(NODES, node)
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": self.now()}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        await self.client.patch(NODES, name, {"status": status}, subresource="status")

    def now(self) -> str:
        """The time of day as the API writes it."""
        return rfc3339(self.client.clock.now())

    def changed(self, _key: str, _old: Pod | None, pod: Pod | None) -> None:
        """Answers for a pod that is bound to one of the nodes, or that is being deleted there."""
        if pod is None or pod.spec.node_name not in self.names:
            return
        state = "going" if pod.metadata.deletion_timestamp else "bound"
        if self.done.get(pod.metadata.uid) in (state, "going"):
            return
        self.done[pod.metadata.uid] = state
        task = asyncio.ensure_future(self.act(pod, state))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def act(self, pod: Pod, state: str) -> None:
        """Reports the status of a bound pod, or deletes one that is terminating."""
        meta = pod.metadata
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if state == "going":
            await self.client.delete(PODS, meta.name, meta.namespace, grace_period_s=0)
            return
        number = next(self.addresses)
        address = f"10.244.{number // 250}.{number % 250 + 1}"
        outcome = next((o for p, o in self.outcome.items() if meta.name.startswith(p)), "Running")
        ready = outcome == "Running" and not any(meta.name.startswith(p) for p in self.unready)
        conditions = [{"type": "Ready", "status": str(ready), "lastTransitionTime": self.now()}]
        status = {"phase": outcome, "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        await self.client.patch(
            PODS,
            meta.name,
            {"status": status},
            meta.namespace,
            subresource="status",
            patch_type="application/strategic-merge-patch+json",
        )

    async def run(self) -> None:
        """Follows all pods until cancelled."""
        self.pods.subscribe(self.changed)
        await self.pods.run()


class ControlPlane:
    """What a test has: a client, the nodes, and waiting."""

    def __init__(
        self, client: Client, nodes: HollowNodes, folder: Path, port: int, restart: Callable[[float], Awaitable[None]]
    ) -> None:
        self.restart = restart
        """Stops the API server for so many seconds."""

        self.client = client
        self.nodes = nodes
        self.folder = folder
        """The credentials."""

        self.port = port

    async def until(self, probe: Callable[[], Awaitable[T | None]], timeout_s: float = 60.0) -> T:
        """The first true answer of the probe. Raises: TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not (answer := await probe()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return answer


class StartControlPlane(Protocol):
    """Starts a control plane that stops at the end of the ``async with`` block."""

    def __call__(
        self, *, nodes: int = 3, config: LocalControllerConfig | None = None, delay_s: float = 0.0
    ) -> AbstractAsyncContextManager[ControlPlane]: ...
