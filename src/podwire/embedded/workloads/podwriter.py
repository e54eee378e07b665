"""Creates and deletes pods for their owners, records Events, and remembers its writes until the informer shows them.

Creation starts with one pod, then two, four, eight pods at a time. So a template that the API refuses costs one request
and not hundreds (Kubernetes: ``slowStartBatch``).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from podwire.embedded.workloads.template import PodOwner
from podwire.errors import ApiError, NotFound
from podwire.kube.controller import API_FAILURES, Environment, is_namespace_terminating
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import PODS
from podwire.model.pod import Pod
from podwire.runtime.workqueue import in_parallel

Json = dict[str, Any]


class OwnerPods(msgspec.Struct, frozen=True):
    """The pods that an object owns, and the pods of its namespace without an owner."""

    owned: tuple[Pod, ...]
    orphans: tuple[Pod, ...] = ()


class PodWriter:
    """Writes the pods of one controller's objects."""

    def __init__(self, environment: Environment, component: str) -> None:
        self._client = environment.client
        self._recorder = environment.recorder(component)
        self.own = OwnWrites(environment.of(PODS))

    async def create(self, owner: PodOwner, pod: Json) -> Json:
        """Creates a pod and returns the stored object.

        Raises: ApiError, after a FailedCreate Event unless the namespace is being deleted.
        """
        try:
            created = await self._client.create(PODS, pod, owner.meta.namespace)
        except ApiError as failure:
            if not is_namespace_terminating(failure):
                message = f"Error creating: {failure.message}"
                self._recorder.event(owner.subject, "Warning", "FailedCreate", message)
            raise
        self.own.wrote(owner.meta.uid, created)
        name = created["metadata"]["name"]
        self._recorder.event(owner.subject, "Normal", "SuccessfulCreate", f"Created pod: {name}")
        return created

    async def create_many(self, owner: PodOwner, pods: Sequence[Json]) -> BaseException | None:
        """Creates pods in growing batches; returns the first failure, after which no more batches were started."""
        at, size = 0, 1
        while at < len(pods):
            failures = await in_parallel(self.create(owner, pod) for pod in pods[at : at + size])
            if failures:
                return expected(failures)
            at, size = at + size, size * 2
        return None

    async def delete(self, owner: PodOwner, pod: Pod, reason: str = "SuccessfulDelete") -> None:
        """Deletes a pod; does nothing when the pod is gone already.

        Raises: errors of the API; the pod then counts as not deleted, so the next plan deletes it again.
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
        """Deletes pods in parallel; returns the first failure."""
        return expected(await in_parallel(self.delete(owner, pod) for pod in pods))

    async def claim(self, owner: PodOwner, matches: Callable[[Pod], bool], pods: OwnerPods) -> tuple[Pod, ...]:
        """The owner's pods: owned pods that match, and matching pods without an owner, which are adopted.

        Owned pods that do not match are released. Raises: errors of the API.
        """
        claimed = []
        for pod in pods.owned:
            if matches(pod):
                claimed.append(pod)
            elif pod.metadata.deletion_timestamp is None:
                await self._patch_owners(owner, pod, [])
        for pod in pods.orphans:
            adoptable = pod.metadata.deletion_timestamp is None and owner.meta.deletion_timestamp is None
            if adoptable and matches(pod):
                await self._patch_owners(owner, pod, [owner.reference])
                claimed.append(pod)
        return tuple(claimed)

    async def _patch_owners(self, owner: PodOwner, pod: Pod, references: list[Json]) -> None:
        meta = pod.metadata
        patch = {"metadata": {"uid": meta.uid, "ownerReferences": references}}
        self.own.wrote(owner.meta.uid, await self._client.patch(PODS, meta.name, patch, meta.namespace))


def expected(failures: Sequence[BaseException]) -> BaseException | None:
    """The first failure of the API; None without failures.

    Raises: the first failure that is not a failure of the API.
    """
    for failure in failures:
        if not isinstance(failure, API_FAILURES):
            raise failure
    return failures[0] if failures else None
