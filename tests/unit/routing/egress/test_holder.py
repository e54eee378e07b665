"""The node that has an egress address, and the pods that leave through it."""

from typing import Any

import msgspec

from podwire.model.egress import EgressPolicy
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.routing.egress.holder import assign, choose_node, known_pods, rules_of, unsupported
from podwire.routing.settings import RoutingSettings


def node(name: str, *, ready: bool = True, address: str = "10.89.0.1", **labels: str) -> Node:
    conditions = [{"type": "Ready", "status": str(ready)}]
    document = {
        "metadata": {"name": name, "labels": labels, "annotations": {"podwire.io/routing": "vxlan"}},
        "status": {"conditions": conditions, "addresses": [{"type": "InternalIP", "address": address}]},
    }
    return msgspec.convert(document, Node)


def pod(name: str, address: str, *, namespace: str = "shop", app: str = "web", **spec: Any) -> Pod:
    document = {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}},
        "spec": spec,
        "status": {"phase": "Running", "podIPs": [{"ip": address}]},
    }
    return msgspec.convert(document, Pod)


def policy(name: str, **spec: object) -> EgressPolicy:
    return msgspec.convert({"metadata": {"name": name}, "spec": {"egressIPs": ["192.0.2.7"]} | spec}, EgressPolicy)


NODES = {name: node(name, egress="yes") for name in ("a", "b", "c")}


def test_only_policies_of_a_lost_node_move() -> None:
    names = ("a", "b", "c")
    before = {f"policy-{number}": choose_node(f"policy-{number}", names) for number in range(60)}
    assert set(before.values()) == set(names)
    after = {policy: choose_node(policy, ("a", "c")) for policy in before}
    moved = {policy for policy in before if before[policy] != after[policy]}
    assert moved == {policy for policy, node in before.items() if node == "b"}
    assert choose_node("policy-1", ()) == ""


def test_candidates_are_ready_alive_and_have_the_labels() -> None:
    rules, _ = rules_of({"out": policy("out", nodeSelector={"matchLabels": {"egress": "yes"}})}, {})
    nodes = {"a": node("a", egress="yes"), "b": node("b", ready=False, egress="yes"), "c": node("c")}
    assert assign(rules, nodes, {"a", "b", "c"}, (), {})[0].node == "a"
    (none,) = assign(rules, nodes, {"b", "c"}, (), {})
    assert (none.node, none.reason) == ("", "NoEgressNode")
    assert none.problem == "no node has the address: 2 have the labels of spec.nodeSelector, 1 are Ready"


def test_pods_are_selected_by_labels_and_namespace() -> None:
    selectors = {
        "podSelector": {"matchLabels": {"app": "web"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}},
    }
    rules, _ = rules_of({"out": policy("out", **selectors)}, {})
    pods = (
        pod("one", "10.244.0.3"),
        pod("two", "10.244.0.2"),
        pod("db", "10.244.0.4", app="db"),
        pod("elsewhere", "10.244.0.5", namespace="other"),
        pod("host", "10.89.0.1", hostNetwork=True),
    )
    (assignment,) = assign(rules, NODES, set(NODES), pods, {"shop": {}, "other": {}})
    assert assignment.pods == ("10.244.0.2", "10.244.0.3")


def test_a_wrong_policy_keeps_its_last_good_form() -> None:
    good, _ = rules_of({"out": policy("out")}, {})
    rules, problems = rules_of({"out": policy("out", egressIPs=["x"]), "new": policy("new", egressIPs=[])}, good)
    assert rules == good and set(problems) == {"new", "out"}


def test_an_address_belongs_to_one_policy_and_to_no_node() -> None:
    rules, _ = rules_of({"a": policy("a"), "b": policy("b"), "c": policy("c", egressIPs=["10.89.0.1"])}, {})
    first, second, third = assign(rules, NODES, set(NODES), (), {})
    assert first.node and (second.node, second.reason) == ("", "AddressInUse")
    assert second.problem == "an address of spec.egressIPs is that of EgressPolicy a"
    assert third.problem.startswith("an address of spec.egressIPs is that of node ")


def test_backends_that_lead_to_pods_alone_are_named() -> None:
    assert unsupported(NODES, ("vxlan",)) == ""
    assert unsupported(NODES, ("hostgw",)) == (
        "the routing backend of a (vxlan), b (vxlan), c (vxlan) leads packets to pods alone; expected hostgw"
    )


def test_egress_policies_refuse_the_backend_cloudroutes_by_name() -> None:
    backends = tuple(name for name, backend in RoutingSettings().load().items() if backend.options.routes_outside)
    assert set(backends) == {"vxlan", "hostgw", "geneve", "ovs", "bgp", "bridge", "vlan", "ipip"}
    nodes = {"a": msgspec.structs.replace(NODES["a"], metadata=of_cloud(NODES["a"])), "b": NODES["b"]}
    problem = unsupported(nodes, backends)
    assert problem.startswith("the routing backend of a (cloudroutes) leads packets to pods alone; expected ")


def of_cloud(node: Node) -> ObjectMeta:
    return msgspec.structs.replace(node.metadata, annotations={"podwire.io/routing": "cloudroutes"})


def test_known_pods_are_those_of_the_node() -> None:
    pods = (
        pod("one", "10.244.0.2", nodeName="a"),
        pod("two", "10.244.0.3", nodeName="b"),
        pod("three", "10.244.0.4", namespace="new", nodeName="a"),
        pod("host", "10.89.0.1", nodeName="a", hostNetwork=True),
    )
    assert known_pods("a", pods, {"shop": {}}) == {"10.244.0.2"}
