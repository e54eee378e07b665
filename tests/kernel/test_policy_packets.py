"""Every case of the packet table of policies with real packets, TCP, UDP, SCTP and ICMP, in both families.

Every data plane of the registry runs all of them. What this kernel lacks is skipped by name: the tier ``uml`` has a
kernel without nftables.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cases.policy_table import Case, read_cases
from tests.kernel.policy_namespaces import FACTS, World, failures_of, load, path

from podwire.kernel.features import Features
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.dataplane import PolicyDataPlane
from podwire.policy.modes import open_dataplane
from podwire.policy.registry import DATAPLANES, FEATURES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

CASES = read_cases(Path(__file__).parents[1] / "cases/policies")
LEGACY = re.compile("exceptions|ranges|named|leaves")
"""Cases that the tier ``uml`` runs through the rules of iptables' legacy kind, since its kernel has no nf_tables."""
Planes = dict[str, PolicyDataPlane]


def marks_of(case: Case) -> Any:
    return pytest.mark.uml if LEGACY.search(case.name) else ()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(CASES[0])
        yield created


def opened(name: str) -> Planes:
    """A data plane for each node."""
    feature = FEATURES.get(name, "")
    if feature and Features().probe(feature).verdict == "no":
        pytest.skip(f"this kernel lacks {feature}")
    return {node: open_dataplane(name, FACTS[node], path(node)) for node in FACTS}


@pytest.fixture(scope="module", params=tuple(DATAPLANES))
def planes(world: World, request: pytest.FixtureRequest) -> Iterator[Planes]:
    """One data plane for all cases, so that each case replaces the one before."""
    created = opened(request.param)
    yield created
    for plane in created.values():
        plane.remove()
        plane.close()


def compilers(case: Case) -> dict[str, Compiler]:
    """The compiler of each node for a case."""
    return {node: compile_world(case.world, node, own_node_egress=case.own_node_egress) for node in FACTS}


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=marks_of(case)) for case in CASES])
def test_packet_table(world: World, planes: Planes, case: Case) -> None:
    """Packets end as the case says, and a data plane that starts again writes nothing."""
    for node, compiler in compilers(case).items():
        load(planes[node], compiler, world)
    assert not failures_of(case)
    for node, compiler in compilers(case).items():
        assert not any(load(planes[node], compiler, world))
