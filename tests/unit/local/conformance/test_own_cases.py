"""The project's own case file: the reference evaluator agrees with every check, in both families."""

from pathlib import Path

import pytest

from podwire.local.conformance.casefile import Case, parse
from podwire.local.conformance.families import embedded, embedded_range, in_families
from podwire.local.conformance.placing import ClusterNode, Placing
from podwire.local.conformance.verdicts import world
from podwire.policy.evaluate import Connection, evaluate

_FILE = Path(__file__).parents[3] / "cases/conformance/policies.yaml"
_CASES = parse(_FILE.read_bytes(), _FILE.name).cases
_NODES = tuple(
    ClusterNode(
        name=f"node-{number + 1}",
        ranges=(f"10.244.{number}.0/24", embedded_range(f"10.244.{number}.0/24")),
        addresses=(f"10.89.0.{11 + number}", f"fd89::{11 + number}"),
    )
    for number in range(2)
)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("case", _CASES, ids=lambda case: case.id)
def test_the_evaluator_agrees(case: Case, family: int) -> None:
    placing = Placing(case.initial, _NODES)
    for step in case.steps:
        made = world(
            step.stage,
            placing,
            lambda four: four if family == 4 else embedded(four),
            lambda manifest: in_families(manifest, (4, 6)),
        )
        for check in step.checks:
            ends = []
            for key in (check.source, check.target):
                pod = step.stage.pods[key]
                own = pod.address if family == 4 else embedded(pod.address)
                ends.append(made.party(placing.node_of(pod).address(family) if pod.host_network else own))
            verdict = evaluate(
                made,
                Connection(source=ends[0], destination=ends[1], protocol=check.protocol, port=check.port),
            )
            assert verdict.allowed == check.allowed, (step.number, check, verdict)


def test_each_action_and_outcome_has_a_case() -> None:
    steps = [step for case in _CASES for step in case.steps]
    done = {action.op for step in steps for action in step.actions}
    assert {"create_policy", "update_policy", "delete_policy", "create_cluster_policy", "create_pod"} <= done
    assert {check.protocol for step in steps for check in step.checks} == {"TCP", "UDP", "SCTP"}
    assert {check.allowed for step in steps for check in step.checks} == {True, False}
