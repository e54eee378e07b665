"""What findings say has no effect is taken out of random policies, and no verdict changes."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cases.policy_table import read_cases
from tests.cases.random_policies import RandomPolicies

from podwire.cluster.world import World
from podwire.model.meta import key_of
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.check.checks import check
from podwire.policy.check.finding import Finding
from podwire.policy.diff.compare import compare

BASE = read_cases(Path(__file__).parents[3] / "cases/policies")[0].world
FIRST, COUNT = int(os.environ.get("SEED", "0")), int(os.environ.get("SEEDS", "60"))
RULE = re.compile(r"spec\.(ingress|egress)\[(\d+)\]")
WITHOUT_EFFECT = ("covered", "never-reached", "overruled")
PEERS = ("peer-matches-nothing", "own-namespace-only", "host-network-only")


@cache
def random_world(seed: int) -> World:
    """One of the random clusters; every other one has a policy that denies all pods, and goes first."""
    world = RandomPolicies(BASE, seed).world()
    if seed % 2:
        return world
    everybody: list[dict[str, object]] = [{"namespaces": {}}]
    rule = {"action": "Deny", "from": everybody, "to": everybody}
    spec = {"tier": "Admin", "priority": 0, "subject": {"namespaces": {}}, "ingress": [rule], "egress": [rule]}
    deny = msgspec.convert({"metadata": {"name": "a"}, "spec": spec}, ClusterNetworkPolicy)
    return msgspec.structs.replace(world, cluster_policies=(deny, *world.cluster_policies))


@cache
def findings(seed: int) -> tuple[Finding, ...]:
    """The findings in one of the random clusters."""
    return tuple(check(random_world(seed)))


def without(world: World, positions: set[tuple[str, str, int]], spec: str = "") -> World:
    """The same cluster without some rules (policy, section and place), and without a section."""

    def cut(policy: Any, kind: type[Any]) -> Any:
        body = msgspec.to_builtins(policy)
        key = key_of(policy.metadata)
        if kind is NetworkPolicy:
            body["spec"]["policyTypes"] = list(policy.spec.types)
        for section in ("ingress", "egress"):
            rules = enumerate(body["spec"].get(section, ()))
            body["spec"][section] = [rule for place, rule in rules if (key, section, place) not in positions]
        if (key, spec, -1) in positions:
            del body["spec"][spec]
        return msgspec.convert(body, kind)

    return msgspec.structs.replace(
        world,
        policies=tuple(cut(policy, NetworkPolicy) for policy in world.policies),
        cluster_policies=tuple(cut(policy, ClusterNetworkPolicy) for policy in world.cluster_policies),
    )


def place(finding: Finding) -> tuple[str, str, int]:
    result = RULE.match(finding.field)
    assert result is not None, finding
    return finding.name, result[1], int(result[2])


def in_force(world: World) -> World:
    """The same cluster, with the policies in audit in force."""

    def enforced(policy: Any) -> Any:
        meta = msgspec.structs.replace(policy.metadata, annotations={})
        return msgspec.structs.replace(policy, metadata=meta)

    return msgspec.structs.replace(
        world,
        policies=tuple(map(enforced, world.policies)),
        cluster_policies=tuple(map(enforced, world.cluster_policies)),
    )


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_rules_without_effect(seed: int) -> None:
    """Of a policy in audit, when all are in force."""
    world = random_world(seed)
    every = findings(seed)
    audited = {item.name for item in every if item.id == "in-audit"}
    results = [item for item in every if item.id in WITHOUT_EFFECT]
    for finding in results:
        judged = in_force(world) if finding.name in audited else world
        assert compare(judged, without(judged, {place(finding)})).differences == (), finding
    together = {place(finding) for finding in results if finding.id != "overruled"}
    assert compare(world, without(world, together)).differences == ()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_policies_and_sections_without_effect(seed: int) -> None:
    world = random_world(seed)
    for finding in findings(seed):
        if finding.id == "section-ignored":
            section = finding.field.removeprefix("spec.")
            gone = without(world, {(finding.name, section, -1)}, section)
            assert compare(world, gone).differences == (), finding
        if finding.id == "selects-nothing" or (finding.id in PEERS and finding.field == "spec.podSelector"):
            policies = tuple(policy for policy in world.policies if key_of(policy.metadata) != finding.name)
            cluster = tuple(
                cluster_policy
                for cluster_policy in world.cluster_policies
                if cluster_policy.metadata.name != finding.name
            )
            gone = msgspec.structs.replace(world, policies=policies, cluster_policies=cluster)
            assert compare(world, gone).differences == (), finding


def test_random_worlds_contain_each_finding() -> None:
    results = [item.id for seed in range(60) for item in findings(seed)]
    for name in (*WITHOUT_EFFECT, "section-ignored", "peer-matches-nothing"):
        assert results.count(name) >= 5, name
