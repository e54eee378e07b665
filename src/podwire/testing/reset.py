"""Restores a cluster: deletes objects that are newer than a snapshot, and restores labels of nodes and namespaces.

Every kind that the API can list and delete is listed, so new objects of every program are found. Objects that
controllers derive from other objects (EndpointSlices, Events, Leases) are deleted with those. Objects whose owner is in
the snapshot stay: a node's policy report, a pod that replaced another pod. Cost: one list request for each of 45 kinds.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from podwire.errors import ApiError, ClusterError, Conflict, NotFound
from podwire.kube.client import MERGE_PATCH, Client
from podwire.kube.resources import NAMESPACES, NODES, Json, Resource

_DERIVED = {"events", "endpoints", "endpointslices", "leases", "controllerrevisions"}
_MAKERS = (
    "deployments",
    "statefulsets",
    "daemonsets",
    "cronjobs",
    "jobs",
    "replicasets",
    "replicationcontrollers",
    "pods",
)
"""Kinds that create pods, then pods: in this order they are deleted first."""
_LAST = ("namespaces", "customresourcedefinitions")
_GONE_S = 20.0
_POLL_S = 0.01

ObjectName = tuple[str, str, str]
"""Resource (``plural.group``), namespace, name."""


class ObjectSnapshot(msgspec.Struct, frozen=True):
    """The uids of all objects and of their owners, and the labels of nodes and namespaces."""

    uids: dict[ObjectName, str]
    owners: dict[ObjectName, tuple[str, ...]]
    labels: dict[ObjectName, dict[str, str]]

    def since(self, before: "ObjectSnapshot") -> list[ObjectName]:
        """The keys of objects that are not in ``before``, and whose owners are not in it either."""
        known = set(before.uids.values())
        return [key for key, uid in self.uids.items() if uid not in known and known.isdisjoint(self.owners[key])]


class Resetter:
    """Takes snapshots of one cluster and restores them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._resources: tuple[Resource[Json], ...] = ()

    async def snapshot(self) -> ObjectSnapshot:
        """Returns the current objects."""
        if not self._resources:
            self._resources = await self._discover()
        pages = await asyncio.gather(*(self._client.list(resource) for resource in self._resources))
        uids, owners, labels = {}, {}, {}
        for resource, page in zip(self._resources, pages, strict=True):
            for item in page.items:
                meta = item["metadata"]
                key = (_name(resource), meta.get("namespace", ""), meta["name"])
                uids[key] = meta["uid"]
                owners[key] = tuple(owner["uid"] for owner in meta.get("ownerReferences") or ())
                if resource.plural in (NODES.plural, NAMESPACES.plural):
                    labels[key] = meta.get("labels") or {}
        return ObjectSnapshot(uids, owners, labels)

    async def back_to(self, before: ObjectSnapshot) -> None:
        """Deletes all objects that are not in the snapshot, and returns when they are gone.

        Raises: ClusterError with the objects that are not deleted in time.
        """
        now = await self.snapshot()
        await asyncio.gather(*(self._relabel(key, before.labels[key], now) for key in before.labels))
        created = now.since(before)
        for plural in _MAKERS:
            await self._delete(key for key in created if key[0].partition(".")[0] == plural)
        await self._delete(key for key in created if key[0].partition(".")[0] not in (*_MAKERS, *_LAST))
        await self._delete(key for key in created if key[0].partition(".")[0] in _LAST)
        await self._gone(before)

    async def _gone(self, before: ObjectSnapshot) -> None:
        clock = self._client.clock
        deadline = clock.monotonic() + _GONE_S
        while True:
            new_objects = (await self.snapshot()).since(before)
            if not new_objects:
                return
            if clock.monotonic() > deadline:
                names = ", ".join("/".join(filter(None, key)) for key in new_objects[:5])
                raise ClusterError(f"these objects were not deleted in time: {names}")
            # A ReplicaSet may have created another pod in the meantime.
            await self._delete(key for key in new_objects if key[0] == "pods")
            await clock.sleep(_POLL_S)

    async def _delete(self, keys: Iterable[ObjectName]) -> None:
        by_name = {_name(resource): resource for resource in self._resources}
        await asyncio.gather(*(self._delete_one(by_name[key[0]], key) for key in keys))

    async def _delete_one(self, resource: Resource[Json], key: ObjectName) -> None:
        grace = 0 if resource.plural == "pods" else None
        try:
            await self._client.delete(resource, key[2], key[1], grace_period_s=grace, propagation="Background")
        except (NotFound, Conflict):
            pass

    async def _relabel(self, key: ObjectName, labels: dict[str, str], now: ObjectSnapshot) -> None:
        have = now.labels.get(key)
        if have is None or have == labels:
            return
        resource: Resource[Any] = NODES if key[0] == NODES.plural else NAMESPACES
        patch = {"metadata": {"labels": {name: labels.get(name) for name in {*have, *labels}}}}
        await self._client.patch(resource, key[2], patch, patch_type=MERGE_PATCH)

    async def _discover(self) -> tuple[Resource[Json], ...]:
        groups = msgspec.json.decode((await self._client.raw("GET", "/apis")).body)["groups"]
        versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
        by_version = await asyncio.gather(*map(self._of, versions))
        return tuple(resource for resources in by_version for resource in resources)

    async def _of(self, version: str) -> list[Resource[Json]]:
        answer = await self._client.raw("GET", f"/apis/{version}" if "/" in version else f"/api/{version}")
        if answer.status != 200:
            raise ApiError(answer.status, "", f"{version} cannot be listed")
        group, _, number = version.rpartition("/")
        return [
            Resource(group, number, entry["name"], entry["kind"], entry["namespaced"], dict)
            for entry in msgspec.json.decode(answer.body)["resources"]
            if {"list", "delete"} <= set(entry.get("verbs", ())) and entry["name"] not in _DERIVED
        ]


def _name(resource: Resource[Any]) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural
