"""What is a failure, and whose."""

import pytest

from podwire.local.conformance.casefile import Case, CaseCheck, CaseStep
from podwire.local.conformance.families import embedded, in_families
from podwire.local.conformance.placing import ClusterNode, Placing
from podwire.local.conformance.stage import CaseNode, CasePod, Manifest, Stage
from podwire.local.conformance.verdicts import Judge, holds
from podwire.model.pod import ContainerPort

NODE = ClusterNode(name="node-1", ranges=("10.244.0.0/24",), addresses=("10.89.0.11", "fd89::b"))
POLICY: Manifest = {
    "metadata": {"name": "p", "namespace": "x"},
    "spec": {
        "podSelector": {"matchLabels": {"pod": "b"}},
        "ingress": [{"from": [{"ipBlock": {"cidr": "10.244.0.11/32"}}], "ports": [{"port": "web"}]}],
    },
}
CLUSTER: Manifest = {
    "metadata": {"name": "nodes"},
    "spec": {
        "tier": "Admin",
        "priority": 1,
        "subject": {"namespaces": {}},
        "egress": [{"action": "Deny", "to": [{"nodes": {"matchLabels": {"zone": "a"}}}]}],
    },
}


def stage() -> Stage:
    web = (ContainerPort(name="web", container_port=80),)
    pods = (
        CasePod(namespace="x", name="a", address="10.244.0.11"),
        CasePod(namespace="x", name="b", address="10.244.0.12", labels={"pod": "b"}, ports=web),
        CasePod(namespace="x", name="c", address="10.244.0.13"),
        CasePod(namespace="x", name="h", address="172.18.0.2", node_address="172.18.0.2", host_network=True),
    )
    return Stage(
        namespaces={"x": {}},
        pods={pod.key: pod for pod in pods},
        nodes=(CaseNode(address="172.18.0.2", labels={"zone": "a"}),),
        policies={"x/p": POLICY},
        cluster_policies={"nodes": CLUSTER},
    )


def judge() -> Judge:
    created = stage()
    step = CaseStep(number=3, actions=(), checks=(), stage=created)
    case = Case(id="one", description="", tags=(), initial=created, steps=(step,))
    return Judge(
        case, step, Placing(created, (NODE,)), lambda pod, family: pod.address if family == 4 else embedded(pod.address)
    )


def check(source: str, target: str, *, allowed: bool, port: int = 80) -> CaseCheck:
    return CaseCheck(source=source, target=target, protocol="TCP", port=port, allowed=allowed)


def both(manifest: Manifest) -> Manifest:
    return in_families(manifest, (4, 6))


@pytest.mark.parametrize(
    ("allowed", "observed", "expected"),
    [
        (True, "answered", True),
        (True, "arrived, and no answer came back", False),
        (True, "refused", False),
        (True, "nothing arrived", False),
        (False, "answered", False),
        (False, "arrived, and no answer came back", False),
        (False, "refused", False),
        (False, "nothing arrived", True),
    ],
)
def test_check_holds_when_answered_or_silent_as_expected(allowed: bool, observed: str, expected: bool) -> None:  # noqa: FBT001
    assert holds(check("x/a", "x/b", allowed=allowed), observed) == expected


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(
    ("source", "target", "port", "evaluator"),
    [
        ("x/a", "x/b", 80, "allowed"),
        ("x/a", "x/b", 81, "blocked"),
        ("x/c", "x/b", 80, "blocked"),
        ("x/a", "x/h", 80, "blocked"),
        ("x/b", "x/c", 80, "allowed"),
    ],
)
def test_the_evaluator_finds_the_cause_of_a_failure(
    family: int, source: str, target: str, port: int, evaluator: str
) -> None:
    allowed = evaluator == "allowed"
    observed = "nothing arrived" if allowed else "answered"
    (failure,) = judge().failures([(check(source, target, allowed=allowed, port=port), family, observed)], both)
    lost = ", or something else lost the packet" if allowed else ""
    assert (failure.evaluator, failure.whose) == (evaluator, f"podwire's rules are wrong{lost}")
    wrong = "answered" if allowed else "nothing arrived"
    (failure,) = judge().failures([(check(source, target, allowed=not allowed, port=port), family, wrong)], both)
    assert (failure.evaluator, failure.whose) == (evaluator, "the file is wrong")


def test_a_failure_names_ends_port_and_result() -> None:
    (failure,) = judge().failures([(check("x/c", "x/b", allowed=False), 6, "refused")], both)
    assert str(failure) == (
        "one step 3: x/c -> x/b TCP/80 IPv6: expected blocked, observed: refused; "
        "the evaluator says blocked: something else refused it: podwire's rules only drop"
    )


@pytest.mark.parametrize(
    ("expected", "observed", "target", "whose"),
    [
        (True, "arrived, and no answer came back", "x/b", "the answer was lost: "),
        (True, "refused", "x/b", "something else refused it"),
        (True, "arrived, and no answer came back", "x/h", "podwire's rules are wrong"),
        (False, "refused", "x/b", "the file is wrong"),
    ],
)
def test_rules_are_wrong_only_when_they_let_pass(*, expected: bool, observed: str, target: str, whose: str) -> None:
    (failure,) = judge().failures([(check("x/a", target, allowed=expected), 4, observed)], both)
    assert failure.whose.startswith(whose)


def test_expected_outcomes_are_no_failure() -> None:
    assert judge().failures([(check("x/a", "x/b", allowed=True), 4, "answered")], both) == []
