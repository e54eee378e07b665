"""Deletion: grace periods of pods, finalizers, propagation, and namespaces.

A pod on a node first gets ``deletionTimestamp`` and a grace period; its kubelet stops the pod and deletes it again with
grace period 0. An object with finalizers gets ``deletionTimestamp`` and waits until its finalizers are removed; so does
an object whose dependents must be deleted first (Foreground) or must stay (Orphan). Any other object is deleted at
once. Sources: ``k8s.io/apiserver/pkg/registry/rest/delete.go``, ``generic/registry/store.go``.
"""

import datetime
from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.store import Store, StoredObject
from podwire.runtime.clock import Clock, rfc3339

Object = dict[str, Any]

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_DEFAULT_GRACE_S = 30
_IMMORTAL = frozenset({"default", "kube-system", "kube-public"})
_ORPHANING = frozenset({"batch/jobs", "/replicationcontrollers"})
"""Tables whose dependents stay unless the client requests their deletion, as in Kubernetes."""


def deletes_now(new: Object, old: Object) -> bool:
    """Whether an update removes the last finalizer from an object that is being deleted."""
    meta = new["metadata"]
    if meta.get("finalizers") or not old["metadata"].get("deletionTimestamp"):
        return False
    if new.get("kind") == "Namespace" and (new.get("spec") or {}).get("finalizers"):
        return False
    return not meta.get("deletionGracePeriodSeconds")


class Deletion:
    """Deletes objects of the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def delete(self, kind: ResourceKind, entry: StoredObject, options: Object) -> tuple[StoredObject, bool]:
        """The last or new state of the object, and whether it is deleted.

        Raises: Conflict when a precondition is not met; ApiError 400 for options that contradict each other.
        """
        self._check(kind, entry, options)
        if options.get("dryRun"):
            return entry, False
        obj = entry.object()
        meta = obj["metadata"]
        grace = _grace_period(kind, obj, options)
        if meta.get("deletionTimestamp"):
            remaining = meta.get("deletionGracePeriodSeconds") or 0
            if remaining and grace >= remaining:
                return entry, False
        finalizers = _finalizers(kind, meta, options)
        changed = finalizers != (meta.get("finalizers") or [])
        if finalizers:
            meta["finalizers"] = finalizers
        else:
            meta.pop("finalizers", None)
        waits = bool(finalizers) or (kind.table == "/namespaces" and bool(obj["spec"].get("finalizers")))
        if not grace and not waits:
            return self._store.delete(entry, obj), True
        if meta.get("deletionTimestamp") and not changed and not _shortens(meta, grace):
            return entry, False
        self._mark(kind, obj, grace)
        return self._store.put(kind.table, obj), False

    def _mark(self, kind: ResourceKind, obj: Object, grace_s: int) -> None:
        meta = obj["metadata"]
        now = self._clock.now() + datetime.timedelta(seconds=grace_s)
        if not meta.get("deletionTimestamp") or _shortens(meta, grace_s):
            meta["deletionTimestamp"] = rfc3339(now)
            meta["deletionGracePeriodSeconds"] = grace_s
            if meta.get("generation"):
                meta["generation"] += 1
        if kind.table == "/namespaces":
            obj.setdefault("status", {})["phase"] = "Terminating"

    def _check(self, kind: ResourceKind, entry: StoredObject, options: Object) -> None:
        preconditions = options.get("preconditions") or {}
        if preconditions.get("uid") and preconditions["uid"] != entry.uid:
            raise failures.precondition(kind, entry.name, "UID", preconditions["uid"], entry.uid)
        if preconditions.get("resourceVersion") and preconditions["resourceVersion"] != str(entry.version):
            raise failures.precondition(
                kind, entry.name, "ResourceVersion", preconditions["resourceVersion"], str(entry.version)
            )
        if kind.table == "/namespaces" and entry.name in _IMMORTAL:
            raise failures.forbidden(kind, entry.name, "this namespace may not be deleted")
        policy = options.get("propagationPolicy")
        if policy is not None and options.get("orphanDependents") is not None:
            raise failures.bad_request("orphanDependents and propagationPolicy cannot be both set")
        if policy not in (None, "", "Background", "Foreground", "Orphan"):
            raise failures.bad_request(
                f'propagationPolicy: Unsupported value: "{policy}": supported values: "Foreground", '
                '"Background", "Orphan"'
            )


def set_condition(status: Object, kind: str, value: str, why: tuple[str, str], now: str) -> None:
    """Sets one condition of a status (``why`` is reason and message); the time moves with the value only."""
    conditions = [dict(c) for c in status.get("conditions") or ()]
    condition = {"type": kind, "status": value, "reason": why[0], "message": why[1]}
    for index, old in enumerate(conditions):
        if old.get("type") == kind:
            changed = now if old.get("status") != value else old.get("lastTransitionTime", now)
            conditions[index] = {**old, **condition, "lastTransitionTime": changed}
            break
    else:
        conditions.append({**condition, "lastTransitionTime": now})
    status["conditions"] = conditions


def _shortens(meta: Object, grace_s: int) -> bool:
    remaining = meta.get("deletionGracePeriodSeconds") or 0
    return grace_s < remaining


def _grace_period(kind: ResourceKind, obj: Object, options: Object) -> int:
    if kind.table != "/pods":
        return 0
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return 0
    requested_s = options.get("gracePeriodSeconds")
    if requested_s is None:
        requested_s = spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S)
    return max(1, int(requested_s)) if int(requested_s) < 0 else int(requested_s)


def _finalizers(kind: ResourceKind, meta: Object, options: Object) -> list[str]:
    finalizers: list[str] = list(meta.get("finalizers") or ())
    policy = options.get("propagationPolicy")
    if not policy and options.get("orphanDependents") is not None:
        policy = "Orphan" if options["orphanDependents"] else "Background"
    if not policy and kind.table in _ORPHANING and not finalizers and not meta.get("deletionTimestamp"):
        policy = "Orphan"
    if not policy or kind.table == "/namespaces":
        return finalizers
    other_finalizers = [name for name in finalizers if name not in (FOREGROUND, ORPHAN)]
    if policy == "Foreground":
        other_finalizers.append(FOREGROUND)
    elif policy == "Orphan":
        other_finalizers.append(ORPHAN)
    return other_finalizers
