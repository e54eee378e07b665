"""Policies that get another ``podSelector`` or ``subject`` while their pods keep the profile, as others have both."""

from typing import Any

import msgspec
import pytest
from tests.unit.policy.test_compile import CASES, Chaos, agree, copy, follow

from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.evaluate import EvaluationOptions
from podwire.policy.profile import Profile
from podwire.policy.profilerules import ProfilePolicies

WORLD = CASES[0].world
EVERYONE: dict[str, Any] = {}
WEB = {"matchLabels": {"app": "web"}}
BOTH_WAYS = pytest.mark.parametrize(("old", "new"), [(EVERYONE, WEB), (WEB, EVERYONE)])
PEER = "203.0.113.9"


def policy(name: str, pods: dict[str, Any], *ports: int) -> NetworkPolicy:
    rules = [{"ports": [{"port": port}]} for port in ports]
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": rules}
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "spec": spec}, NetworkPolicy)


def cluster_policy(name: str, namespaces: dict[str, Any], number: int, *, audit: bool = False) -> ClusterNetworkPolicy:
    protocols = [{"tcp": {"destinationPort": {"number": number}}}]
    rule = {"action": "Deny", "to": [{"networks": ["203.0.113.0/24"]}], "protocols": protocols}
    spec = {"tier": "Admin", "priority": 1, "subject": {"namespaces": namespaces}, "egress": [rule]}
    annotations = {"podwire.io/mode": "audit"} if audit else {}
    return msgspec.convert({"metadata": {"name": name, "annotations": annotations}, "spec": spec}, ClusterNetworkPolicy)


def flush(compiler: Compiler) -> None:
    """Flushes in place: no profile is new, and the change names all that a data plane has to program."""
    mirror = copy(compiler)
    delta = compiler.flush()
    assert not delta.made
    follow(mirror, compiler, delta)
    assert mirror == copy(compiler)


def ingress(compiler: Compiler) -> Profile:
    key = compiler.pods["shop/web"].ingress
    assert key is not None
    return compiler.profiles[key]


@BOTH_WAYS
def test_rules_of_a_policy_that_moved_replace_its_old_rules(old: dict[str, Any], new: dict[str, Any]) -> None:
    compiler = compile_world(WORLD, "n1")
    for each in (policy("a", old), policy("b", new), policy("moved", old, 80)):
        compiler.set_policy(f"shop/{each.metadata.name}", each)
    compiler.flush()
    compiler.set_policy("shop/moved", policy("moved", new, 81))
    flush(compiler)
    table = ingress(compiler).at(PEER)
    assert [table.ruling("TCP", port).accept for port in (80, 81)] == [False, True]
    compiler.set_policy("shop/moved", None)
    flush(compiler)
    assert not ingress(compiler).at(PEER).ruling("TCP", 81).accept
    assert ingress(compiler).policies == ProfilePolicies(isolating=("shop/a", "shop/b"))


@BOTH_WAYS
def test_policies_that_change_places_keep_their_own_rules(old: dict[str, Any], new: dict[str, Any]) -> None:
    compiler = compile_world(WORLD, "n1")
    for name, pods, port in (("one", old, 80), ("other", new, 90), ("one", new, 81), ("other", old, 91)):
        compiler.set_policy(f"shop/{name}", policy(name, pods, port))
        if port == 90:
            compiler.flush()
    flush(compiler)
    table = ingress(compiler).at(PEER)
    found = {port: table.ruling("TCP", port).policy for port in (80, 81, 90, 91)}
    assert found == {80: "", 81: "shop/one", 90: "", 91: "shop/other"}


@BOTH_WAYS
def test_cluster_policy_that_moved_out_of_audit_denies(old: dict[str, Any], new: dict[str, Any]) -> None:
    old, new = ({"matchLabels": {"kubernetes.io/metadata.name": "shop"}} if each else {} for each in (old, new))
    compiler = compile_world(WORLD, "n1")
    for each in (cluster_policy("a", old, 1), cluster_policy("b", new, 2), cluster_policy("moved", old, 3, audit=True)):
        compiler.set_cluster_policy(each.metadata.name, each)
    compiler.flush()
    compiler.set_cluster_policy("moved", cluster_policy("moved", new, 4))
    flush(compiler)
    key = compiler.pods["shop/web"].egress
    assert key is not None
    table = compiler.profiles[key].at(PEER)
    rulings = [table.ruling("TCP", port) for port in (3, 4)]
    assert [(each.accept, each.audit, each.policy) for each in rulings] == [(True, False, ""), (False, False, "moved")]


def test_audit_of_policies_that_moved_agrees_with_the_evaluator() -> None:
    """In the sixth step of this cluster two cluster policies get each other's subjects, and both leave audit."""
    chaos = Chaos(700076)
    for step in range(6):
        for _ in range(1 + step % 3):
            chaos.change()
        for compiler in chaos.compilers.values():
            compiler.flush()
        for connection in chaos.connections():
            agree(chaos.world, chaos.compilers, connection, EvaluationOptions())
