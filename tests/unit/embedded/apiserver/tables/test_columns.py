"""Rows of tables, as ``kubectl get`` prints them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from podwire.embedded.apiserver.kinds import BY_KIND, KINDS
from podwire.embedded.apiserver.tables import columns
from podwire.embedded.apiserver.tables.cells import human_duration, selector
from podwire.embedded.apiserver.tables.jsonpath import find

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
META = {"name": "x", "creationTimestamp": "2026-01-02T11:55:00Z"}


def row(group: str, kind: str, obj: dict[str, Any], version: str = "v1") -> list[Any]:
    table = columns.render(BY_KIND[group, version, kind], [{"metadata": META, **obj}], NOW)
    cells: list[Any] = table["rows"][0]["cells"]
    assert len(cells) == len(table["columnDefinitions"])
    return cells


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: f"{kind.resource}-{kind.version}")
def test_every_kind_renders_an_empty_object(kind: Any) -> None:
    table = columns.render(kind, [{"metadata": {}}], NOW, include="None")
    assert len(table["rows"][0]["cells"]) == len(table["columnDefinitions"])
    assert "object" not in table["rows"][0]


HUMAN = {
    -2: "<invalid>", -1: "0s", 0: "0s", 119: "119s", 120: "2m", 125: "2m5s", 599: "9m59s", 600: "10m",
    10799: "179m", 10800: "3h", 11220: "3h7m", 28800: "8h", 172799: "47h", 172800: "2d", 183600: "2d3h",
    691200: "8d", 86400 * 729: "729d", 86400 * 731: "2y1d", 86400 * 365 * 9: "9y",
}  # fmt: skip


@pytest.mark.parametrize("seconds", HUMAN)
def test_durations(seconds: int) -> None:
    assert human_duration(seconds) == HUMAN[seconds]


def running(name: str, *, ready: bool = True, restarts: int = 0, **rest: Any) -> dict[str, Any]:
    return {"name": name, "ready": ready, "restartCount": restarts, "state": {"running": {}}, **rest}


def waiting(name: str, reason: str, restarts: int = 0, **rest: Any) -> dict[str, Any]:
    state = {"waiting": {"reason": reason}}
    return {"name": name, "ready": False, "restartCount": restarts, "state": state, **rest}


def ended(name: str, code: int, reason: str = "", **rest: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, **rest}}
    return {"name": name, "ready": False, "restartCount": 0, "state": state}


def spec(*names: str, init: tuple[str, ...] = (), sidecars: tuple[str, ...] = ()) -> dict[str, Any]:
    inits = [{"name": name} for name in init] + [{"name": n, "restartPolicy": "Always"} for n in sidecars]
    return {"containers": [{"name": name} for name in names], "initContainers": inits}


LAST = {"lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-02T11:50:00Z"}}}
READY = [{"type": "Ready", "status": "True"}]
PODS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = {
    "pending": (spec("a"), {"phase": "Pending"}, {}, ["0/1", "Pending", "0"]),
    "running": (
        spec("a", "b"),
        {"phase": "Running", "containerStatuses": [running("a"), running("b", ready=False)]},
        {},
        ["1/2", "Running", "0"],
    ),
    "crash loop": (
        spec("a"),
        {"phase": "Running", "containerStatuses": [waiting("a", "CrashLoopBackOff", 3, **LAST)]},
        {},
        ["0/1", "CrashLoopBackOff", "3 (10m ago)"],
    ),
    "init": (
        spec("a", init=("i", "j")),
        {"phase": "Pending", "initContainerStatuses": [ended("i", 0), waiting("j", "PodInitializing")],
         "containerStatuses": [waiting("a", "PodInitializing")]},
        {},
        ["0/1", "Init:1/2", "0"],
    ),
    "init failed": (
        spec("a", init=("i",)),
        {"phase": "Pending", "initContainerStatuses": [ended("i", 1, "Error")]},
        {},
        ["0/1", "Init:Error", "0"],
    ),
    "sidecar": (
        spec("a", sidecars=("s",)),
        {"phase": "Running", "initContainerStatuses": [running("s", started=True, restarts=2)],
         "containerStatuses": [running("a", restarts=1)]},
        {},
        ["2/2", "Running", "3"],
    ),
    "completed": (
        spec("a"),
        {"phase": "Succeeded", "containerStatuses": [ended("a", 0, "Completed")]},
        {},
        ["0/1", "Completed", "0"],
    ),
    "one of two completed": (
        spec("a", "b"),
        {"phase": "Running", "conditions": READY,
         "containerStatuses": [ended("a", 0, "Completed"), running("b")]},
        {},
        ["1/2", "Running", "0"],
    ),
    "killed": (
        spec("a"),
        {"phase": "Failed", "containerStatuses": [ended("a", 137, "", signal=9)]},
        {},
        ["0/1", "Signal:9", "0"],
    ),
    "evicted": (spec("a"), {"phase": "Failed", "reason": "Evicted"}, {}, ["0/1", "Evicted", "0"]),
    "terminating": (
        spec("a"),
        {"phase": "Running", "containerStatuses": [running("a")]},
        {"deletionTimestamp": "2026-01-02T11:59:00Z"},
        ["1/1", "Terminating", "0"],
    ),
    "gated": (
        spec("a"),
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]},
        {},
        ["0/1", "SchedulingGated", "0"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PODS)
def test_pod_state(name: str) -> None:
    pod_spec, status, meta, want = PODS[name]
    assert row("", "Pod", {"metadata": {**META, **meta}, "spec": pod_spec, "status": status})[1:4] == want


def test_pod_wide() -> None:
    status = {"phase": "Running", "podIPs": [{"ip": "10.1.0.2"}]}
    obj = {"spec": {**spec("a"), "nodeName": "node-1"}, "status": status}
    assert row("", "Pod", obj)[4:] == ["5m", "10.1.0.2", "node-1", "<none>", "<none>"]


SERVICES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"spec": {"type": "ClusterIP", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80, "protocol": "TCP"}],
                  "selector": {"b": "2", "a": "1"}}},
        ["x", "ClusterIP", "10.96.0.1", "<none>", "80/TCP", "5m", "a=1,b=2"],
    ),
    (
        {"spec": {"type": "NodePort", "clusterIPs": ["10.96.0.1"],
                  "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}},
        ["x", "NodePort", "10.96.0.1", "<none>", "80:30080/TCP,53/UDP", "5m", "<none>"],
    ),
    (
        {"spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]}},
        ["x", "LoadBalancer", "10.96.0.1", "<pending>", "80/TCP", "5m", "<none>"],
    ),
    (
        {"spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"], "ports": []},
         "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}, {"hostname": "lb"}]}}},
        ["x", "LoadBalancer", "10.96.0.1", "192.0.2.9,lb", "<none>", "5m", "<none>"],
    ),
    (
        {"spec": {"type": "ExternalName", "externalName": "example.org"}},
        ["x", "ExternalName", "<none>", "example.org", "<none>", "5m", "<none>"],
    ),
    (
        {"spec": {"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}},
        ["x", "ClusterIP", "None", "<none>", "<none>", "5m", "<none>"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("obj", "want"), SERVICES)
def test_service(obj: dict[str, Any], want: list[str]) -> None:
    assert row("", "Service", obj) == want


def test_workloads() -> None:
    template = {"spec": {"containers": [{"name": "c", "image": "i:1"}, {"name": "d", "image": "j"}]}}
    deployment = {
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "w"}}, "template": template},
        "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1},
    }
    assert row("apps", "Deployment", deployment) == ["x", "2/3", 3, 1, "5m", "c,d", "i:1,j", "app=w"]
    job = {"spec": {"completions": 2, "template": template}, "status": {"startTime": "2026-01-02T11:59:00Z"}}
    assert row("batch", "Job", job)[:5] == ["x", "Running", "0/2", "60s", "5m"]


def test_endpoints() -> None:
    addresses = [{"ip": f"10.0.0.{i}"} for i in range(5)]
    obj = {"subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]}
    assert row("", "Endpoints", obj)[1] == "10.0.0.0:80,10.0.0.1:80,10.0.0.2:80 + 2 more..."
    piece = {"addressType": "IPv4", "ports": [{"port": 8080}], "endpoints": [{"addresses": ["10.0.0.1"]}]}
    assert row("discovery.k8s.io", "EndpointSlice", piece) == ["x", "IPv4", "8080", "10.0.0.1", "5m"]


def test_node_and_event() -> None:
    node = {
        "metadata": {**META, "labels": {"node-role.kubernetes.io/control-plane": ""}},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
                   "addresses": [{"type": "InternalIP", "address": "10.89.0.11"}],
                   "nodeInfo": {"kubeletVersion": "v1.36.0"}},
    }  # fmt: skip
    assert row("", "Node", node)[1:6] == [
        "Ready,SchedulingDisabled", "control-plane", "5m", "v1.36.0", "10.89.0.11"
    ]  # fmt: skip
    event = {"lastTimestamp": "2026-01-02T11:59:30Z", "type": "Normal", "reason": "Started", "message": "m\n",
             "involvedObject": {"kind": "Pod", "name": "p"}}  # fmt: skip
    cells = row("", "Event", event)
    assert [cells[i] for i in (0, 1, 2, 3, 6)] == ["30s", "Normal", "Started", "pod/p", "m"]


def test_selector_text() -> None:
    rules = [{"key": "tier", "operator": "In", "values": ["b", "a"]}, {"key": "old", "operator": "DoesNotExist"}]
    assert selector({"matchLabels": {"app": "w"}, "matchExpressions": rules}) == "app=w,!old,tier in (a,b)"
    assert selector({}) == "<none>"


DOC = {"a": {"b": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}], "c.d": True}, "e": None}
PATHS = [
    (".a.b[0].n", [1]), (".a.b[-1].t", ["y"]), (".a.b[*].n", [1, 2]), ('.a.b[?(@.t=="y")].n', [2]),
    (".a['c.d']", [True]), (r".a.c\.d", [True]), ("{.a.b[0:1].t}", ["x"]), (".missing.deeper", []),
    ("..t", ["x", "y"]), (".a.b[?(@.n>1)].t", ["y"]), (".e", [None]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "want"), PATHS)
def test_jsonpath(path: str, want: list[Any]) -> None:
    assert find(path, DOC) == want


def test_custom_columns() -> None:
    kind = BY_KIND["", "v1", "ConfigMap"]
    shown: list[dict[str, Any]] = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Since", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Tags", "type": "string", "jsonPath": ".spec.tags", "priority": 1},
        {"name": "Gone", "type": "string", "jsonPath": ".spec.gone"},
    ]
    obj = {"metadata": META, "spec": {"size": 3, "tags": ["a", "b"]}}
    table = columns.render(kind, [obj], NOW, columns=shown, include="Object")
    assert table["rows"] == [{"cells": ["x", 3, "5m", "[a b]", None], "object": obj}]
    assert [column["priority"] for column in table["columnDefinitions"]] == [0, 0, 0, 1, 0]


def test_policies_show_their_parameters() -> None:
    group, kind = "admissionregistration.k8s.io", "ValidatingAdmissionPolicy"
    spec: dict[str, Any] = {"validations": [{}, {}], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}
    assert row(group, kind, {"spec": spec}) == ["x", 2, "v1/ConfigMap", "5m"]
    assert row(group, kind, {"spec": {}}) == ["x", 0, "<unset>", "5m"]
    mutating: dict[str, Any] = {"spec": {"mutations": [{}]}}
    assert row(group, "MutatingAdmissionPolicy", mutating) == ["x", 1, "<unset>", "5m"]
    bound = {"policyName": "p", "paramRef": {"name": "a", "namespace": "n"}}
    assert row(group, f"{kind}Binding", {"spec": bound}) == ["x", "p", "n/a", "5m"]
    assert row(group, f"{kind}Binding", {"spec": {"policyName": "p"}}) == ["x", "p", "<unset>", "5m"]
