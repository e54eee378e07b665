"""The project's own case files: the reference evaluator agrees with every check, in both families."""

from ipaddress import IPv6Network
from pathlib import Path

import pytest

from podwire.local.conformance.casefile import Case, parse
from podwire.local.conformance.cluster import Families
from podwire.local.conformance.families import PREFIX
from podwire.local.conformance.placing import ClusterNode, Placing, cluster_for
from podwire.local.conformance.verdicts import Judge, world
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import evaluate

_FOLDER = Path(__file__).parents[3] / "cases/conformance"
_FILES = [parse((_FOLDER / name).read_bytes(), name) for name in ("policies.yaml", "families.yaml")]
_CASES = {case.id: (file, case) for file in _FILES for case in file.cases}


def _nodes(network: str) -> tuple[ClusterNode, ...]:
    """Two nodes, as a cluster with this IPv6 network has them."""
    sixes = list(IPv6Network(network).subnets(new_prefix=120))[:2]
    return tuple(
        ClusterNode(
            name=f"node-{number + 1}",
            ranges=(f"10.244.{number}.0/24", str(six)),
            addresses=(f"10.89.0.{11 + number}", f"fd89::{11 + number}"),
        )
        for number, six in enumerate(sixes)
    )


@pytest.mark.parametrize("name", _CASES)
def test_the_evaluator_agrees(name: str) -> None:
    file, case = _CASES[name]
    nodes, (_, network) = cluster_for([file])
    assert nodes == 2
    placing = Placing(case.initial, _nodes(network))
    families = Families(checked=(4, 6), prefix=PREFIX if case.initial.translate else None)
    checked = {family: sum(_agree(case, placing, families, family)) for family in (4, 6)}
    assert all(checked.values()), checked


def _agree(case: Case, placing: Placing, families: Families, family: int) -> list[bool]:
    done = []
    for step in case.steps:
        judge = Judge(case, step, placing, families.address)
        translate = step.stage.translate
        created = world(
            step.stage,
            placing,
            lambda pod: families.address(pod, family),
            lambda manifest, translate=translate: families.policy(manifest, translate=translate),  # type: ignore[misc]
        )
        for check in step.checks:
            if family not in judge.families_of(check):
                continue
            ends = [
                created.party(judge.address_of(step.stage.pods[key], family)) for key in (check.source, check.target)
            ]
            asked = Connection(source=ends[0], destination=ends[1], protocol=check.protocol, port=check.port)
            verdict = evaluate(created, asked)
            assert verdict.allowed == check.allowed, (step.number, check, verdict)
            done.append(True)
    return done


def test_each_action_and_outcome_has_a_case() -> None:
    steps = [step for _, case in _CASES.values() for step in case.steps]
    done = {action.op for step in steps for action in step.actions}
    assert {"create_policy", "update_policy", "delete_policy", "create_cluster_policy", "create_pod"} <= done
    assert {check.protocol for step in steps for check in step.checks} == {"TCP", "UDP", "SCTP"}
    assert {(check.allowed, check.family) for step in steps for check in step.checks} == {
        (allowed, family) for allowed in (True, False) for family in (0, 4, 6)
    }
