"""The policy part of answers: ends behind Services, both nodes, and rules that are not what they should be."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.cases.policy_table import Case, read_cases
from tests.fakes.clock import FakeClock
from tests.unit.policy.dataplanes.nftables.test_contents import device
from tests.unit.policy.test_packet_table import POD_RANGES, device_of

from podwire.cluster.world import World
from podwire.model.meta import ObjectMeta
from podwire.model.policy import EgressRule, IPBlock, NetworkPolicy, NetworkPolicySpec, PolicyPeer
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.registry import TRACERS
from podwire.policy.settings import PolicySettings
from podwire.policy.tracing import open_tracing
from podwire.proxy.servicemap import NodeFacts
from podwire.trace.packet import LocalAddresses
from podwire.why.answer import (
    Answer,
    ConnectionEnd,
    EndpointChoice,
    Hop,
    Outcome,
    PolicyVerdict,
    ServiceMatch,
    SourceTranslation,
)
from podwire.why.kernels import NodeKernels
from podwire.why.nodes import NodeAccess
from podwire.why.policies.enforced import PolicyRules
from podwire.why.policies.explainer import with_policies

CASES = read_cases(Path(__file__).parents[3] / "cases/policies")
WEB, DB, BLOG, NODE1, NODE2 = "10.180.0.1", "10.180.0.2", "10.180.1.2", "192.168.99.1", "192.168.99.2"
OUT = "203.0.113.9"


class Nodes(NodeKernels):
    """Nodes whose kernels hold ``held``, and should hold ``world``; without ``held`` nothing is read."""

    def __init__(
        self, world: World, held: World | None = None, *, own_node_egress: bool = True, mode: str = "nftables"
    ) -> None:
        settings = PolicySettings(own_node_egress=own_node_egress)
        super().__init__(lambda name: NodeAccess(services=NodeFacts(name=name), policies=settings), FakeClock())
        self.world, self.held, self.own_node_egress, self.mode = world, held, own_node_egress, mode
        self.rules: dict[str, PolicyRules] = {}

    def policy_rules(self, name: str, world: World) -> PolicyRules:
        if name not in self.rules:
            self.rules[name] = replace(self.read(name), device=lambda end: device_of(end, name))
        return self.rules[name]

    def read(self, node: str) -> PolicyRules:
        seam = open_tracing(self.mode)
        assert seam is not None
        result = next(item for item in self.world.nodes if item.metadata.name == node)
        facts = PolicyFacts(pod_ranges=POD_RANGES[node], addresses=result.internal_ips)
        machine = LocalAddresses(addresses=frozenset(result.internal_ips))

        def compiled(world: World) -> Compiler:
            return compile_world(world, node, own_node_egress=self.own_node_egress)

        devices = {key: device(key) for key in compiled(self.world).pods}
        planned = seam.planned(compiled(self.world), devices, facts, machine)
        if self.held is None:
            return PolicyRules(mode=self.mode, planned=planned)
        held = seam.planned(compiled(self.held), devices, facts, machine)
        return PolicyRules(mode=self.mode, planned=planned, held=held, reads=True)


def case(name: str) -> Case:
    return next(item for item in CASES if item.name == name)


def hop(
    node: str = "n1",
    outcome: Outcome = "untouched",
    endpoints: tuple[EndpointChoice, ...] = (),
    snat: SourceTranslation | None = None,
) -> Hop:
    return Hop(
        node=node, mode="m", state="held", outcome=outcome, reason="", message="", endpoints=endpoints, snat=snat
    )


def answered(source: str, target: str, port: int, *hops: Hop, protocol: str = "TCP") -> Answer:
    return Answer(
        source=ConnectionEnd(kind="Address", address=source),
        target=ConnectionEnd(kind="Address", address=target, port=port),
        protocol=protocol,
        outcome=hops[-1].outcome if hops else "untouched",
        hops=hops or (hop(),),
    )


def endpoint(address: str, port: int, *, masqueraded: bool = False, probability: float = 1.0) -> EndpointChoice:
    return EndpointChoice(
        address=address,
        port=port,
        used=True,
        reason="Ready",
        message="ready",
        probability=probability,
        masqueraded=masqueraded,
    )


@pytest.mark.parametrize("mode", TRACERS)
@pytest.mark.parametrize("item", CASES, ids=lambda case: case.name)
def test_packet_table(item: Case, mode: str) -> None:
    nodes = Nodes(item.world, item.world, own_node_egress=item.own_node_egress, mode=mode)
    for check in item.checks:
        for family in check.families:
            asked = item.connection(check, family)
            asking = answered(asked.source.address, asked.destination.address, asked.port, protocol=asked.protocol)
            (output,) = with_policies(asking, item.world, nodes).policies
            assert (output.outcome == "allowed") == check.allowed, (str(check), family, output.message)
            assert not any(node.drifted or node.drift for node in output.nodes), (str(check), family)


def only(answer: Answer) -> PolicyVerdict:
    (output,) = answer.policies
    return output


QUIET = "a policy without rules isolates"
FREE = "without a policy everything passes"


def test_what_policies_drop_is_dropped() -> None:
    world = case(QUIET).world
    result = with_policies(answered(WEB, DB, 5432), world, Nodes(world))
    assert result.outcome == "dropped"
    assert [(node.node, node.state, node.outcome) for node in only(result).nodes] == [("n1", "planned", "dropped")]
    steps = only(result).nodes[0].steps
    assert "pods app=db of shop" in steps[-1].object
    assert " drop comment " in steps[-1].rule


def test_each_endpoint_of_a_service_is_asked() -> None:
    world = case(QUIET).world
    ends = (endpoint(DB, 5432, probability=0.5), endpoint(BLOG, 8080, probability=0.5))
    result = with_policies(
        answered(WEB, "10.96.0.9", 80, hop(outcome="forwarded", endpoints=ends)), world, Nodes(world)
    )
    assert result.outcome == "forwarded"
    assert [(policy.pod, policy.outcome, policy.probability) for policy in result.policies] == [
        ("shop/db", "dropped", 0.5),
        ("blog/web", "allowed", 0.5),
    ]
    assert [node.node for node in result.policies[1].nodes] == ["n1", "n2"]


def test_another_node_sees_the_masqueraded_source() -> None:
    world = case(QUIET).world
    near = hop("n1", "forwarded", endpoints=(endpoint(DB, 5432, masqueraded=True),))
    far = hop("n2", "forwarded", endpoints=(endpoint(DB, 5432, masqueraded=True),))
    own, other = (only(with_policies(answered(OUT, NODE1, 30000, item), world, Nodes(world))) for item in (near, far))
    assert (own.ingress.peer, own.outcome) == (OUT, "dropped")
    assert (other.ingress.peer, other.outcome) == ("node n2", "dropped")
    node = only(with_policies(answered(NODE1, NODE1, 30000, near), world, Nodes(world)))
    assert (node.ingress.reason, node.outcome) == ("OwnNode", "allowed")


def test_a_node_port_of_another_node_is_two_packets() -> None:
    world = case(QUIET).world
    through = (
        hop("n1", snat=SourceTranslation(masqueraded=True, reason="Routing", message="")),
        hop("n2", "forwarded", endpoints=(endpoint(BLOG, 8080, masqueraded=True),)),
    )
    output = only(with_policies(answered(WEB, NODE2, 30000, *through), world, Nodes(world)))
    assert (output.egress.peer, output.ingress.peer) == ("node n2", "node n1")
    assert [(node.node, node.outcome) for node in output.nodes] == [("n1", "allowed"), ("n2", "allowed")]


def test_relayed_connection_is_judged_as_two_connections() -> None:
    world = case(QUIET).world
    relayed = SourceTranslation(masqueraded=True, reason="Relay", message="")
    for end, outcome in ((endpoint(DB, 5432, masqueraded=True), "allowed"), (endpoint(BLOG, 8080), "allowed")):
        through = hop("n1", "forwarded", endpoints=(end,), snat=relayed)
        output = only(with_policies(answered(WEB, "10.96.0.9", 80, through), world, Nodes(world)))
        assert (output.egress.reason, output.egress.peer, output.ingress.peer) == ("OwnNode", "node n1", "node n1")
        assert output.outcome == outcome


@pytest.mark.parametrize("outcome", ["refused", "dropped"])
def test_policies_are_not_asked_about_dropped_connections(outcome: Outcome) -> None:
    world = case(FREE).world
    assert with_policies(answered(WEB, "10.96.0.9", 80, hop(outcome=outcome)), world, Nodes(world)).policies == ()


def test_egress_policies_drop_before_a_service_without_endpoints_refuses() -> None:
    spec = {"podSelector": {}, "policyTypes": ["Egress"]}
    shut = msgspec.convert({"metadata": {"name": "shut", "namespace": "shop"}, "spec": spec}, NetworkPolicy)
    world = msgspec.structs.replace(case(FREE).world, policies=(shut,))
    result = with_policies(answered(WEB, "10.96.0.9", 80, hop(outcome="refused")), world, Nodes(world))
    assert result.outcome == "dropped"
    assert (only(result).egress.allowed, only(result).ingress.allowed) == (False, True)
    assert [(node.node, node.outcome) for node in only(result).nodes] == [("n1", "dropped")]


def test_endpoints_of_a_name_are_alike() -> None:
    world = case(QUIET).world
    ends = (endpoint(DB, 5432, probability=0), endpoint(BLOG, 8080, probability=0))
    named = ServiceMatch(namespace="shop", name="db", type="ClusterIP", port=80, protocol="TCP", frontend="Name")
    answer = answered(WEB, "", 80, msgspec.structs.replace(hop(endpoints=ends), service=named))
    result = with_policies(answer, world, Nodes(world))
    assert [policy.probability for policy in result.policies] == [0.5, 0.5]


def test_rules_that_are_missing() -> None:
    world, none = case(QUIET).world, case(FREE).world
    output = only(with_policies(answered(WEB, DB, 5432), world, Nodes(world, none)))
    assert (output.outcome, output.nodes[0].drifted) == ("allowed", True)
    assert output.message.startswith(
        "the rules of n1 pass it but differ from the planned rules; by the objects: shop/web"
    )
    assert any(item.sign == "+" and "counter drop" in item.text for item in output.nodes[0].drift)


def test_rules_that_are_too_much() -> None:
    world, none = case(QUIET).world, case(FREE).world
    result = with_policies(answered(WEB, DB, 5432), none, Nodes(none, world))
    assert result.outcome == "dropped"
    assert only(result).message.startswith("the rules of n1 drop it but differ from the planned rules")
    assert any(item.sign == "-" and "counter drop" in item.text for item in only(result).nodes[0].drift)


def test_rules_that_serve_no_policy() -> None:
    world = case(FREE).world
    for source, target in (("10.180.0.77", DB), (WEB, "10.180.0.77")):
        output = only(with_policies(answered(source, target, 80), world, Nodes(world, world)))
        assert (output.outcome, output.nodes[0].drifted) == ("dropped", False)
        assert output.message.startswith("dropped by rules of n1 that serve no policy")


def test_a_range_with_the_address_of_a_service() -> None:
    world = case(FREE).world
    rule = EgressRule(peers=(PolicyPeer(ip_block=IPBlock(cidr="10.96.0.0/16")),))
    spec = NetworkPolicySpec(policy_types=("Egress",), egress=(rule,))
    policy = NetworkPolicy(metadata=ObjectMeta(name="out", namespace="shop"), spec=spec)
    world = msgspec.structs.replace(world, policies=(policy,))
    through = hop(outcome="forwarded", endpoints=(endpoint(DB, 5432),))
    result = with_policies(answered(WEB, "10.96.0.9", 80, through), world, Nodes(world))
    assert result.outcome == "dropped"
    (note,) = result.notes
    assert note.startswith("shop/out egress[0] has an ipBlock with 10.96.0.9, the address of a Service; policies see")
    assert with_policies(answered(WEB, "192.0.2.1", 80), world, Nodes(world)).notes == ()
