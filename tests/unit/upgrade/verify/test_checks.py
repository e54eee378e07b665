"""What is tried from each node, and the table of the results."""

import msgspec
import pytest

from podwire.upgrade.nodepods import ProbeImage
from podwire.upgrade.verify import checks, objects
from podwire.upgrade.verify.checks import CheckResult, NodeResults
from podwire.upgrade.verify.objects import VerifyTargets

TARGETS = VerifyTargets(
    pods={"a": "10.1.0.1", "b": "10.2.0.1"}, service="10.96.0.9", node_port=30001, nodes={"a": "192.0.2.1"},
    denied="10.1.0.2", egress=(("192.0.2.9", 443),), name="podwire-verify.kube-system.svc",
    observers={"a": "192.0.2.1", "b": "192.0.2.2"}, outside=(("203.0.113.9", 9483),),
    own={"a": ("192.0.2.1",), "b": ("192.0.2.2", "2001:db8::2")},
)  # fmt: skip


def test_every_kind_is_tried_with_its_expectation() -> None:
    tried = objects.connections(TARGETS, checks.KINDS, "b")
    assert [(check.kind, check.transport, check.address, check.port) for check in tried] == [
        ("pod", "tcp", "10.1.0.1", checks.PORT), ("pod", "udp", "10.1.0.1", checks.PORT),
        ("pod", "tcp", "10.2.0.1", checks.PORT), ("pod", "udp", "10.2.0.1", checks.PORT),
        ("service", "tcp", "10.96.0.9", checks.PORT), ("service", "udp", "10.96.0.9", checks.PORT),
        ("nodeport", "tcp", "192.0.2.1", 30001), ("dns", "name", "podwire-verify.kube-system.svc", checks.PORT),
        ("policy", "tcp", "10.1.0.2", checks.PORT), ("egress", "tcp", "192.0.2.9", 443),
        ("egress", "tcp", "192.0.2.1", checks.NODE_PORT), ("egress", "tcp", "203.0.113.9", 9483),
    ]  # fmt: skip
    assert [check.kind for check in tried if check.refused] == ["policy"]
    assert objects.connections(TARGETS, ("dns",), "a")[0].expected == "10.96.0.9"
    assert checks.decode(checks.encode(tried)) == tried


def test_a_node_asks_an_observer_elsewhere_and_those_outside() -> None:
    near, far = objects.connections(TARGETS, ("egress",), "a")[1:]
    assert (near.address, near.sources, near.own_source) == ("192.0.2.2", ("192.0.2.1",), True)
    assert (far.address, far.sources, far.own_source) == ("203.0.113.9", ("192.0.2.1",), False)
    named = msgspec.structs.replace(TARGETS, sources=("198.51.100.7",))
    assert objects.connections(named, ("egress",), "a")[2].sources == ("198.51.100.7",)
    observer = objects.server_pod(ProbeImage(image="podwire:1"), "a", "observer")
    assert observer["spec"]["hostNetwork"] and str(checks.NODE_PORT) in observer["spec"]["containers"][0]["args"]
    assert not objects.service()["spec"]["selector"].items() <= observer["metadata"]["labels"].items()


def test_large_clusters_have_few_pods_that_answer() -> None:
    nodes = [f"node-{number:04d}" for number in range(1000)]
    chosen = objects.server_nodes(nodes)
    assert chosen == ("node-0000", "node-0200", "node-0400", "node-0600", "node-0800")
    assert objects.server_nodes(["a", "b"], ("b", "gone")) == ("b", "a")


def test_the_policy_isolates_only_the_pod_of_its_role() -> None:
    image = ProbeImage(image="podwire:1", command=("podwire",), pull_secrets=("pull",))
    denied, server = objects.server_pod(image, "a", "denied"), objects.server_pod(image, "a")
    selector = objects.policy()["spec"]["podSelector"]["matchLabels"]
    assert selector.items() <= denied["metadata"]["labels"].items()
    assert not selector.items() <= server["metadata"]["labels"].items()
    assert objects.service()["spec"]["selector"].items() <= server["metadata"]["labels"].items()
    assert server["spec"]["imagePullSecrets"] == [{"name": "pull"}] and server["spec"]["nodeName"] == "a"


def test_the_table_counts_and_names_what_failed() -> None:
    bad = CheckResult(kind="service", target="Service x", problem="timed out")
    good = CheckResult(kind="pod", target="pod on a")
    entries = [
        NodeResults(node="node-1", results=(good, good, bad, CheckResult(kind="service", target="y"))),
        NodeResults(node="b", problem="no log"),
    ]
    assert checks.table(entries, ("pod", "service", "dns")).splitlines() == [
        "NODE    POD   SERVICE        DNS",
        "node-1  ok 2  FAILED 1 of 2  -",
        "b       ?     ?              ?",
    ]
    assert [text for entry in entries for text in entry.problems()] == [
        "node-1: service: Service x by tcp: timed out", "b: no log",
    ]  # fmt: skip
    assert not entries[0].passed and not entries[1].passed


@pytest.mark.parametrize(("log", "problem"), [("", "no log"), ("podwire: it broke\n", "podwire: it broke")])
def test_a_pod_without_results_is_a_problem(log: str, problem: str) -> None:
    assert checks.results_of("a", log).problem == f"the pod gave no results: {problem}"
    line = checks.results_line([CheckResult(kind="pod", target="x")])
    assert checks.results_of("a", f"warning\n{line}\n").passed
