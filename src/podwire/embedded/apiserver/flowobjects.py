"""The FlowSchemas and PriorityLevelConfigurations that every cluster has from the start.

``exempt`` and ``catch-all`` are mandatory: they are created again when a client deletes them. The others are
Kubernetes' suggested objects; missing ones are created at the start. Existing objects are left alone. This server
queues no requests: the objects exist for tools and manifests that refer to them. Source:
``k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap/default.go``.
"""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

from podwire.embedded.apiserver.store import ObjectChange, Store
from podwire.runtime.clock import Clock, rfc3339

Object = dict[str, Any]

_GROUP = "flowcontrol.apiserver.k8s.io"
SCHEMAS, LEVELS = f"{_GROUP}/flowschemas", f"{_GROUP}/prioritylevelconfigurations"
_MANDATORY = ("exempt", "catch-all")
_AUTOUPDATE = "apf.kubernetes.io/autoupdate-spec"
_ALL_RESOURCES = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
_ALL_URLS = {"verbs": ["*"], "nonResourceURLs": ["*"]}
_LEVELS: dict[str, tuple[int, int, tuple[int, int, int]]] = {
    "catch-all": (5, 0, (0, 0, 0)),
    "global-default": (20, 50, (128, 6, 50)),
    "leader-election": (10, 0, (16, 4, 50)),
    "node-high": (40, 25, (64, 6, 50)),
    "system": (30, 33, (64, 6, 50)),
    "workload-high": (40, 50, (128, 6, 50)),
    "workload-low": (100, 90, (128, 6, 50)),
}
"""Shares, lendable percent, and the queues: number, hand size, length limit. Without queues, requests are rejected."""


def _groups(*names: str) -> list[Object]:
    return [{"kind": "Group", "group": {"name": name}} for name in names]


def _users(*names: str) -> list[Object]:
    return [{"kind": "User", "user": {"name": name}} for name in names]


def _accounts(*names: str) -> list[Object]:
    return [{"kind": "ServiceAccount", "serviceAccount": {"name": name, "namespace": "kube-system"}} for name in names]


def _on(verbs: str, group: str, resources: str, *, cluster: bool = False) -> Object:
    scope = {"clusterScope": True} if cluster else {}
    return {"verbs": verbs.split(), "apiGroups": [group], "resources": resources.split(), "namespaces": ["*"], **scope}


_EVERYBODY = _groups("system:unauthenticated", "system:authenticated")
_MANAGER, _SCHEDULER = "system:kube-controller-manager", "system:kube-scheduler"
_LEASES = _on("get create update", "coordination.k8s.io", "leases")
_EVERYTHING = {"resourceRules": [_ALL_RESOURCES], "nonResourceRules": [_ALL_URLS]}
_SCHEMAS: tuple[tuple[str, str, int, str, Object], ...] = (
    ("exempt", "exempt", 1, "", {"subjects": _groups("system:masters"), **_EVERYTHING}),
    ("probes", "exempt", 2, "", {
        "subjects": _EVERYBODY,
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}],
    }),
    ("system-leader-election", "leader-election", 100, "ByUser", {
        "subjects": [*_users(_MANAGER, _SCHEDULER), *_accounts("*")], "resourceRules": [_LEASES],
    }),
    ("endpoint-controller", "workload-high", 150, "ByUser", {
        "subjects": [*_users(_MANAGER), *_accounts("endpoint-controller", "endpointslicemirroring-controller")],
        "resourceRules": [_on("get create update", "", "endpoints")],
    }),
    ("workload-leader-election", "leader-election", 200, "ByUser", {
        "subjects": _accounts("*"), "resourceRules": [_LEASES],
    }),
    ("system-node-high", "node-high", 400, "ByUser", {
        "subjects": _groups("system:nodes"),
        "resourceRules": [
            _on("*", "", "nodes nodes/status", cluster=True), _on("*", "coordination.k8s.io", "leases"),
        ],
    }),
    ("system-nodes", "system", 500, "ByUser", {"subjects": _groups("system:nodes"), **_EVERYTHING}),
    ("kube-controller-manager", "workload-high", 800, "ByNamespace", {"subjects": _users(_MANAGER), **_EVERYTHING}),
    ("kube-scheduler", "workload-high", 800, "ByNamespace", {"subjects": _users(_SCHEDULER), **_EVERYTHING}),
    ("kube-system-service-accounts", "workload-high", 900, "ByNamespace", {
        "subjects": _accounts("*"), **_EVERYTHING,
    }),
    ("service-accounts", "workload-low", 9000, "ByUser", {
        "subjects": _groups("system:serviceaccounts"), **_EVERYTHING,
    }),
    ("global-default", "global-default", 9900, "ByUser", {"subjects": _EVERYBODY, **_EVERYTHING}),
    ("catch-all", "catch-all", 10000, "ByUser", {"subjects": _EVERYBODY, **_EVERYTHING}),
)  # fmt: skip
"""Name, priority level, precedence, distinguisher, and the rule."""


def objects() -> Iterator[tuple[str, str, Object]]:
    """Table, name and spec of every object."""
    exempt = {"nominalConcurrencyShares": 0, "lendablePercent": 0}
    yield LEVELS, "exempt", {"type": "Exempt", "exempt": exempt}
    for name, (shares, lendable, (queues, hand, length)) in _LEVELS.items():
        queuing = {"queues": queues, "handSize": hand, "queueLengthLimit": length}
        response: Object = {"type": "Queue", "queuing": queuing} if queues else {"type": "Reject"}
        limited = {"nominalConcurrencyShares": shares, "limitResponse": response, "lendablePercent": lendable}
        yield LEVELS, name, {"type": "Limited", "limited": limited}
    for name, level, precedence, method, rule in _SCHEMAS:
        distinguisher = {"distinguisherMethod": {"type": method}} if method else {}
        head: Object = {"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence}
        yield SCHEMAS, name, {**head, **distinguisher, "rules": [rule]}


class FlowObjects:
    """Creates the objects."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def start(self) -> None:
        """Creates all missing objects; from then on, creates mandatory objects again when they are deleted."""
        self._ensure(mandatory=False)
        for table in (LEVELS, SCHEMAS):
            self._store.table(table).listeners[self._committed] = None

    def _committed(self, changes: list[ObjectChange]) -> None:
        if any(change.type == "DELETED" and change.entry.name in _MANDATORY for change in changes):
            asyncio.get_running_loop().call_soon(lambda: self._ensure(mandatory=True))

    def _ensure(self, *, mandatory: bool) -> None:
        now = rfc3339(self._clock.now())
        for table, name, spec in objects():
            if self._store.get(table, "", name) is None and (name in _MANDATORY or not mandatory):
                self._store.put(table, _flow_object(table, name, spec, now))


def _flow_object(table: str, name: str, spec: Object, now: str) -> Object:
    meta = {
        "name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now, "generation": 1,
        "annotations": {_AUTOUPDATE: "true"},
    }  # fmt: skip
    level = table == LEVELS
    body: Object = {
        "apiVersion": f"{_GROUP}/v1", "kind": "PriorityLevelConfiguration" if level else "FlowSchema",
        "metadata": meta, "spec": spec, "status": {},
    }  # fmt: skip
    if not level:
        target = spec["priorityLevelConfiguration"]["name"]
        message = f'This FlowSchema references the PriorityLevelConfiguration object named "{target}" and it exists'
        body["status"] = {"conditions": [
            {"type": "Dangling", "status": "False", "lastTransitionTime": now, "reason": "Found", "message": message},
        ]}  # fmt: skip
    return body
