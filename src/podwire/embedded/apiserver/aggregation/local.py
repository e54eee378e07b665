"""The APIServices of the groups that this server serves itself: built-in ones, and those of CustomResourceDefinitions.

A missing APIService is created, also after a client has deleted it: at once, or :data:`PAUSE_S` later for a group that
people install themselves, since some tools wait until an object that they delete is gone. An APIService that people
have created or changed is left alone. When no CustomResourceDefinition serves a version any more, its APIService is
deleted. The group ``apiregistration.k8s.io`` has no APIService. Sources: ``pkg/controlplane/apiserver/aggregator.go``,
``pkg/controlplane/controller/crdregistration``.
"""

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from podwire.embedded.apiserver.aggregation.extensions import GROUP
from podwire.embedded.apiserver.aggregation.status import INSTALLED_GROUPS, TABLE, set_local
from podwire.embedded.apiserver.kinds import GROUPS, Key, ResourceKind
from podwire.embedded.apiserver.store import ObjectChange, Store
from podwire.runtime.clock import Clock, rfc3339
from podwire.runtime.tasks import TaskSet

Object = dict[str, Any]

_PRIORITIES: Mapping[str, int] = {
    GROUP: 20000, "": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700,
    "authorization.k8s.io": 17600, "autoscaling": 17500, "batch": 17400, "certificates.k8s.io": 17300,
    "networking.k8s.io": 17200, "policy": 17100, "rbac.authorization.k8s.io": 17000, "storage.k8s.io": 16800,
    "admissionregistration.k8s.io": 16700, "apiextensions.k8s.io": 16700, "scheduling.k8s.io": 16600,
    "coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200,
    "flowcontrol.apiserver.k8s.io": 16100, "resource.k8s.io": 15900, "metrics.k8s.io": 100,
}  # fmt: skip
_VERSION_PRIORITIES = {("", "v1"): 1, ("autoscaling", "v2"): 30, ("flowcontrol.apiserver.k8s.io", "v1"): 21}
PAUSE_S = 10.0
"""How long the APIService of an installed group is missing after it has been deleted, in seconds; the server serves the
group itself meanwhile."""
_MANAGED = "kube-aggregator.kubernetes.io/automanaged"


def group_priority(group: str) -> int:
    """The priority of a group that this server serves itself; groups of higher priority are listed first."""
    return _PRIORITIES.get(group, 1000)


def version_priority(group: str, version: str) -> int:
    """The priority of a version among those of its group."""
    if group not in GROUPS:
        return 100
    return _VERSION_PRIORITIES.get((group, version), 15)


class LocalServices:
    """Keeps the APIServices of the server's own groups."""

    def __init__(self, store: Store, kinds: Mapping[Key, ResourceKind], clock: Clock, tasks: TaskSet) -> None:
        self._store = store
        self._tasks = tasks
        self._paused: dict[str, float] = {}
        self._kinds = kinds
        self._clock = clock
        self._scheduled = False
        self._started = False

    def start(self) -> None:
        """Creates missing APIServices, and follows changes from then on."""
        self._started = True
        self._ensure()
        self._store.table(TABLE).listeners[self._committed] = None

    def changed(self) -> None:
        """Schedules a check of all APIServices; to be called when the kinds have changed."""
        if self._started and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._ensure)

    def _committed(self, changes: list[ObjectChange]) -> None:
        deleted = [change.entry for change in changes if change.type == "DELETED"]
        for gone in deleted:
            if gone.name.partition(".")[2] in INSTALLED_GROUPS and b'"service"' in gone.raw:
                self._paused[gone.name] = self._clock.monotonic() + PAUSE_S
                self._tasks.start("pause of an APIService", self._end_pause())
        if deleted:
            self.changed()
        for change in changes:
            entry = self._store.get(TABLE, "", change.entry.name)
            if entry is not None and b'"service"' not in entry.raw and b'"reason":"Local"' not in entry.raw:
                obj = entry.object()
                set_local(obj, rfc3339(self._clock.now()))
                self._store.put(TABLE, obj)

    async def _end_pause(self) -> None:
        await self._clock.sleep(PAUSE_S)
        self._ensure()

    def _ensure(self) -> None:
        self._scheduled = False
        now = self._clock.monotonic()
        self._paused = {name: end for name, end in self._paused.items() if end > now}
        managed_names = {
            f"{kind.version}.{kind.group}": (kind.group, kind.version)
            for kind in self._kinds.values()
            if kind.group != GROUP
        }
        for name, (group, version) in sorted(managed_names.items()):
            if self._store.get(TABLE, "", name) is None and name not in self._paused:
                self._store.put(TABLE, _service(name, (group, version), rfc3339(self._clock.now())))
        for entry in self._store.entries(TABLE):
            if entry.name not in managed_names and entry.labels.get(_MANAGED) and b'"service"' not in entry.raw:
                self._store.delete(entry)


def _service(name: str, served: tuple[str, str], now: str) -> Object:
    """The APIService in its stored form, made in one step, since every start of the server creates many."""
    group, version = served
    meta: Object = {
        "name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now,
        "labels": {_MANAGED: "onstart" if group in GROUPS else "true"},
    }  # fmt: skip
    if group in INSTALLED_GROUPS:
        # This field manager owns the label alone, so a client that applies an APIService over this one gets no
        # conflict.
        owned: Object = {"f:metadata": {"f:labels": {f"f:{_MANAGED}": {}}}}
        meta["managedFields"] = [{
            "manager": "kube-apiserver", "operation": "Update", "apiVersion": f"{GROUP}/v1", "time": now,
            "fieldsType": "FieldsV1", "fieldsV1": owned,
        }]  # fmt: skip
    spec = {
        **({"group": group} if group else {}), "version": version, "groupPriorityMinimum": group_priority(group),
        "versionPriority": version_priority(group, version),
    }  # fmt: skip
    service: Object = {"apiVersion": f"{GROUP}/v1", "kind": "APIService", "metadata": meta, "spec": spec}
    set_local(service, now)
    return service
