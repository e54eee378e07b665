"""The objects of a cluster that cases change, as the API watches show them.

There are no fixed waits: :meth:`ObjectWatches.until` waits for changes of the watched objects.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from podwire.errors import ClusterError
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.resources import CLUSTERNETWORKPOLICIES, NAMESPACES, NETWORKPOLICIES, NODES, PODS, Json
from podwire.local.conformance.stage import Stage, namespace_of
from podwire.local.readiness import why_not_ready
from podwire.observe.log import Log
from podwire.runtime.tasks import TaskSet

_READY_S = 60.0


class ObjectWatches:
    """Watches of pods, namespaces, nodes and policies; compares them with a stage."""

    def __init__(self, client: Client) -> None:
        self.pods = Informer(client, PODS)
        self.namespaces: Informer[Json] = Informer(client, NAMESPACES.raw)
        self.nodes = Informer(client, NODES)
        self.policies: Informer[Json] = Informer(client, NETWORKPOLICIES.raw)
        self.cluster_policies: Informer[Json] = Informer(client, CLUSTERNETWORKPOLICIES.raw)
        self.created_namespaces: set[str] = set()
        """The namespaces that cases have created so far."""
        self.written: dict[str, str] = {}
        """The resource versions of written policies and nodes, by plural and key."""
        self._changed = asyncio.Event()
        self._log = Log("conformance")
        self._tasks = TaskSet(lambda name, failure: self._log.error("watch failed", failure=failure, watch=name))

    @property
    def _informers(self) -> tuple[Informer[Any], ...]:
        return (self.pods, self.namespaces, self.nodes, self.policies, self.cluster_policies)

    async def start(self) -> None:
        """Starts the watches; returns when all objects are known."""
        for informer in self._informers:
            informer.subscribe(lambda *_: self._changed.set())
            self._tasks.start(informer.resource.plural, informer.run())
        async with asyncio.timeout(_READY_S):
            for informer in self._informers:
                await informer.synced.wait()

    async def close(self) -> None:
        """Ends the watches."""
        await self._tasks.close()

    def versions(self) -> Mapping[str, Mapping[str, str]]:
        """The versions of all watched objects, by plural and key."""
        return {informer.resource.plural: informer.versions for informer in self._informers}

    async def until(self, problem_of: Callable[[], str]) -> None:
        """Waits until ``problem_of`` returns an empty text."""
        problem = problem_of()
        try:
            async with asyncio.timeout(_READY_S):
                while problem := problem_of():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as failure:
            raise ClusterError(f"not ready in time: {problem}") from failure

    def undeleted(self, stage: Stage) -> str:
        """A deleted object that still exists; empty when there is none."""
        for key in self.pods.objects:
            if namespace_of(key) in self.created_namespaces and key not in stage.pods:
                return f"pod {key} is not deleted yet"
        for name in self.created_namespaces - stage.namespaces.keys():
            if name in self.namespaces.objects:
                return f"namespace {name} is not deleted yet"
        return ""

    def outdated(self, stage: Stage, node_names: Iterable[str]) -> str:
        """A change that the API watches do not show yet; empty when they show all."""
        if problem := self.undeleted(stage):
            return problem
        for name, labels in stage.namespaces.items():
            have = self.namespaces.objects.get(name, {}).get("metadata", {}).get("labels") or {}
            if have != labels | {"kubernetes.io/metadata.name": name}:
                return f"namespace {name} has labels {have}"
        for key, pod in stage.pods.items():
            pod_in_api = self.pods.objects.get(key)
            if pod_in_api is None or pod_in_api.metadata.labels != pod.labels:
                return f"pod {key} does not have the labels {pod.labels} yet"
            if not pod_in_api.ready:
                return f"pod {key}: {why_not_ready(pod_in_api)}"
        return (
            self._outdated_policies(self.policies, stage.policies)
            or self._outdated_policies(self.cluster_policies, stage.cluster_policies)
            or self._outdated_object(self.nodes, node_names)
        )

    def _outdated_policies(self, informer: Informer[Json], versions: Collection[str]) -> str:
        plural = informer.resource.plural
        for name in self.written:
            kind, _, key = name.partition(" ")
            if kind == plural and key not in versions and key in informer.versions:
                return f"{name} is not deleted yet"
        return self._outdated_object(informer, versions)

    def _outdated_object(self, informer: Informer[Any], keys: Iterable[str]) -> str:
        """An object whose written version the watch does not show yet; empty when there is none."""
        for key in keys:
            written = self.written.get(f"{informer.resource.plural} {key}", "0")
            if int(informer.versions.get(key, "0")) < int(written):
                return f"the watch does not show the last change of {informer.resource.plural} {key} yet"
        return ""
