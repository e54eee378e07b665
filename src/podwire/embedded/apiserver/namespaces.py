"""The deletion of a namespace: first its objects are deleted, then the namespace.

A terminating namespace accepts no new objects. Its pods are deleted first, with their grace period; all other objects
follow when the last pod has ended, as Kubernetes does it in order (``OrderedNamespaceDeletion``). So a pod is never
without its NetworkPolicies, Secrets and Services while its processes still run. The other kinds are deleted together.
While objects are left (with a finalizer, or pods that are still being stopped), the status of the namespace names them.
When no object is left, the finalizer ``kubernetes`` is removed, which deletes the namespace. The controller follows
committed changes, so the namespace is deleted right after its last object. Objects that extension API servers keep are
deleted after the pods, too; while such a server is away, the namespace waits, as in Kubernetes. Source: Kubernetes'
``pkg/controller/namespace/deletion``.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from podwire.embedded.apiserver.aggregation.content import ExtensionContent, ForeignContent
from podwire.embedded.apiserver.deletion import Deletion
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.errors import ApiError
from podwire.runtime.clock import Clock, rfc3339
from podwire.runtime.tasks import TaskSet

Object = dict[str, Any]

_TABLE = "/namespaces"
_FINALIZER = "kubernetes"
_PODS = "pods"
"""The table and the name of the kind that is deleted first."""
_RETRY_S = 5.0
"""Time until extension API servers are asked again; a change of the namespace's objects asks them at once."""
_ABSENT = {
    "NamespaceDeletionDiscoveryFailure": ("ResourcesDiscovered", "All resources successfully discovered"),
    "NamespaceDeletionContentFailure": (
        "ContentDeleted", "All content successfully deleted, may be waiting on finalization",
    ),
}  # fmt: skip


class Namespaces:
    """Empties and ends terminating namespaces."""

    def __init__(
        self,
        store: Store,
        deletion: Deletion,
        kinds: Mapping[Key, ResourceKind],
        clock: Clock,
        extensions: ExtensionContent,
        tasks: TaskSet,
    ) -> None:
        self._extensions = extensions
        self._tasks = tasks
        self._store = store
        self._deletion = deletion
        self._kinds = kinds
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._terminating: set[str] = set()
        self._waiting: set[str] = set()
        self._foreign: dict[str, asyncio.Task[Any]] = {}

    def start(self) -> None:
        """Continues unfinished deletions; later changes arrive by :meth:`observe`."""
        for entry in self._store.entries(_TABLE):
            self._consider(entry)
        self._store.on_change.append(self.observe)

    def observe(self, change: ObjectChange) -> None:
        """Takes a committed change and continues the deletion of its namespace."""
        entry = change.entry
        if entry.table == _TABLE:
            if change.type == "DELETED":
                self._terminating.discard(entry.name)
                self._foreign.pop(entry.name, None)
            else:
                self._consider(entry)
        elif entry.namespace in self._terminating:
            self._schedule(entry.namespace)

    def look_again(self) -> None:
        """Continues every deletion; to be called when extension API servers were added, removed or changed."""
        for name in tuple(self._terminating):
            self._schedule(name)

    def _consider(self, entry: StoredObject) -> None:
        if b'"deletionTimestamp"' in entry.raw and entry.object()["metadata"].get("deletionTimestamp"):
            self._terminating.add(entry.name)
            self._schedule(entry.name)

    def _schedule(self, name: str) -> None:
        if name not in self._waiting:
            self._waiting.add(name)
            self._loop.call_soon(self._sweep, name)

    def _sweep(self, name: str) -> None:
        self._waiting.discard(name)
        entry = self._store.get(_TABLE, "", name)
        if entry is None:
            return
        remaining: Counter[str] = Counter()
        finalizers: Counter[str] = Counter()
        for kind in self._content_kinds():
            if _PODS in remaining:
                break  # the other kinds, NetworkPolicies among them, stay until the last pod has ended
            for remaining_entry in self._store.entries(kind.table, name):
                last, gone = self._delete(kind, remaining_entry)
                if not gone:
                    remaining[kind.resource] += 1
                    finalizers.update(last.object()["metadata"].get("finalizers") or ())
        if self._extensions and _PODS not in remaining:
            self._begin_foreign(name, remaining, finalizers)
        else:
            self._report(entry, remaining, finalizers, ForeignContent())

    def _begin_foreign(self, name: str, remaining: Counter[str], finalizers: Counter[str]) -> None:
        running = self._foreign.get(name)
        if running is not None:
            running.cancel()
        task = self._tasks.start(f"content of {name}", self._delete_foreign(name, remaining, finalizers))
        self._foreign[name] = task

    async def _delete_foreign(self, name: str, remaining: Counter[str], finalizers: Counter[str]) -> None:
        """Deletes the objects in extension API servers; checks again after a time while objects remain."""
        outcome = await self._extensions.delete(name)
        entry = self._store.get(_TABLE, "", name)
        if entry is None:
            return
        self._report(entry, remaining + outcome.remaining, finalizers + outcome.finalizers, outcome)
        if not outcome.is_empty:
            await self._clock.sleep(_RETRY_S)
            self._schedule(name)

    def _content_kinds(self) -> list[ResourceKind]:
        tables: dict[str, ResourceKind] = {}
        for kind in self._kinds.values():
            if kind.namespaced and kind.has_objects:
                tables.setdefault(kind.table, kind)
        return sorted(tables.values(), key=lambda kind: kind.table != f"/{_PODS}")

    def _delete(self, kind: ResourceKind, entry: StoredObject) -> tuple[StoredObject, bool]:
        try:
            return self._deletion.delete(kind, entry, {"propagationPolicy": "Background"})
        except ApiError:
            return entry, False

    def _report(
        self, entry: StoredObject, remaining_counts: Counter[str], finalizers: Counter[str], foreign: ForeignContent
    ) -> None:
        obj = entry.object()
        if not remaining_counts and foreign.is_empty:
            obj["spec"]["finalizers"] = [f for f in obj["spec"].get("finalizers") or () if f != _FINALIZER]
            if obj["spec"]["finalizers"] or obj["metadata"].get("finalizers"):
                if obj["spec"] != entry.object()["spec"]:
                    self._store.put(_TABLE, obj)
            else:
                self._store.delete(entry, obj)
            return
        remaining = ", ".join(
            f"{name} has {count} resource instances" for name, count in sorted(remaining_counts.items())
        )
        blocking = ", ".join(f"{name} in {n} resource instances" for name, n in sorted(finalizers.items()))
        conditions = [
            *self._failures(obj, foreign),
            self._condition(obj, "NamespaceContentRemaining", bool(remaining_counts), "SomeResourcesRemain",
                            f"Some resources are remaining: {remaining}"),
            self._condition(obj, "NamespaceFinalizersRemaining", bool(finalizers), "SomeFinalizersRemain",
                            f"Some content in the namespace has finalizers remaining: {blocking}"),
        ]  # fmt: skip
        if conditions != (obj.get("status") or {}).get("conditions"):
            obj["status"] = {"phase": "Terminating", "conditions": conditions}
            self._store.put(_TABLE, obj)

    def _failures(self, obj: Object, foreign: ForeignContent) -> Iterator[Object]:
        """The conditions about extension API servers that delay the deletion, or delayed it before."""
        before = {item.get("type") for item in (obj.get("status") or {}).get("conditions") or ()}
        unread = ", ".join(f"{name}: stale GroupVersion discovery: {name}" for name in foreign.undiscovered)
        discovery = (
            f"Discovery failed for some groups, {len(foreign.undiscovered)} failing: unable to retrieve the complete "
            f"list of server APIs: {unread}"
        )
        rows = (
            ("NamespaceDeletionDiscoveryFailure", bool(foreign.undiscovered), "DiscoveryFailed", discovery),
            ("NamespaceDeletionContentFailure", bool(foreign.failures), "ContentDeletionFailed",
             f"Failed to delete all resource types, {len(foreign.failures)} remaining: {', '.join(foreign.failures)}"),
        )  # fmt: skip
        for kind, present, reason, message in rows:
            if present or kind in before:
                yield self._condition(obj, kind, present, reason, message)

    def _condition(self, obj: Object, kind: str, present: bool, reason: str, message: str) -> Object:  # noqa: FBT001
        absent = _ABSENT.get(kind, ("ContentRemoved", "All content removed"))
        condition = {
            "type": kind, "status": "True" if present else "False",
            "reason": reason if present else absent[0],
            "message": message if present else absent[1],
        }  # fmt: skip
        for old in (obj.get("status") or {}).get("conditions") or ():
            if old.get("type") == kind and all(old.get(key) == value for key, value in condition.items()):
                return dict(old)
        return {**condition, "lastTransitionTime": rfc3339(self._clock.now())}
