"""What objects use, and which objects a quota counts."""

from typing import Any

import pytest

from podwire.embedded.apiserver.admission.quota.scopes import is_in_scope
from podwire.embedded.apiserver.admission.quota.usage import missing, table_of, usage

Object = dict[str, Any]


def _pod(resources: Object | None = None, phase: str = "Pending", **spec: Any) -> Object:
    container = {"name": "c", "resources": resources or {}}
    return {"spec": {"containers": [container], **spec}, "status": {"phase": phase, "qosClass": "BestEffort"}}


@pytest.mark.parametrize(
    ("table", "obj", "expected"),
    [
        ("/configmaps", {}, {"count/configmaps": "1", "configmaps": "1"}),
        ("apps/deployments", {}, {"count/deployments.apps": "1"}),
        ("/pods", _pod({"requests": {"cpu": "1", "memory": "1Gi", "x.y/gpu": "2"}, "limits": {"cpu": "2"}}), {
            "count/pods": "1", "pods": "1", "cpu": "1", "requests.cpu": "1", "memory": "1Gi", "requests.memory": "1Gi",
            "requests.x.y/gpu": "2", "limits.cpu": "2"}),
        ("/pods", _pod({"requests": {"cpu": "1"}}, "Succeeded"), {"count/pods": "1"}),
        ("/services", {"spec": {"type": "NodePort", "ports": [{}, {}]}}, {
            "count/services": "1", "services": "1", "services.nodeports": "2", "services.loadbalancers": "0"}),
        ("/services", {"spec": {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False, "ports": [{}]}}, {
            "count/services": "1", "services": "1", "services.nodeports": "0", "services.loadbalancers": "1"}),
        ("/persistentvolumeclaims", {"spec": {
            "storageClassName": "fast", "resources": {"requests": {"storage": "2Gi"}}}}, {
            "count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1", "requests.storage": "2Gi",
            "fast.storageclass.storage.k8s.io/requests.storage": "2Gi",
            "fast.storageclass.storage.k8s.io/persistentvolumeclaims": "1"}),
    ],
)  # fmt: skip
def test_objects_use(table: str, obj: Object, expected: dict[str, str]) -> None:
    result = usage(table, obj)
    assert {name: str(amount) for name, amount in result.items()} == expected
    assert all(table_of(name) == table for name in result)


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        (["pods", "requests.storage"], ""),
        (["limits.cpu", "requests.memory"], "limits.cpu for: c; requests.memory for: c"),
        (["requests.cpu"], ""),
    ],
)
def test_containers_must_specify(hard: list[str], expected: str) -> None:
    assert missing(_pod({"requests": {"cpu": "1"}}), hard) == expected


def _class(operator: str, *values: str) -> Object:
    term = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [term]}}


@pytest.mark.parametrize(
    ("spec", "pod", "counted"),
    [
        ({}, _pod(), True),
        ({"scopes": ["BestEffort"]}, _pod(), True),
        ({"scopes": ["NotBestEffort"]}, _pod(), False),
        ({"scopes": ["Terminating"]}, _pod(activeDeadlineSeconds=5), True),
        ({"scopes": ["NotTerminating"]}, _pod(activeDeadlineSeconds=5), False),
        ({"scopes": ["BestEffort", "Terminating"]}, _pod(), False),
        (_class("In", "high"), _pod(priorityClassName="high"), True),
        (_class("NotIn", "high"), _pod(priorityClassName="high"), False),
        (_class("Exists"), _pod(), False),
        (_class("DoesNotExist"), _pod(), True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, _pod(affinity={"podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaces": ["x"]}}]}}), True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, _pod(), False),
    ],
)  # fmt: skip
def test_scopes_select_pods(spec: Object, pod: Object, counted: bool) -> None:  # noqa: FBT001
    assert is_in_scope(spec, "/pods", pod) is counted


def test_scopes_of_pods_select_no_services() -> None:
    assert not is_in_scope({"scopes": ["BestEffort"]}, "/services", {"spec": {}})
