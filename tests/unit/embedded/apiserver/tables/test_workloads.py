"""The columns of each kind of the issue as Kubernetes has them, and rows of workloads.

Source of the headings: ``k8s.io/kubernetes/pkg/printers/internalversion/printers.go``.
"""

from datetime import UTC, datetime
from typing import Any

import pytest

from podwire.embedded.apiserver.kinds import BY_KIND
from podwire.embedded.apiserver.tables import columns

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
META = {"name": "x", "creationTimestamp": "2026-01-02T11:55:00Z"}
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "i:1"}], "nodeSelector": {"disk": "fast"}}}
SELECTOR = {"matchLabels": {"app": "w"}}

HEADINGS = {
    "/Namespace": "Name Status Age",
    "/Node": "Name Status Roles Age Version | Internal-IP External-IP OS-Image Kernel-Version Container-Runtime",
    "/Pod": "Name Ready Status Restarts Age | IP Node Nominated_Node Readiness_Gates",
    "/Service": "Name Type Cluster-IP External-IP Port(s) Age | Selector",
    "/Endpoints": "Name Endpoints Age",
    "discovery.k8s.io/EndpointSlice": "Name AddressType Ports Endpoints Age",
    "/ConfigMap": "Name Data Age",
    "/Secret": "Name Type Data Age",
    "/ServiceAccount": "Name Secrets Age",
    "coordination.k8s.io/Lease": "Name Holder Age",
    "apps/Deployment": "Name Ready Up-to-date Available Age | Containers Images Selector",
    "apps/ReplicaSet": "Name Desired Current Ready Age | Containers Images Selector",
    "apps/DaemonSet": "Name Desired Current Ready Up-to-date Available Node_Selector Age | Containers Images Selector",
    "apps/StatefulSet": "Name Ready Age | Containers Images",
    "batch/Job": "Name Status Completions Duration Age | Containers Images Selector",
    "batch/CronJob": "Name Schedule Timezone Suspend Active Last_Schedule Age | Containers Images Selector",
    "networking.k8s.io/NetworkPolicy": "Name Pod-Selector Age",
    "networking.k8s.io/Ingress": "Name Class Hosts Address Ports Age",
    "networking.k8s.io/IngressClass": "Name Controller Parameters Age",
    "policy/PodDisruptionBudget": "Name Min_Available Max_Unavailable Allowed_Disruptions Age",
    "rbac.authorization.k8s.io/Role": "Name Created_At",
    "rbac.authorization.k8s.io/ClusterRole": "Name Created_At",
    "rbac.authorization.k8s.io/RoleBinding": "Name Role Age | Users Groups ServiceAccounts",
    "rbac.authorization.k8s.io/ClusterRoleBinding": "Name Role Age | Users Groups ServiceAccounts",
    "apiextensions.k8s.io/CustomResourceDefinition": "Name Created_At",
}
"""By group and kind; behind the bar what ``-o wide`` adds, ``_`` for a space."""


@pytest.mark.parametrize("kind", HEADINGS)
def test_headings(kind: str) -> None:
    group, _, name = kind.partition("/")
    shown = columns.render(BY_KIND[group, "v1", name], [], NOW)["columnDefinitions"]
    always, _, more = HEADINGS[kind].partition(" | ")
    for arguments, wide in ((always, False), (more, True)):
        results = [column["name"] for column in shown if bool(column["priority"]) == wide]
        assert results == [word.replace("_", " ") for word in arguments.split()]


def test_headings_of_events() -> None:
    shown = columns.render(BY_KIND["", "v1", "Event"], [], NOW)["columnDefinitions"]
    assert [(column["name"], column["priority"]) for column in shown] == [
        ("Last Seen", 0), ("Type", 0), ("Reason", 0), ("Object", 0), ("Subobject", 1), ("Source", 1), ("Message", 0),
        ("First Seen", 1), ("Count", 1), ("Name", 1),
    ]  # fmt: skip


ROWS: list[tuple[str, dict[str, Any], list[Any]]] = [
    (
        "apps/ReplicaSet",
        {"spec": {"replicas": 3, "selector": SELECTOR, "template": TEMPLATE}, "status": {"replicas": 2}},
        ["x", 3, 2, 0, "5m", "c", "i:1", "app=w"],
    ),
    (
        "apps/DaemonSet",
        {
            "spec": {"selector": SELECTOR, "template": TEMPLATE},
            "status": {"desiredNumberScheduled": 3, "currentNumberScheduled": 2, "numberReady": 1},
        },
        ["x", 3, 2, 1, 0, 0, "disk=fast", "5m", "c", "i:1", "app=w"],
    ),
    (
        "apps/StatefulSet",
        {"spec": {"replicas": 2, "selector": SELECTOR, "template": TEMPLATE}, "status": {"readyReplicas": 1}},
        ["x", "1/2", "5m", "c", "i:1"],
    ),
    (
        "batch/Job",
        {
            "spec": {"completions": 2, "selector": SELECTOR, "template": TEMPLATE},
            "status": {
                "succeeded": 2,
                "startTime": "2026-01-02T11:56:00Z",
                "completionTime": "2026-01-02T11:56:30Z",
                "conditions": [{"type": "Complete", "status": "True"}],
            },
        },
        ["x", "Complete", "2/2", "30s", "5m", "c", "i:1", "app=w"],
    ),
    (
        "batch/CronJob",
        {
            "spec": {"schedule": "@daily", "suspend": False, "jobTemplate": {"spec": {"template": TEMPLATE}}},
            "status": {"active": [{}], "lastScheduleTime": "2026-01-02T11:58:00Z"},
        },
        ["x", "@daily", "<none>", "False", 1, "2m", "5m", "c", "i:1", "<none>"],
    ),
    (
        "policy/PodDisruptionBudget",
        {"spec": {"maxUnavailable": "50%"}, "status": {"disruptionsAllowed": 1}},
        ["x", "N/A", "50%", 1, "5m"],
    ),
]


@pytest.mark.parametrize(("kind", "obj", "cells"), ROWS, ids=[row[0] for row in ROWS])
def test_rows(kind: str, obj: dict[str, Any], cells: list[Any]) -> None:
    group, _, name = kind.partition("/")
    table = columns.render(BY_KIND[group, "v1", name], [{"kind": name, "metadata": META, **obj}], NOW)
    assert table["rows"][0]["cells"] == cells
