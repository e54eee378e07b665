"""Removes objects that a failed test left outside of its namespace, where later tests of the cluster would see them.

That is all that is in no namespace or in ``default``: a Node, a webhook, a definition of a custom resource, a pod.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.e2e.connection import Connection

_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_OTHERS = {"namespaces", "events", "leases", "ipaddresses", "persistentvolumes", "endpoints", "endpointslices"}
"""Resources that the cluster writes itself, or whose objects are deleted with a namespace."""
Objects = dict[str, Any]
"""Objects by their paths."""


@cache
def known(api: Connection) -> Objects:
    """The objects that were there when this was called first: before the first test of the cluster."""
    return objects(api)


def objects(api: Connection) -> Objects:
    """All objects that are in no namespace or in ``default`` and have no owner, by their paths."""
    return {
        f"{path}/{item['metadata']['name']}": item
        for path in _paths(api)
        for item in api.do("GET", path)["items"]
        if "ownerReferences" not in item["metadata"]
    }


def _paths(api: Connection) -> Iterator[str]:
    """The paths of the lists, in the version that the server prefers."""
    for root in ("/api", "/apis"):
        for group in api.send("GET", root, accept=_DISCOVERY).body["items"]:
            name = group["metadata"].get("name", "")
            version = group["versions"][0]
            start = "/".join(filter(None, (root, name, version["version"])))
            for resource in version["resources"]:
                if {"list", "delete"} <= set(resource["verbs"]) and resource["resource"] not in _OTHERS:
                    inside = "" if resource["scope"] == "Cluster" else "/namespaces/default"
                    yield f"{start}{inside}/{resource['resource']}"


def remove(api: Connection, before: Objects) -> None:
    """Deletes objects that did not exist before, and restores labels, taints and cordons of nodes."""
    now = objects(api)
    for path in now.keys() - before.keys():
        api.ask("DELETE", path, {"propagationPolicy": "Background", "gracePeriodSeconds": 0})
    for path in now.keys() & before.keys():
        if path.startswith("/api/v1/nodes/") and (patch := _difference(before[path], now[path])):
            api.ask("PATCH", path, patch)


def _difference(before: Any, now: Any) -> dict[str, Any]:
    """The merge patch that makes a node's labels, taints and cordon what they were; empty when they are."""
    labels, expected = (node["metadata"].get("labels") or {} for node in (now, before))
    changed = dict.fromkeys(labels.keys() - expected.keys()) | {
        key: text for key, text in expected.items() if labels.get(key) != text
    }
    spec = {
        field: before["spec"].get(field)
        for field in ("taints", "unschedulable")
        if now["spec"].get(field) != before["spec"].get(field)
    }
    return ({"metadata": {"labels": changed}} if changed else {}) | ({"spec": spec} if spec else {})
