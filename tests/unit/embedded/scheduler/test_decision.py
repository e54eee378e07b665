"""The nodes that are chosen for pods, and the messages when no node can take a pod."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from podwire.embedded.scheduler.decision import SchedulingDecision, choose, explain
from podwire.embedded.scheduler.filters import NodeRefusal, constraints_of, refusal
from podwire.embedded.scheduler.matching import node_matches, tolerates, untolerated
from podwire.embedded.scheduler.usage import SchedulerState, pod_demand
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeSpec, NodeStatus, Taint
from podwire.model.pod import Pod, Toleration

JsonObject = dict[str, Any]
ROOM = {"cpu": "2", "memory": "4Gi", "pods": "10"}
AFFINE = "requiredDuringSchedulingIgnoredDuringExecution"
PREFER = "preferredDuringSchedulingIgnoredDuringExecution"


def node(
    name: str,
    labels: dict[str, str] | None = None,
    *,
    taints: tuple[Taint, ...] = (),
    unschedulable: bool = False,
    room: dict[str, str] | None = None,
) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name} | (labels or {})),
        spec=NodeSpec(taints=taints, unschedulable=unschedulable),
        status=NodeStatus(allocatable=room or ROOM),
    )


def pod(
    name: str,
    spec: JsonObject | None = None,
    labels: dict[str, str] | None = None,
    owner: str = "",
    namespace: str = "d",
) -> Pod:
    meta: JsonObject = {"name": name, "uid": name, "namespace": namespace, "labels": labels or {}}
    if owner:
        meta["ownerReferences"] = [{"kind": "ReplicaSet", "uid": owner, "name": owner, "controller": True}]
    return msgspec.convert({"metadata": meta, "spec": {"containers": [{"name": "c"}]} | (spec or {})}, Pod)


def cluster(*nodes: Node) -> SchedulerState:
    state = SchedulerState()
    for entry in nodes or (node("n1"), node("n2"), node("n3")):
        state.put_node(entry)
    return state


def put(state: SchedulerState, subject: Pod, where: str) -> None:
    state.put_pod(pod_demand(subject), where)


def decide(subject: Pod, state: SchedulerState) -> SchedulingDecision:
    return choose(pod_demand(subject), state)


def container(requests: dict[str, str] | None = None, ports: Iterable[JsonObject] = ()) -> JsonObject:
    return {"containers": [{"name": "c", "resources": {"requests": requests or {}}, "ports": list(ports)}]}


def term(labels: dict[str, str], key: str = "kubernetes.io/hostname", **more: Any) -> JsonObject:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}} | more


REFUSALS: list[tuple[str, JsonObject, str]] = [
    ("selector", {"nodeSelector": {"a": "b"}}, "3 node(s) didn't match Pod's node affinity/selector"),
    (
        "node affinity",
        {"affinity": {"nodeAffinity": {AFFINE: {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}},
        "3 node(s) didn't match Pod's node affinity/selector",
    ),
    ("cpu", container({"cpu": "3"}), "3 Insufficient cpu"),
    ("two resources", container({"cpu": "3", "memory": "8Gi"}), "3 Insufficient cpu, 3 Insufficient memory"),
    ("unknown resource", container({"gpu": "1"}), "3 Insufficient gpu"),
    ("pod affinity", {"affinity": {"podAffinity": {AFFINE: [term({"x": "y"})]}}},
     "3 node(s) didn't match pod affinity rules"),
    (
        "spread without the label",
        {"topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {"matchLabels": {"x": "y"}}}]},
        "3 node(s) didn't match pod topology spread constraints (missing required label)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "reason"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_refusals(spec: JsonObject, reason: str) -> None:
    decision = decide(pod("p", spec), cluster())
    assert decision.node == ""
    assert decision.sentence.startswith(f"0/3 nodes are available: {reason}. preemption: 0/3 nodes are available: 3 ")


def test_refusal_messages_equal_those_of_kubernetes() -> None:
    control = Taint(key="node-role.kubernetes.io/control-plane", effect="NoSchedule")
    state = cluster(node("n1", taints=(control,)), node("n2", unschedulable=True), node("n3", room={"pods": "0"}))
    assert decide(pod("p"), state).sentence == (
        "0/3 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint "
        "{node-role.kubernetes.io/control-plane: }, 1 node(s) were unschedulable. "
        "preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, "
        "2 Preemption is not helpful for scheduling."
    )
    tolerant = pod("q", {"tolerations": [{"operator": "Exists"}]})
    assert decide(tolerant, state).node in ("n1", "n2")


def test_no_nodes() -> None:
    assert decide(pod("p"), SchedulerState()).sentence == "no nodes available to schedule pods"


@pytest.mark.parametrize(
    ("toleration", "taint", "want"),
    [
        (Toleration(operator="Exists"), Taint(key="k", effect="NoExecute"), True),
        (Toleration(key="k", operator="Exists"), Taint(key="k", value="v", effect="NoSchedule"), True),
        (Toleration(key="k", value="v"), Taint(key="k", value="v", effect="NoSchedule"), True),
        (Toleration(key="k", value="w"), Taint(key="k", value="v", effect="NoSchedule"), False),
        (
            Toleration(key="k", operator="Exists", effect="NoExecute"),
            Taint(key="k", effect="NoSchedule"),
            False,
        ),
        (Toleration(), Taint(key="k", effect="NoSchedule"), False),
    ],
)
def test_tolerations(toleration: Toleration, taint: Taint, want: bool) -> None:
    assert tolerates(toleration, taint) is want
    assert (untolerated((toleration,), (taint,), (taint.effect,)) is None) is want
    assert untolerated((), (taint,), ("PreferNoSchedule",)) is None


def test_node_affinity_by_name_and_operators() -> None:
    by_name = pod("p", {"affinity": {"nodeAffinity": {AFFINE: {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]}}}})  # fmt: skip
    assert decide(by_name, cluster()).node == "n2"
    newer = pod("p", {"affinity": {"nodeAffinity": {AFFINE: {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["3"]}]}, {}]}}}})  # fmt: skip
    assert [node_matches(newer, node("n", {"gen": g})) for g in ("3", "4", "x")] == [False, True, False]


def test_host_ports() -> None:
    state = cluster(node("n1"), node("n2"))
    port = {"containerPort": 80, "hostPort": 8080}
    put(state, pod("a", container(ports=[port])), "n1")
    assert decide(pod("b", container(ports=[port])), state).node == "n2"
    put(state, pod("b", container(ports=[port])), "n2")
    refused = decide(pod("c", container(ports=[port])), state)
    assert "2 node(s) didn't have free ports for the requested pod ports" in refused.sentence
    datagrams = container(ports=[port | {"protocol": "UDP"}])
    assert decide(pod("d", datagrams), state).node
    put(state, pod("e", container(ports=[{"containerPort": 1, "hostPort": 99, "hostIP": "10.0.0.1"}])), "n1")
    loopback = pod("f", container(ports=[{"containerPort": 1, "hostPort": 99, "hostIP": "127.0.0.1"}]))
    assert refusal(constraints_of(pod_demand(loopback), state), state.nodes["n1"]) is None
    host = pod("g", container(ports=[{"containerPort": 8080}]) | {"hostNetwork": True})
    assert "free ports" in decide(host, state).sentence


def test_requests_of_deleted_pods_become_free() -> None:
    state = cluster(node("n1"))
    big = container({"cpu": "1500m"})
    put(state, pod("a", big), "n1")
    assert "Insufficient cpu" in decide(pod("b", big), state).sentence
    assert state.drop_pod("a")
    assert not state.drop_pod("a")
    assert decide(pod("b", big), state).node == "n1"


def test_init_containers_and_sidecars_count() -> None:
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}],
        "initContainers": [
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "200m"}}},
            {"name": "i", "resources": {"requests": {"cpu": "1"}}},
        ],
    }
    assert pod_demand(pod("p", spec)).requests == {"cpu": 1200}


def test_first_pod_of_an_affine_group_may_start() -> None:
    state = cluster()
    group = pod("a", {"affinity": {"podAffinity": {AFFINE: [term({"g": "1"})]}}}, {"g": "1"})
    first = decide(group, state).node
    put(state, group, first)
    for name in "bcd":
        follower = pod(name, {"affinity": {"podAffinity": {AFFINE: [term({"g": "1"})]}}}, {"g": "1"})
        assert decide(follower, state).node == first
        put(state, follower, first)


def test_anti_affinity_both_ways_and_namespaces() -> None:
    state = cluster()
    shy = {"affinity": {"podAntiAffinity": {AFFINE: [term({"g": "1"})]}}}
    for name in "abc":
        subject = pod(name, shy, {"g": "1"})
        put(state, subject, decide(subject, state).node)
    assert {state.node_of(name) for name in "abc"} == {"n1", "n2", "n3"}
    assert "3 node(s) didn't match pod anti-affinity rules" in decide(pod("d", shy, {"g": "1"}), state).sentence
    plain = pod("e", labels={"g": "1"})
    assert "3 node(s) didn't satisfy existing pods anti-affinity rules" in decide(plain, state).sentence
    assert decide(pod("f", labels={"g": "1"}, namespace="other"), state).node
    state.namespaces = {"d": {"team": "x"}, "other": {"team": "y"}}
    everywhere = {"affinity": {"podAntiAffinity": {AFFINE: [term({"g": "1"}, namespaceSelector={})]}}}
    assert decide(pod("g", everywhere, namespace="other"), state).node == ""
    selective = {"affinity": {"podAntiAffinity": {AFFINE: [
        term({"g": "1"}, namespaceSelector={"matchLabels": {"team": "y"}})]}}}  # fmt: skip
    assert decide(pod("h", selective, namespace="other"), state).node


def test_hard_spread_over_zones() -> None:
    state = cluster(node("n1", {"zone": "a"}), node("n2", {"zone": "a"}), node("n3", {"zone": "b"}))
    spread = {"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {"matchLabels": {"x": "y"}}}]}  # fmt: skip
    zones = []
    for n in range(6):
        subject = pod(f"p{n}", spread, {"x": "y"})
        where = decide(subject, state).node
        put(state, subject, where)
        zones.append(state.nodes[where].labels["zone"])
        assert abs(zones.count("a") - zones.count("b")) <= 1
    state.put_node(node("n3", {"zone": "b"}, unschedulable=True))
    put(state, pod("extra", labels={"x": "y"}), "n1")
    assert "topology spread constraints" in decide(pod("last", spread, {"x": "y"}), state).sentence


PREFERENCES = [
    ("node affinity", {"affinity": {"nodeAffinity": {PREFER: [{"weight": 5, "preference": {
        "matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}]}}}, "n3"),
    ("pod affinity", {"affinity": {"podAffinity": {PREFER: [
        {"weight": 9, "podAffinityTerm": term({"x": "y"})}]}}}, "n1"),
    ("pod anti-affinity", {"affinity": {"podAntiAffinity": {PREFER: [
        {"weight": 9, "podAffinityTerm": term({"x": "y"})}]}}}, "n2"),
    ("soft spread", {"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
         "labelSelector": {"matchLabels": {"x": "y"}}}]}, "n2"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "want"), [row[1:] for row in PREFERENCES], ids=[row[0] for row in PREFERENCES])
def test_preferences(spec: JsonObject, want: str) -> None:
    state = cluster(node("n1"), node("n2"), node("n3", {"disk": "ssd"}))
    put(state, pod("there", labels={"x": "y"}), "n1")
    assert decide(pod("p", spec), state).node == want


def test_soft_taints_are_avoided() -> None:
    soft = Taint(key="k", effect="PreferNoSchedule")
    state = cluster(node("n1", taints=(soft,)), node("n2"))
    assert decide(pod("p"), state).node == "n2"


def test_pods_of_one_owner_spread_and_pods_balance() -> None:
    state = cluster()
    for n in range(30):
        subject = pod(f"p{n}", owner=f"rs{n % 5}")
        put(state, subject, decide(subject, state).node)
    assert [len(n.pods) for n in state.nodes.values()] == [10, 10, 10]
    for facts_of_node in state.nodes.values():
        assert set(facts_of_node.owners.values()) == {2}


def test_node_that_is_added_again_keeps_its_pods() -> None:
    state = cluster(node("n1"))
    put(state, pod("early"), "n2")
    put(state, pod("a"), "n1")
    state.drop_node("n1")
    state.put_node(node("n1"))
    state.put_node(node("n2"))
    assert list(state.nodes["n1"].pods) == ["a"]
    assert list(state.nodes["n2"].pods) == ["early"]
    put(state, pod("a"), "n2")
    assert list(state.nodes["n1"].pods) == []


def test_explain_sorts_reasons() -> None:
    decision = explain([NodeRefusal(("b",)), NodeRefusal(("a",), movable=True), NodeRefusal(("b",))])
    assert decision.message == "0/3 nodes are available: 1 a, 2 b."


def test_a_thousand_pods_are_spread_over_a_hundred_nodes() -> None:
    state = cluster(*(node(f"n{n:03}", room={"cpu": "64", "memory": "256Gi", "pods": "110"}) for n in range(100)))
    for n in range(1000):
        subject = pod(f"p{n}", container({"cpu": "100m", "memory": "64Mi"}), owner=f"rs{n % 10}")
        put(state, subject, decide(subject, state).node)
    assert {len(n.pods) for n in state.nodes.values()} == {10}
