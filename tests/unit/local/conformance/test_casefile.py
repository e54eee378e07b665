"""Case files: what they mean, and what is said of those that are wrong."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from podwire.errors import ConfigError
from podwire.local.conformance.casefile import CaseCheck, parse

DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny", "namespace": "x"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}
ADMIN = {
    "apiVersion": "policy.networking.k8s.io/v1alpha2",
    "kind": "ClusterNetworkPolicy",
    "metadata": {"name": "admin"},
    "spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}},
}
PORTS = [{"containerPort": 80, "protocol": "TCP", "name": "web"}]
FILE: dict[str, Any] = {
    "format": "netpol-cases/1",
    "initial": {
        "namespaces": {"x": {"team": "a"}},
        "pods": [
            {"namespace": "x", "name": "a", "labels": {"pod": "a"}, "ip": "10.244.0.11", "ports": PORTS},
            {"namespace": "x", "name": "b", "labels": {}, "ip": "10.244.1.12"},
        ],
    },
    "cases": [
        {
            "id": "one",
            "tags": ["ingress"],
            "steps": [
                {
                    "actions": [{"op": "create_policy", "policy": DENY}],
                    "pods": ["x/a", "x/b"],
                    "expected": {"TCP/80": {"x/a": ".X", "x/b": "Xx"}},
                },
                {"from": "x/a", "to": "x/b", "protocol": "sctp", "port": 90, "allowed": False},
                {
                    "actions": [{"op": "create_cluster_policy", "policy": ADMIN}],
                    "from": "x/b",
                    "to": "x/a",
                    "port": 81,
                    "allowed": True,
                },
            ],
        }
    ],
}


def test_tables_and_single_checks_become_steps_and_checks() -> None:
    file = parse(json.dumps(FILE).encode(), "f.json")
    (case,) = file.cases
    assert (case.id, case.tags, [step.number for step in case.steps]) == ("one", ("ingress",), [0, 2])
    first, second = case.steps
    assert first.checks == (
        CaseCheck(source="x/a", target="x/a", protocol="TCP", port=80, allowed=True),
        CaseCheck(source="x/a", target="x/b", protocol="TCP", port=80, allowed=False),
        CaseCheck(source="x/b", target="x/a", protocol="TCP", port=80, allowed=False),
        CaseCheck(source="x/a", target="x/b", protocol="SCTP", port=90, allowed=False),
    )
    assert [action.key for action in first.actions] == ["x/deny"]
    assert second.checks == (CaseCheck(source="x/b", target="x/a", protocol="TCP", port=81, allowed=True),)
    assert (list(second.stage.policies), list(second.stage.cluster_policies)) == (["x/deny"], ["admin"])
    assert case.initial.pods["x/a"].ports[0].name == "web"


def test_case_may_start_with_its_own_pods_in_yaml() -> None:
    text = b"""
format: cnp-cases/1
cases:
  - id: own
    features: [Ports]
    initial:
      namespaces: {y: {}}
      nodes: [{ip: 172.18.0.2, labels: {zone: a}}]
      pods:
        - {namespace: y, name: h, ip: 172.18.0.2, hostNetwork: true, node_ip: 172.18.0.2}
        - {namespace: y, name: p, ip: 10.244.0.11, node_ip: 172.18.0.2}
    steps:
      - actions: [{op: add_pod_labels, namespace: y, pod: p, labels: {a: b}}]
        from: y/p
        to: y/h
        port: 1
        allowed: true
"""
    (case,) = parse(text, "f.yaml").cases
    assert (case.tags, case.initial.nodes[0].labels) == (("Ports",), {"zone": "a"})
    assert case.initial.pods["y/h"].host_network
    assert case.steps[0].stage.pods["y/p"].labels == {"a": "b"}


def _at(document: Any, *path: Any) -> Any:
    for step in path[:-1]:
        document = document[step]
    return document


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Writes the last word of the path at the place that the others name."""

    def change(document: dict[str, Any]) -> None:
        place = _at(document, *path[:-1])
        place[path[-2]] = path[-1]

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        del _at(document, *path)[path[-1]]

    return change


STEP = ("cases", 0, "steps", 0)
ACTION = (*STEP, "actions", 0)


@pytest.mark.parametrize(
    ("change", "output"),
    [
        (put("format", "other/2"), "f.json: format: expected netpol-cases/1 or cnp-cases/1, found 'other/2'"),
        (put("family", "ipv6"), "f.json: family: expected ipv4, found 'ipv6'"),
        (put("cases", {}), "f.json: cases: expected a list, found {}"),
        (put("cases", []), "f.json: cases: expected at least one case"),
        (put("cases", 0, 7), "f.json: cases[0]: expected an object, found 7"),
        (drop("cases", 0, "id"), "f.json: cases[0].id: expected a text, found nothing"),
        (drop("initial"), "f.json: case one: initial: expected an object, here or for the whole file"),
        (put("initial", "pods", 0, "ip", "10.1"), "f.json: initial.pods[0].ip: expected an IPv4 address, found '10.1'"),
        (
            put("initial", "pods", 1, "ip", "10.244.0.11"),
            "f.json: initial.pods[1]: expected an address that no pod has, found the address of x/a",
        ),
        (
            put("initial", "pods", 1, "namespace", "z"),
            "f.json: initial.pods[1]: expected a namespace that exists, found 'z'",
        ),
        (
            put("initial", "pods", 0, "ports", [{"containerPort": 0}]),
            "f.json: initial.pods[0].ports[0].containerPort: expected 1 to 65535, found 0",
        ),
        (
            put("initial", "namespaces", "x", {"team": 1}),
            "f.json: initial.namespaces.x[team]: expected a text, found 1",
        ),
        (put("cases", 0, "steps", []), "f.json: case one: steps: expected at least one step in case 0"),
        (
            put("cases", 0, "steps", 0, "pods", [{}]),
            "f.json: case one: steps[0].pods[0]: expected a pod that exists at",
        ),
        (put(*ACTION, "op", "drop"), "f.json: case one: steps[0].actions[0].op: expected one of create_policy, "),
        (
            put(*ACTION, "op", "update_policy"),
            "f.json: case one: steps[0].actions[0]: expected a policy that exists, found x/deny",
        ),
        (
            put(*ACTION, "policy", "kind", "Pod"),
            "f.json: case one: steps[0].actions[0].policy.kind: expected NetworkPolicy, found 'Pod'",
        ),
        (
            put(*ACTION, "policy", "spec", "policyTypes", "Ingress"),
            "f.json: case one: steps[0].actions[0].policy.spec.policyTypes: expected a list, got a text",
        ),
        (
            put(*ACTION, {"op": "delete_pod", "namespace": "x", "pod": "q"}),
            "f.json: case one: steps[0].actions[0]: expected a pod that exists, found x/q",
        ),
        (put(*STEP, "pods", 1, "x/q"), "f.json: case one: steps[0].pods[1]: expected a pod that exists at this step, "),
        (
            put(*STEP, "expected", "TCP/80", "x/a", "..."),
            "f.json: case one: steps[0].expected.TCP/80.x/a: expected 2 characters of . X x, found '...'",
        ),
        (
            put(*STEP, "expected", {"ICMP/0": {}}),
            "f.json: case one: steps[0].expected.ICMP/0: expected a protocol and a port such as TCP/80",
        ),
        (
            put(*STEP, "expected", {"TCP/80/six": {}}),
            "f.json: case one: steps[0].expected.TCP/80/six: expected a family behind the port, as in TCP/80/IPv6",
        ),
        (
            put("cases", 0, "steps", 1, "family", 5),
            "f.json: case one: steps[1].family: expected 4 or 6, found 5",
        ),
        (
            put("initial", "pods", 0, "ipv6", "10.0.0.1"),
            "f.json: initial.pods[0].ipv6: expected an IPv6 address, found '10.0.0.1'",
        ),
        (
            put("cases", 0, "translate", "no"),
            "f.json: case one: translate: expected true or false, found 'no'",
        ),
        (
            put("cases", 0, "steps", 1, "to", "x/q"),
            "f.json: case one: steps[1].to: expected a pod that exists at this step, found 'x/q'",
        ),
        (
            put("cases", 0, "steps", 1, "allowed", "no"),
            "f.json: case one: steps[1].allowed: expected true or false, found 'no'",
        ),
        (
            put("cases", 0, "steps", 1, "protocol", "ICMP"),
            "f.json: case one: steps[1].protocol: expected TCP, UDP, SCTP, found 'ICMP'",
        ),
    ],
)
def test_errors_name_file_case_and_field(change: Callable[[dict[str, Any]], None], output: str) -> None:
    document = copy.deepcopy(FILE)
    change(document)
    with pytest.raises(ConfigError) as failure:
        parse(json.dumps(document).encode(), "f.json")
    assert str(failure.value).startswith(output), failure.value


def test_duplicate_case_ids_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected an id of its own, found 'one' a second time"):
        parse(json.dumps({**FILE, "cases": FILE["cases"] * 2}).encode(), "f.json")


@pytest.mark.parametrize(
    ("name", "text", "output"),
    [
        ("f.json", b"{", "f.json: not JSON: "),
        ("f.json", b"[]", "f.json: expected an object with format and cases"),
        ("f.yaml", b"a: [", "f.yaml:2: not YAML: "),
        ("f.yaml", b"\xff\xfe\xff", "f.yaml: not YAML: "),
        ("f.yaml", b"", "f.yaml: expected an object with format and cases"),
        ("f.yaml", b"initial: {pods: [{80: x}]}", "f.yaml: initial.pods[0]: expected a string as the name of a field"),
    ],
)
def test_a_text_that_is_no_document(name: str, text: bytes, output: str) -> None:
    with pytest.raises(ConfigError) as failure:
        parse(text, name)
    assert str(failure.value).startswith(output)


def test_checks_in_ipv6_need_pods_with_ipv6_addresses() -> None:
    file = copy.deepcopy(FILE)
    file["cases"][0]["steps"][1]["family"] = 6
    (case,) = parse(json.dumps(file).encode(), "f.json").cases
    assert case.initial.translate and not case.initial.pods["x/a"].ipv6
    file["translate"] = False
    with pytest.raises(ConfigError, match="expected pods with an ipv6 address, found x/a without one"):
        parse(json.dumps(file).encode(), "f.json")
    for number, pod in enumerate(file["initial"]["pods"]):
        pod["ipv6"] = f"fd20::{number + 1}"
    (case,) = parse(json.dumps(file).encode(), "f.json").cases
    assert not case.initial.translate and case.initial.pods["x/a"].ipv6 == "fd20::1"
