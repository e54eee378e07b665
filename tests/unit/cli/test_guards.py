"""The policy rules of nodes as they are planned, and what cannot be had of them."""

from pathlib import Path

import pytest
from tests.cases.policy_table import Case, read_cases

from podwire.agent.config import AgentConfig
from podwire.cli.guards import Guards
from podwire.cli.sites import Known, Nodes
from podwire.cluster.world import World
from podwire.errors import ClusterError
from podwire.policy.settings import PolicySettings
from podwire.why.policies.answering import packet_of

CASES = read_cases(Path(__file__).parents[2] / "cases/policies")
PARTS = ("cni", "policy")


def case(name: str) -> Case:
    return next(each for each in CASES if each.name == name)


def guards(world: World, parts: tuple[str, ...] = PARTS, policy: PolicySettings | None = None) -> Guards:
    def known(node: str) -> Known:
        if node == "n2":
            raise ClusterError("n2 is elsewhere")
        config = AgentConfig(
            node_name=node, parts=parts, cluster_cidrs=(), service_cidrs=(), policy=policy or PolicySettings()
        )
        return Known(config=config, readable=False)

    return Guards(Nodes(known, planned=True), world)


def test_rules_of_a_node_are_planned() -> None:
    quiet = case("a policy without rules isolates")
    here = guards(quiet.world)
    guard = here.guard("n1")
    assert guard is not None
    assert guard.planned is not None
    assert (guard.mode, guard.reads, guard.held) == ("nftables", False, None)
    for check in quiet.checks:
        asked = quiet.connection(check, 4)
        if {asked.source.node, asked.destination.node} == {"n1"}:
            outcome = guard.planned.trace(packet_of("n1", asked, here))
            assert (outcome.verdict == "accept") == check.allowed, str(check)
    assert here.notes == {}


@pytest.mark.parametrize("own_node_egress", [True, False])
def test_settings_are_the_nodes(*, own_node_egress: bool) -> None:
    world = case("a policy without rules isolates").world
    here = guards(world, policy=PolicySettings(own_node_egress=own_node_egress))
    assert here.rules("n1").own_node_egress == own_node_egress
    assert here.rules("n2").own_node_egress


def test_nodes_that_enforce_nothing_or_cannot_be_read() -> None:
    world = case("a policy without rules isolates").world
    here = guards(world, ("cni", "proxy"))
    assert here.guard("n1") is None
    assert here.guard("n2") is None
    assert any("enforces no policies" in note for note in here.notes)
    assert any("rules of n2 cannot be read from here" in note for note in here.notes)


@pytest.mark.parametrize(("wanted", "mode"), [("auto", "nftables"), ("iptables", "iptables")])
def test_the_mode_is_that_of_the_settings(wanted: str, mode: str) -> None:
    guard = guards(case("a policy without rules isolates").world, policy=PolicySettings(mode=wanted)).guard("n1")
    assert guard is not None
    assert (guard.mode, guard.planned is not None, guard.held) == (mode, True, None)
