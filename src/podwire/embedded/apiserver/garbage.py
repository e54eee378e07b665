"""The garbage collector: deletes objects whose owners are deleted.

An index maps the uid of each owner to its dependents. When an owner is deleted, dependents without another existing
owner are deleted (Background). An owner with the finalizer ``foregroundDeletion`` is deleted when no dependent blocks
it any more; dependents with another owner lose the reference to this one. In a cycle of owners, an object stops
blocking its owners when one of its own dependents is already being deleted. For an owner with the finalizer ``orphan``,
the references of its dependents are removed first. An object whose owner never existed is deleted, too. An owner of a
kind that this server does not serve counts as existing until an extension API server reports that it is gone, or this
server has observed its deletion. The collector runs inside the server, in the turn of the event loop after each
committed change; at its start it checks every object once.

Cost: one set entry for each owner reference. Source: Kubernetes' ``pkg/controller/garbagecollector``.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from podwire.embedded.apiserver.aggregation.owners import ForeignOwner, ForeignOwners
from podwire.embedded.apiserver.deletion import FOREGROUND, ORPHAN, Deletion
from podwire.embedded.apiserver.kinds import Key, ResourceKind, kind_named
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.errors import ApiError

Object = dict[str, Any]
ObjectKey = tuple[str, str, str]
"""Table, namespace and name."""


class Garbage:
    """Deletes objects that have lost their owners."""

    def __init__(
        self,
        store: Store,
        deletion: Deletion,
        kinds: Mapping[Key, ResourceKind],
        foreign: ForeignOwners,
    ) -> None:
        """``foreign`` looks up the owners that this server does not store."""
        self._foreign = foreign
        foreign.has_dependents = self._dependents_of
        foreign.on_gone = self._lose
        self._store = store
        self._deletion = deletion
        self._kinds = kinds
        self._dependents: dict[str, set[ObjectKey]] = {}
        self._owners: dict[ObjectKey, tuple[str, ...]] = {}
        self._alive: dict[str, ObjectKey] = {}
        self._gone: set[str] = set()
        """The uids of deleted owners that have dependents."""
        self._queue: deque[ObjectKey] = deque()
        self._queued: set[ObjectKey] = set()
        self._scheduled = False
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Indexes and checks all objects once; later changes arrive by :meth:`observe`."""
        for table in self._store.tables():
            for entry in tuple(table.objects.values()):
                self._index(entry)
        for key in tuple(self._owners):
            self._enqueue(key)
        for key in tuple(self._alive.values()):
            child = self._store.get(*key)
            if child is not None and b'"deletionTimestamp"' in child.raw:
                self._enqueue(key)
        self._store.on_change.append(self.observe)

    def observe(self, change: ObjectChange) -> None:
        """Takes a committed change and checks the objects that it concerns."""
        entry = change.entry
        key = (entry.table, entry.namespace, entry.name)
        if change.type == "DELETED":
            self._forget(key, entry.uid)
            self._lose(entry.uid)
            return
        before = self._owners.get(key, ())
        self._index(entry)
        if self._owners.get(key, ()) != before or b'"deletionTimestamp"' in entry.raw:
            self._enqueue(key)

    def _dependents_of(self, uid: str) -> bool:
        return uid in self._dependents

    def _lose(self, uid: str) -> None:
        """Handles an owner that is gone: queues its dependents."""
        dependents = self._dependents.get(uid, ())
        if dependents:
            self._gone.add(uid)
        for dependent in dependents:
            self._enqueue(dependent)

    def _index(self, entry: StoredObject) -> None:
        key = (entry.table, entry.namespace, entry.name)
        self._alive[entry.uid] = key
        references: tuple[str, ...] = ()
        if b'"ownerReferences"' in entry.raw:
            owner_references = entry.object()["metadata"].get("ownerReferences") or ()
            references = tuple(reference.get("uid", "") for reference in owner_references)
        before = self._owners.get(key, ())
        if references == before:
            return
        self._unlink(key, before)
        for uid in references:
            self._dependents.setdefault(uid, set()).add(key)
        if references:
            self._owners[key] = references
        else:
            self._owners.pop(key, None)

    def _unlink(self, key: ObjectKey, owners: tuple[str, ...]) -> None:
        for uid in owners:
            keys = self._dependents.get(uid)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._dependents[uid]
                    self._gone.discard(uid)

    def _forget(self, key: ObjectKey, uid: str) -> None:
        self._alive.pop(uid, None)
        owners = self._owners.pop(key, ())
        self._unlink(key, owners)
        for owner in owners:
            if owner in self._alive:
                self._enqueue(self._alive[owner])

    def _enqueue(self, key: ObjectKey) -> None:
        if key in self._queued:
            return
        self._queued.add(key)
        self._queue.append(key)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        self._scheduled = False
        for _ in range(min(len(self._queue), 200)):
            key = self._queue.popleft()
            self._queued.discard(key)
            entry = self._store.get(*key)
            if entry is not None:
                try:
                    self._look_at(entry)
                except ApiError:
                    continue
        if self._queue:
            self._scheduled = True
            self._loop.call_soon(self._work)

    def _look_at(self, entry: StoredObject) -> None:
        obj = entry.object()
        meta = obj["metadata"]
        finalizers = meta.get("finalizers") or ()
        if meta.get("deletionTimestamp") and ORPHAN in finalizers:
            self._orphan(entry)
            self._drop_finalizer(entry, obj, ORPHAN)
            return
        if meta.get("deletionTimestamp") and FOREGROUND in finalizers and self._free(entry):
            self._drop_finalizer(entry, obj, FOREGROUND)
            return
        references = meta.get("ownerReferences") or ()
        if references:
            self._follow(entry, obj, references)

    def _follow(self, entry: StoredObject, obj: Object, references: list[Object]) -> None:
        living = [r for r in references if self._exists(r, entry.namespace)]
        waiting = [r for r in living if _waits_for_dependents(self._owner(r["uid"]))]
        staying = [r for r in living if r not in waiting]
        if staying:
            if len(staying) < len(references):
                obj["metadata"]["ownerReferences"] = staying
                self._store.put(entry.table, obj)
            return
        if obj["metadata"].get("deletionTimestamp"):
            return
        kind = self._kind(entry.table)
        if kind is None:
            return
        dependents = [self._store.get(*key) for key in self._dependents.get(entry.uid, ())]
        if waiting and any(map(_waits_for_dependents, dependents)):
            obj["metadata"]["ownerReferences"] = [{**r, "blockOwnerDeletion": False} for r in references]
            entry = self._store.put(entry.table, obj)
            for reference in waiting:
                self._enqueue(self._alive[reference["uid"]])
        policy = "Foreground" if waiting and dependents else "Background"
        self._deletion.delete(kind, entry, {"propagationPolicy": policy, "preconditions": {"uid": entry.uid}})

    def _exists(self, reference: Object, namespace: str) -> bool:
        """Whether an owner exists or may exist. Owners of kinds that this server does not store are looked up."""
        uid, api_version, kind = (str(reference.get(field) or "") for field in ("uid", "apiVersion", "kind"))
        if uid in self._alive:
            return True
        if uid in self._gone:
            return False
        if not self._foreign.serves(api_version) and kind_named(api_version, kind, self._kinds) is not None:
            return False
        self._foreign.follow(ForeignOwner(uid, api_version, kind, str(reference.get("name") or ""), namespace))
        return True

    def _owner(self, uid: str) -> StoredObject | None:
        """The stored object with a uid; None for an object of another server."""
        key = self._alive.get(uid)
        return None if key is None else self._store.get(*key)

    def _free(self, entry: StoredObject) -> bool:
        """Whether no dependent blocks the owner; starts the deletion of dependents that are not being deleted."""
        blocked = False
        for key in tuple(self._dependents.get(entry.uid, ())):
            dependent = self._store.get(*key)
            if dependent is None:
                continue
            for reference in dependent.object()["metadata"].get("ownerReferences") or ():
                if reference.get("uid") == entry.uid:
                    blocked = blocked or bool(reference.get("blockOwnerDeletion"))
            if not _waits_for_dependents(dependent):
                self._enqueue(key)
        return not blocked

    def _orphan(self, owner: StoredObject) -> None:
        for key in tuple(self._dependents.get(owner.uid, ())):
            dependent = self._store.get(*key)
            if dependent is None:
                continue
            obj = dependent.object()
            meta = obj["metadata"]
            owner_references = [r for r in meta.get("ownerReferences") or () if r.get("uid") != owner.uid]
            if owner_references:
                meta["ownerReferences"] = owner_references
            else:
                meta.pop("ownerReferences", None)
            self._store.put(dependent.table, obj)

    def _drop_finalizer(self, entry: StoredObject, obj: Object, name: str) -> None:
        meta = obj["metadata"]
        finalizers = [f for f in meta.get("finalizers") or () if f != name]
        if finalizers:
            meta["finalizers"] = finalizers
            self._store.put(entry.table, obj)
            return
        meta.pop("finalizers", None)
        if meta.get("deletionGracePeriodSeconds"):
            self._store.put(entry.table, obj)
        else:
            self._store.delete(entry, obj)

    def _kind(self, table: str) -> ResourceKind | None:
        return next((kind for kind in self._kinds.values() if kind.table == table), None)


def _waits_for_dependents(entry: StoredObject | None) -> bool:
    """Whether an object is being deleted after its dependents."""
    if entry is None or FOREGROUND.encode() not in entry.raw:
        return False
    meta = entry.object()["metadata"]
    return bool(meta.get("deletionTimestamp")) and FOREGROUND in (meta.get("finalizers") or ())
