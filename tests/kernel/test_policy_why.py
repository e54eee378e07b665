"""Policy rules that kernels hold, followed as ``podwire why`` follows them: the whole packet table, no packets."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cases.policy_table import Case
from tests.unit.policy.dataplanes.nftables.test_contents import device
from tests.unit.policy.test_compile import CASES
from tests.unit.policy.test_packet_table import POD_RANGES
from tests.unit.why.policies.test_explainer import Nodes, answered

from podwire.dataplane.tracing import trace_held
from podwire.kernel import netns
from podwire.policy.compile import compile_world
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.modes import open_dataplane
from podwire.policy.registry import TRACERS
from podwire.policy.tracing import open_tracing
from podwire.trace.packet import LocalAddresses
from podwire.why.answer import PolicyVerdict
from podwire.why.policies.enforced import PolicyRules
from podwire.why.policies.explainer import with_policies

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

NODES = ("n1", "n2")
Places = dict[str, Path]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    created = {node: tmp_path_factory.mktemp("netns") / node for node in NODES}
    for path in created.values():
        netns.create(path)
    yield created
    for path in created.values():
        netns.delete(path)


class KernelRules(Nodes):
    """Nodes with the rules of a case in their kernels."""

    def __init__(self, case: Case, mode: str, positions: Places) -> None:
        super().__init__(case.world, own_node_egress=case.own_node_egress)
        self.mode, self.places = mode, positions
        self.planes = {node: open_dataplane(mode, self.facts(node), positions[node]) for node in NODES}
        for node, plane in self.planes.items():
            compiler = compile_world(case.world, node, own_node_egress=case.own_node_egress)
            plane.load(compiler, {key: device(key) for key in compiler.pods}, self.facts(node))

    def facts(self, node: str) -> PolicyFacts:
        result = next(item for item in self.world.nodes if item.metadata.name == node)
        return PolicyFacts(pod_ranges=POD_RANGES[node], addresses=result.internal_ips)

    def read(self, node: str) -> PolicyRules:
        seam = open_tracing(self.mode)
        assert seam is not None
        machine = LocalAddresses(addresses=frozenset(self.facts(node).addresses))
        compiler = compile_world(self.world, node, own_node_egress=self.own_node_egress)
        devices = {key: device(key) for key in compiler.pods}
        planned = seam.planned(compiler, devices, self.facts(node), machine)
        held = trace_held(seam, self.places[node], machine)
        return PolicyRules(mode=self.mode, planned=planned, held=held, reads=True)

    def close(self) -> None:
        for plane in self.planes.values():
            plane.remove()
            plane.close()


def verdict_of(nodes: KernelRules, case: Case, number: int, family: int) -> PolicyVerdict:
    asked = case.connection(case.checks[number], family)
    asking = answered(asked.source.address, asked.destination.address, asked.port, protocol=asked.protocol)
    (result,) = with_policies(asking, case.world, nodes).policies
    return result


@pytest.fixture(params=tuple(TRACERS))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_table(places: Places, mode: str, case: Case) -> None:
    nodes = KernelRules(case, mode, places)
    try:
        for number, check in enumerate(case.checks):
            for family in check.families:
                result = verdict_of(nodes, case, number, family)
                assert (result.outcome == "allowed") == check.allowed, (str(check), family, result.message)
                assert not any(node.drifted or node.drift for node in result.nodes), (str(check), family)
                assert {node.state for node in result.nodes} <= {"held"}
    finally:
        nodes.close()


def quiet() -> Case:
    return next(case for case in CASES if case.name == "a policy without rules isolates")


def test_missing_rules_are_shown_as_drift(places: Places, mode: str) -> None:
    case = quiet()
    nodes = KernelRules(case, mode, places)
    nodes.close()
    result = verdict_of(nodes, case, 0, 4)
    assert (result.outcome, [node.drifted for node in result.nodes]) == ("allowed", [True])
    assert any(line.sign == "+" and "drop" in line.text.lower() for line in result.nodes[0].drift)


COUNTED = 'counter packets 7 bytes 420 drop comment "no ingress rule for pods app=db of shop"'
"""The rule that denies, with a count that no packet caused."""


def test_counters_of_rules_are_shown(places: Places) -> None:
    case = quiet()
    nodes = KernelRules(case, "nftables", places)
    try:
        chain = verdict_of(nodes, case, 0, 4).nodes[0].steps[-1].where.split()[-1]
        rule = ["nft", "replace", "rule", "ip", "podwire-policy", chain]
        with netns.inside(places["n1"]):
            listed = subprocess.run(["nft", "-a", "list", "chain", "ip", "podwire-policy", chain],
                                    capture_output=True, text=True, check=True).stdout  # fmt: skip
            handle = next(line.rpartition(" ")[2] for line in listed.splitlines() if "counter" in line)
            subprocess.run([*rule, "handle", handle, COUNTED], check=True)
        nodes.rules.clear()
        steps = verdict_of(nodes, case, 0, 4).nodes[0].steps
        assert steps[-1].rule == COUNTED
        assert steps[-1].object == "no ingress rule for pods app=db of shop"
        assert not verdict_of(nodes, case, 0, 4).nodes[0].drift
    finally:
        nodes.close()
