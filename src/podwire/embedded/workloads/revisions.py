"""ControllerRevisions: the history of a DaemonSet's or StatefulSet's template.

Each template that was current has one object with a growing number. When an old template becomes current again, its
revision gets the next number. ``kubectl rollout undo`` applies ``data`` as a patch to the owner. Source:
``k8s.io/kubernetes/pkg/controller/history``.
"""

from collections.abc import Iterable, Sequence

import msgspec

from podwire.embedded.workloads.template import Json, PodOwner, template_hash
from podwire.errors import AlreadyExists, NotFound
from podwire.kube.controller import Environment
from podwire.kube.index import Index
from podwire.kube.ownwrites import OwnWrites
from podwire.kube.resources import CONTROLLERREVISIONS
from podwire.model.meta import controller_of
from podwire.model.workload import ControllerRevision, Template

HASH = "controller-revision-hash"
_NAMES = 10
"""The number of names that are tried for a revision when the names belong to other objects."""


class RevisionHistory(msgspec.Struct, frozen=True):
    """The revisions of one owner, oldest first, and the revision of its template (None: not created yet)."""

    revisions: tuple[ControllerRevision, ...]
    current: ControllerRevision | None

    @property
    def next_number(self) -> int:
        """The number of the next revision."""
        return max((item.revision for item in self.revisions), default=0) + 1


def history(revisions: Iterable[ControllerRevision], template: Template) -> RevisionHistory:
    """The history of an owner whose template is ``template``."""
    ordered = tuple(sorted(revisions, key=lambda item: (item.revision, item.metadata.name)))
    data = data_of(template)
    return RevisionHistory(ordered, next((item for item in reversed(ordered) if item.data == data), None))


def data_of(template: Template) -> Json:
    """A revision's data: a patch that sets the template."""
    return {"spec": {"template": template | {"$patch": "replace"}}}


def template_of(revision: ControllerRevision) -> Template:
    """The template in a revision's data."""
    template = dict(revision.data.get("spec", {}).get("template", {}))
    template.pop("$patch", None)
    return template


def surplus(revisions: Sequence[ControllerRevision], used: Iterable[str], limit: int) -> list[ControllerRevision]:
    """Unused revisions beyond the limit, oldest first; ``used`` holds the hashes of pods and of current templates."""
    revisions_in_use = set(used)
    unused = [item for item in revisions if item.metadata.labels.get(HASH, "") not in revisions_in_use]
    return unused[: max(0, len(unused) - limit)]


class Revisions:
    """Reads and writes the revisions of one kind's objects."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        informer = environment.of(CONTROLLERREVISIONS)
        self._own = OwnWrites(informer)
        self._owned: Index[ControllerRevision] = Index(informer, _owner)

    def of(self, uid: str) -> tuple[ControllerRevision, ...]:
        """All revisions of an owner, oldest first."""
        return tuple(sorted(self._owned.of(uid).values(), key=lambda item: item.revision))

    async def ensure(self, owner: PodOwner, template: Template) -> ControllerRevision | None:
        """The revision of the template, which is created or gets a new number when needed.

        None when the informer does not show the revision yet; the caller must call again.
        """
        uid = owner.meta.uid
        if not self._own.caught_up(uid):
            return None
        known = history(self._owned.of(uid).values(), template)
        if known.current is None:
            return await self._create(owner, template, known.next_number)
        if known.current is not known.revisions[-1]:
            name = known.current.metadata.name
            patch = {"revision": known.next_number}
            written = await self._client.patch(CONTROLLERREVISIONS, name, patch, owner.meta.namespace)
            self._own.wrote(uid, written)
        return known.current

    async def prune(self, owner: PodOwner, used: Iterable[str], limit: int) -> None:
        """Deletes revisions beyond the limit."""
        for item in surplus(self.of(owner.meta.uid), used, limit):
            try:
                await self._client.delete(CONTROLLERREVISIONS, item.metadata.name, item.metadata.namespace)
            except NotFound:
                continue

    async def _create(self, owner: PodOwner, template: Template, number: int) -> ControllerRevision | None:
        for collisions in (None, *range(number, number + _NAMES)):
            digest = template_hash(template, collisions)
            body = {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "name": f"{owner.meta.name}-{digest}",
                    "namespace": owner.meta.namespace,
                    "labels": dict((template.get("metadata") or {}).get("labels") or {}) | {HASH: digest},
                    "ownerReferences": [owner.reference],
                },
                "data": data_of(template),
                "revision": number,
            }
            try:
                written = await self._client.create(CONTROLLERREVISIONS, body, owner.meta.namespace)
            except AlreadyExists:
                if await self._adopted(owner, body):
                    return None
                continue
            self._own.wrote(owner.meta.uid, written)
            return None
        return None

    async def _adopted(self, owner: PodOwner, body: Json) -> bool:
        """Adopts a revision with the name and content of ``body`` that has no owner; returns whether it was adopted.

        When an owner is deleted without its pods, its revisions stay for the next owner of the same name.
        """
        meta = body["metadata"]
        name, namespace = meta["name"], meta["namespace"]
        revision = await self._client.get(CONTROLLERREVISIONS, name, namespace, decode_as=ControllerRevision)
        controller = controller_of(revision.metadata)
        if revision.data != body["data"] or (controller is not None and controller.uid != owner.meta.uid):
            return False
        references = {"uid": revision.metadata.uid, "ownerReferences": meta["ownerReferences"]}
        patch = {"metadata": references, "revision": body["revision"]}
        self._own.wrote(owner.meta.uid, await self._client.patch(CONTROLLERREVISIONS, name, patch, namespace))
        return True


def _owner(item: ControllerRevision) -> tuple[str, ...]:
    owner = controller_of(item.metadata)
    return (owner.uid,) if owner is not None else ()
