"""Creates and deletes pods for their owners, with Events, and remembers what it did.

Creation starts slowly: one pod, then two, four, eight at a time, so that a template the API refuses costs one
request and not hundreds (Kubernetes: ``slowStartBatch``).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from podwire.embedded.workloads.template import PodOwner
from podwire.errors import ApiError, NotFound
from podwire.kube.controller import API_FAILURES, Environment, namespace_ends
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import PODS
from podwire.model.pod import Pod
from podwire.runtime.workqueue import in_parallel

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OwnerPods:
    """Pods owned by an object, and pods of its namespace that nobody owns."""

    owned: tuple[Pod, ...]
    orphans: tuple[Pod, ...] = ()


class PodWriter:
    """Writes of one controller to the pods of its objects."""

    def __init__(self, environment: Environment, component: str) -> None:
        self._client = environment.client
        self._recorder = environment.recorder(component)
        self.own = OwnWrites(environment.of(PODS))

    async def create(self, owner: PodOwner, pod: Json) -> Json:
        """The pod as stored.

        Raises: ApiError after a FailedCreate event (none where the namespace is being deleted).
        """
        try:
            stored = await self._client.create(PODS, pod, owner.meta.namespace)
        except ApiError as failure:
            if not namespace_ends(failure):
                message = f"Error creating: {failure.message}"
                self._recorder.event(owner.subject, "Warning", "FailedCreate", message)
            raise
        self.own.wrote(owner.meta.uid, stored)
        name = stored["metadata"]["name"]
        self._recorder.event(owner.subject, "Normal", "SuccessfulCreate", f"Created pod: {name}")
        return stored

    async def create_many(self, owner: PodOwner, pods: Sequence[Json]) -> BaseException | None:
        """Creates in growing batches; the first failure, after which no further batch was begun."""
        at, size = 0, 1
        while at < len(pods):
            failures = await in_parallel(self.create(owner, pod) for pod in pods[at : at + size])
            if failures:
                return expected(failures)
            at, size = at + size, size * 2
        return None

    async def delete(self, owner: PodOwner, pod: Pod, reason: str = "SuccessfulDelete") -> None:
        """Tells a pod to go; one that is gone already is fine.

        Raises: the API's errors; the pod counts as staying then, so that it is told again.
        """
        meta = pod.metadata
        self.own.deleted(meta.uid)
        try:
            await self._client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return
        except API_FAILURES:
            self.own.not_deleted(meta.uid)
            raise
        self._recorder.event(owner.subject, "Normal", reason, f"Deleted pod: {meta.name}")

    async def delete_many(self, owner: PodOwner, pods: Iterable[Pod]) -> BaseException | None:
        """Tells pods to go, all at once; the first failure."""
        return expected(await in_parallel(self.delete(owner, pod) for pod in pods))

    async def claim(self, owner: PodOwner, matches: Callable[[Pod], bool], pods: OwnerPods) -> tuple[Pod, ...]:
        """The owner's pods: those it owns and that match, and orphans, which it adopts; others are released.

        Raises: the API's errors.
        """
        mine = []
        for pod in pods.owned:
            if matches(pod):
                mine.append(pod)
            elif pod.metadata.deletion_timestamp is None:
                await self._patch_owners(owner, pod, [])
        for pod in pods.orphans:
            adoptable = pod.metadata.deletion_timestamp is None and owner.meta.deletion_timestamp is None
            if adoptable and matches(pod):
                await self._patch_owners(owner, pod, [owner.reference])
                mine.append(pod)
        return tuple(mine)

    async def _patch_owners(self, owner: PodOwner, pod: Pod, references: list[Json]) -> None:
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid, "ownerReferences": references}}
        self.own.wrote(owner.meta.uid, await self._client.patch(PODS, meta.name, patch, meta.namespace))


def expected(failures: Sequence[BaseException]) -> BaseException | None:
    """The first failure of the API.

    Raises: the first failure that is something else.
    """
    for failure in failures:
        if not isinstance(failure, API_FAILURES):
            raise failure
    return failures[0] if failures else None
