"""Objects behind the API's validation: no Node, Pod or policy ends the routing of the other ones."""

from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import NODE, POD, hostile
from tests.unit.routing.test_plan import me, peer

from podwire.controllers.nodeipam.allocate import Exhausted, NodeCidrs, parse_cidrs
from podwire.kube.decode import decode_object
from podwire.model.egress import EgressPolicy
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.routing.egress.holder import assign, rules_of
from podwire.routing.egress.plan import with_egress
from podwire.routing.nodes import is_same_peer, peer_of
from podwire.routing.plan import plan
from podwire.routing.registry import BACKENDS
from podwire.routing.settings import RoutingSettings

EGRESS: dict[str, Any] = {
    "metadata": {"name": "out"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "web"}},
        "namespaceSelector": {},
        "egressIPs": ["10.89.0.200"],
        "destinationCIDRs": ["0.0.0.0/0"],
        "excludedCIDRs": ["198.51.100.0/24"],
        "nodeSelector": {"matchLabels": {"topology.kubernetes.io/zone": "z1"}},
    },
}
KINDS: dict[str, tuple[dict[str, Any], type[Any]]] = {
    "policy": (EGRESS, EgressPolicy),
    "node": (NODE, Node),
    "pod": (POD, Pod),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_routes_are_planned_whatever_one_node_has(backend: str) -> None:
    settings = RoutingSettings(backend=backend)
    backends = settings.load()
    valid, planned = decode_object(msgspec.json.encode(NODE), Node), set[str]()
    for label, node in hostile(NODE, Node):
        try:
            is_same_peer(valid, node)
            other = peer_of(node)
            if repr(other) not in planned:
                planned.add(repr(other))
                str(plan(me(), (peer(2), other), settings, backends).state)
        except Exception as failure:
            raise AssertionError(label) from failure


@pytest.mark.parametrize("changed", KINDS)
def test_egress_is_planned_whatever_one_object_has(changed: str) -> None:
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    planned: set[str] = set()
    for label, item in hostile(*KINDS[changed]):
        try:
            _plan_egress(planned, **(objects | {changed: item}))
        except Exception as failure:
            raise AssertionError(label) from failure
    assert planned


def _plan_egress(planned: set[str], policy: EgressPolicy, node: Node, pod: Pod) -> None:
    settings = RoutingSettings(backend="hostgw")
    rules, problems = rules_of({"out": policy}, {})
    assert rules or problems
    assignments = assign(rules, {"n1": node}, {"n1"}, [pod], {"default": {"team": "a"}})
    peers = (peer(2), peer_of(node))
    if (content := repr((assignments, peers))) not in planned:
        planned.add(content)
        backends = settings.load()
        created = with_egress(plan(me(), peers, settings, backends), me(), peers, assignments, backends)
        assert all(str(value) for value in created.values)


def test_ranges_are_allocated_whatever_one_node_has() -> None:
    for label, node in hostile(NODE, Node):
        ranges = NodeCidrs(parse_cidrs("test", "clusterCIDRs", ("10.0.0.0/16",)))
        try:
            ranges.occupy("n1", node.pod_networks)
            ranges.allocate("n2")
            ranges.release("n1")
        except Exhausted:
            continue
        except Exception as failure:
            raise AssertionError(label) from failure
