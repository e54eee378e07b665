"""Random policies from a seed with real packets: TCP, UDP, SCTP and ICMP, both families, two nodes and the outside.

Each seed is a cluster whose rules are loaded, and then two that it changes into, step by step as an agent does. With
odd seeds, mode ``nftables`` cuts the ranges of a profile into parts, as it otherwise does with more than 64 ranges. The
same seeds are followed through the rules by ``tests/unit/policy/test_random.py``. ``SEED=n`` begins with another seed
than 0, ``SEEDS=n`` tries so many: some hundred are for the hand.
"""

import os
from collections.abc import Iterator

import pytest
from tests.cases.policy_table import Case, Check
from tests.cases.random_policies import RandomPolicies
from tests.kernel.policy_checks import policy
from tests.kernel.policy_namespaces import World, failures_of, load
from tests.kernel.test_policy_packets import CASES, Planes, compilers, opened

from podwire.cluster import world as facts
from podwire.model.meta import key_of
from podwire.policy.compile import Compiler
from podwire.policy.connectionmatch import Connection
from podwire.policy.dataplanes.nftables import rangechains
from podwire.policy.evaluate import evaluate
from podwire.policy.registry import DATAPLANES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

FIRST, COUNT = int(os.environ.get("SEED", "0")), int(os.environ.get("SEEDS", "2"))
CONNECTIONS = 250
BASE = CASES[0]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(BASE)
        yield created


@pytest.fixture(scope="module", params=tuple(DATAPLANES))
def planes(world: World, request: pytest.FixtureRequest) -> Iterator[Planes]:
    """One data plane for all seeds, so that each seed replaces the one before."""
    created = opened(request.param)
    yield created
    for plane in created.values():
        plane.remove()
        plane.close()


def case_of(world: facts.World, connections: Iterator[Connection], name: str) -> Case:
    """The verdicts of the evaluator for some connections."""
    checks = tuple(
        Check(
            source=end_of(connection.source),
            target=end_of(connection.destination),
            port=f"{connection.port}/{connection.protocol}" if connection.port else connection.protocol,
            allowed=evaluate(world, connection).allowed,
            families=(6 if ":" in connection.source.address else 4,),
        )
        for connection in connections
    )
    return Case(name=name, world=world, checks=checks, outside=BASE.outside)


def end_of(party: facts.Party) -> str:
    if party.pod is not None:
        return key_of(party.pod.metadata)
    return f"node/{party.node}" if party.node else party.address


def follow(compiler: Compiler, old: facts.World, new: facts.World) -> None:
    """Applies the differences between two worlds to a compiler."""
    for pod in new.pods:
        compiler.set_pod(key_of(pod.metadata), pod)
    policies = {key_of(entry.metadata): entry for entry in new.policies}
    for name in {key_of(entry.metadata) for entry in old.policies} | set(policies):
        compiler.set_policy(name, policies.get(name))
    cluster = {entry.metadata.name: entry for entry in new.cluster_policies}
    for name in {entry.metadata.name for entry in old.cluster_policies} | set(cluster):
        compiler.set_cluster_policy(name, cluster.get(name))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_packets_and_evaluator_agree(world: World, planes: Planes, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(rangechains, "FEW", 2)
        monkeypatch.setattr(rangechains, "MOST", 4)
    policies = RandomPolicies(BASE.world, seed)
    old = policies.world()
    case = case_of(old, policies.connections(old, CONNECTIONS), f"seed {seed}")
    created = compilers(case)
    for node, compiler in created.items():
        load(planes[node], compiler, world)
    assert not failures_of(case)
    for step in range(2):
        new = policies.changed(old)
        for node, compiler in created.items():
            follow(compiler, old, new)
            planes[node].update(compiler, world.devices(node), compiler.flush())
        assert not failures_of(case_of(new, policies.connections(new, CONNECTIONS), f"seed {seed}, change {step}"))
        old = new


def test_restart_after_selectors_came_one_by_one_writes_nothing(world: World, planes: Planes) -> None:
    """The pods keep their profiles and these their names, which a restarted agent takes over from the kernel."""
    old = compilers(BASE)
    for node, compiler in old.items():
        load(planes[node], compiler, world)
    policies = [
        policy(
            f"shop/p{number}",
            podSelector={"matchExpressions": [{"key": "own", "operator": "NotIn", "values": [f"none{number}"]}]},
            ingress=[{"ports": [{"port": 1000 + number}]}],
        )
        for number in range(4)
    ]
    restarted = compilers(BASE)
    for node, compiler in old.items():
        new = 0
        for item in policies:
            compiler.set_policy(key_of(item.metadata), item)
            restarted[node].set_policy(key_of(item.metadata), item)
            delta = compiler.flush()
            new += bool(delta.new_profiles)
            planes[node].update(compiler, world.devices(node), delta)
        assert new == 1
        restarted[node].flush()
        assert not any(planes[node].load(restarted[node], world.devices(node)))
