"""The policy rules of nodes as they are planned, and what cannot be had of them."""

from pathlib import Path

import msgspec
import pytest
from tests.cases.policy_table import Case, read_cases
from tests.fakes.clock import FakeClock

from podwire.cluster.world import World
from podwire.errors import ClusterError
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.model.pod import Pod, PodSpec, PodStatus
from podwire.model.policy import ClusterNetworkPolicy
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import evaluate
from podwire.policy.settings import PolicySettings
from podwire.proxy.servicemap import NodeFacts
from podwire.why.kernels import NodeKernels
from podwire.why.nodes import NodeAccess
from podwire.why.policies.enforced import PolicyRules
from podwire.why.policies.explainer import packet_of

CASES = read_cases(Path(__file__).parents[3] / "cases/policies")
PARTS = ("cni", "policy")


def case(name: str) -> Case:
    return next(item for item in CASES if item.name == name)


def rules(
    world: World, name: str = "n1", parts: tuple[str, ...] = PARTS, policies: PolicySettings | None = None
) -> PolicyRules:
    def access(node: str) -> NodeAccess:
        if node == "n2":
            raise ClusterError("n2 is elsewhere")
        facts = NodeFacts(name=node)
        settings = policies or PolicySettings()
        return NodeAccess(services=facts, policies=settings, parts=frozenset(parts), readable=False)

    return NodeKernels(access, FakeClock()).policy_rules(name, world)


def test_rules_of_a_node_are_planned() -> None:
    quiet = case("a policy without rules isolates")
    here = rules(quiet.world)
    assert here.planned is not None
    assert (here.mode, here.reads, here.held) == ("nftables", False, None)
    for check in quiet.checks:
        asked = quiet.connection(check, 4)
        if {asked.source.node, asked.destination.node} == {"n1"}:
            outcome = next(here.planned.outcomes(packet_of(asked, here.device)))
            assert (outcome.verdict == "accept") == check.allowed, str(check)
    assert here.notes == ()


@pytest.mark.parametrize("own_node_egress", [True, False])
def test_rules_follow_the_settings_of_the_node(*, own_node_egress: bool) -> None:
    case_ = next(item for item in CASES if item.own_node_egress == own_node_egress)
    here = rules(case_.world, policies=PolicySettings(own_node_egress=own_node_egress))
    assert here.planned is not None
    for check in case_.checks:
        asked = case_.connection(check, 4)
        if {asked.source.node, asked.destination.node} == {"n1"}:
            outcome = next(here.planned.outcomes(packet_of(asked, here.device)))
            assert (outcome.verdict == "accept") == check.allowed, str(check)


def test_nodes_that_enforce_nothing_or_cannot_be_read() -> None:
    world = case("a policy without rules isolates").world
    here, there = rules(world, "n1", ("cni", "proxy")), rules(world, "n2")
    assert (here.mode, there.mode) == ("", "")
    assert "enforces no policies" in here.notes[0]
    assert "rules of n2 cannot be read from here" in there.notes[0]


@pytest.mark.parametrize(("expected", "mode"), [("auto", "nftables"), ("iptables", "iptables")])
def test_the_mode_is_that_of_the_settings(expected: str, mode: str) -> None:
    here = rules(case("a policy without rules isolates").world, policies=PolicySettings(mode=expected))
    assert (here.mode, here.planned is not None, here.held) == (mode, True, None)


def test_rules_on_nodes_cover_the_own_nodes_tunnel_address() -> None:
    node = Node(
        metadata=ObjectMeta(name="n1"),
        spec=NodeSpec(pod_cidrs=("10.180.0.0/24",)),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.99.1"),)),
    )
    pod = Pod(
        metadata=ObjectMeta(name="db", namespace="shop"),
        spec=PodSpec(node_name="n1"),
        status=PodStatus(pod_ip="10.180.0.2"),
    )
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}}
    spec["egress"] = [{"action": "Deny", "to": [{"nodes": {}}]}]
    policy = msgspec.convert({"metadata": {"name": "out"}, "spec": spec}, ClusterNetworkPolicy)
    world = World(pods=(pod,), nodes=(node,), cluster_policies=(policy,))
    asked = Connection(source=world.party("10.180.0.2"), destination=world.party("10.180.0.1"), protocol="TCP", port=80)
    here = rules(world)
    assert here.planned is not None
    assert not evaluate(world, asked).allowed
    assert next(here.planned.outcomes(packet_of(asked, here.device))).verdict == "drop"
