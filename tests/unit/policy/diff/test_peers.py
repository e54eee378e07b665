"""The ends that two clusters have in common."""

import pytest
from tests.unit.policy.diff.worlds import world

from podwire.model.meta import ObjectMeta, OwnerReference
from podwire.model.pod import Pod
from podwire.policy.diff.peers import EXTERNAL, PODS, peer_groups, workload
from podwire.policy.diff.side import Side

_BLOCKS = "shop/p: podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.244.0.0/16]}}]}]"


def test_pods_that_policies_treat_alike_are_one_group() -> None:
    result = peer_groups(Side(world()), Side(world())).common
    pods = [group for group in result if group.kind == PODS and group.family == 4]
    assert [len(group.names) for group in pods] == [5]
    tier = "shop/p: podSelector: {matchLabels: {app: db}}"
    result = peer_groups(Side(world()), Side(world(tier))).common
    assert sorted(len(group.names) for group in result if group.kind == PODS and group.family == 4) == [1, 4]


def test_addresses_are_disjoint_and_complete() -> None:
    result = peer_groups(Side(world()), Side(world(_BLOCKS))).common
    outside = {group.names for group in result if group.kind == EXTERNAL and group.family == 4 and not group.rest}
    assert len(outside) == 1
    assert "10.0.0.0/9" in next(iter(outside))
    assert not any(name.startswith("10.244.") for names in outside for name in names)
    assert sum(group.rest for group in result if group.family == 4) == 1


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("ReplicaSet", "web-7c5ddbdf54", "Deployment shop/web"),
        ("ReplicaSet", "web-canary", "ReplicaSet shop/web-canary"),
        ("StatefulSet", "db", "StatefulSet shop/db"),
    ],
)
def test_the_workload_of_a_pod(kind: str, name: str, expected: str) -> None:
    owner = OwnerReference(kind=kind, name=name, controller=True)
    meta = ObjectMeta(namespace="shop", name="x", owner_references=(owner,))
    assert workload(Pod(metadata=meta)) == expected
    assert workload(Pod(metadata=ObjectMeta(namespace="shop", name="x"))) == "Pod shop/x"
