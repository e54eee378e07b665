"""Changes that leave a pod its profile: the rules are as in a new profile, and data planes learn all that changed.

``SEED=n`` begins the random clusters with another seed than 0, ``SEEDS=n`` tries so many.
"""

import os
from ipaddress import ip_network
from typing import Any

import msgspec
import pytest
from tests.unit.policy.test_compile import CASES, Chaos, agree, copy, current, follow

from podwire.model.meta import key_of
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
FIRST, COUNT = int(os.environ.get("SEED", "0")), int(os.environ.get("SEEDS", "15"))


class Crowd(Chaos):
    """More policies for the same pods; half of the changes give a policy only another selector, or mode."""

    POLICIES: tuple[str, ...] = ("shop/a", "shop/b", "shop/c", "shop/d", "blog/a")
    CLUSTER_POLICIES: tuple[str, ...] = ("w", "x", "y", "z")

    def policy(self, name: str) -> NetworkPolicy:
        created = super().policy(name)
        before = next((item for item in self.world.policies if key_of(item.metadata) == name), created)
        spec = msgspec.structs.replace(before.spec, pod_selector=created.spec.pod_selector)
        moved = msgspec.structs.replace(before, spec=spec)
        turned = msgspec.structs.replace(before, metadata=created.metadata)
        return self.random.choice((created, created, moved, turned))


class Blocks(Crowd):
    """A third of the policies has many blocks: of pods, of nodes and of other addresses, one in another."""

    _many = False

    def policy(self, name: str) -> NetworkPolicy:
        self._many = self.random.random() < 0.3
        return super().policy(name)

    def peer(self) -> dict[str, Any]:
        return {"ipBlock": self.block()} if self._many else super().peer()

    def few(self, make: Any, most: int = 2) -> list[Any]:
        return super().few(make, 6 if self._many and self.random.random() < 0.5 else most)

    def block(self) -> dict[str, Any]:
        pick, number = self.random.choice, self.random.randrange(64)
        if self.random.random() < 0.3:
            return super().block()
        base = pick(
            (f"203.0.{number}.{pick((0, 8, 64, 128))}", f"10.180.{number % 3}.{pick((0, 4, 64))}", "192.168.99.1")
        )
        cidr = ip_network(f"{base}/{pick((24, 26, 28, 32))}", strict=False)
        inner = ip_network(f"{base}/{min(32, cidr.prefixlen + 2)}", strict=False)
        return {"cidr": str(cidr), "except": [str(inner)] if inner != cidr and self.random.random() < 0.2 else []}


class Selectors(Crowd):
    """Many policies with selectors of their own for the same pods, for some of them, and for pods of other policies."""

    POLICIES = tuple(f"shop/{letter}" for letter in "abcdefgh")
    CLUSTER_POLICIES = ("x",)

    def selector(self) -> dict[str, Any]:
        pick, number = self.random.choice, self.random.randrange(12)
        wide = {"key": "own", "operator": "NotIn", "values": [f"none{number}"]}
        narrow = {"key": "app", "operator": pick(("In", "NotIn")), "values": [pick(("web", "db")), f"none{number}"]}
        return {"matchExpressions": [pick((wide, wide, wide, narrow))]}

    def change(self) -> None:
        """Mostly policies that come, go or change, one by one."""
        self.random.choice((self.change_policy, self.change_policy, self.change_policy, super().change))()


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


def flush(compiler: Compiler, *, in_place: bool = True) -> None:
    """The change names all that a data plane has to program; no profile is new where it is made in place."""
    mirror = copy(compiler)
    delta = compiler.flush()
    assert not (in_place and delta.new_profiles)
    follow(mirror, compiler, delta)
    assert mirror == copy(compiler)


def ingress(compiler: Compiler) -> Profile:
    key = compiler.pods["shop/web"].ingress
    assert key is not None
    return compiler.profiles[key]


@BOTH_WAYS
def test_rules_of_a_policy_that_moved_replace_its_old_rules(old: dict[str, Any], new: dict[str, Any]) -> None:
    compiler = compile_world(WORLD, "n1")
    for item in (policy("a", old), policy("b", new), policy("moved", old, 80)):
        compiler.set_policy(f"shop/{item.metadata.name}", item)
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
    result = {port: table.ruling("TCP", port).policy for port in (80, 81, 90, 91)}
    assert result == {80: "", 81: "shop/one", 90: "", 91: "shop/other"}


@BOTH_WAYS
def test_cluster_policy_that_moved_out_of_audit_denies(old: dict[str, Any], new: dict[str, Any]) -> None:
    old, new = ({"matchLabels": {"kubernetes.io/metadata.name": "shop"}} if entry else {} for entry in (old, new))
    compiler = compile_world(WORLD, "n1")
    for item in (cluster_policy("a", old, 1), cluster_policy("b", new, 2), cluster_policy("moved", old, 3, audit=True)):
        compiler.set_cluster_policy(item.metadata.name, item)
    compiler.flush()
    compiler.set_cluster_policy("moved", cluster_policy("moved", new, 4))
    flush(compiler)
    key = compiler.pods["shop/web"].egress
    assert key is not None
    table = compiler.profiles[key].at(PEER)
    rulings = [table.ruling("TCP", port) for port in (3, 4)]
    assert [(ruling.accept, ruling.audit, ruling.policy) for ruling in rulings] == [
        (True, False, ""),
        (False, False, "moved"),
    ]


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


def test_rules_of_a_new_policy_may_share_their_block() -> None:
    """The rules differ in their other peers, so that neither stands for the other."""
    peers = [{"podSelector": WEB}, {"podSelector": EVERYONE}]
    block = {"ipBlock": {"cidr": "203.0.113.0/24"}}
    rules = [{"from": [block, peer], "ports": [{"port": 80 + place}]} for place, peer in enumerate(peers)]
    created = {"metadata": {"name": "blocks", "namespace": "shop"}, "spec": {"podSelector": WEB, "ingress": rules}}
    compiler = compile_world(WORLD, "n1")
    compiler.set_policy("shop/a", policy("a", WEB))
    compiler.flush()
    compiler.set_policy("shop/blocks", msgspec.convert(created, NetworkPolicy))
    flush(compiler)
    table = ingress(compiler).at(PEER)
    assert [table.ruling("TCP", port).accept for port in (79, 80, 81, 82)] == [False, True, True, False]
    compiler.set_policy("shop/blocks", None)
    flush(compiler)
    assert not ingress(compiler).peers.ranges(4)


def test_address_that_ends_as_its_rule_goes_is_named() -> None:
    """The policy's rule and the pod that it lets in end in one flush: nothing of either stays in the kernel."""
    spec = {"podSelector": WEB, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]}
    meta = {"name": "in", "namespace": "shop"}
    compiler = compile_world(WORLD, "n1")
    compiler.set_policy("shop/a", policy("a", WEB))
    compiler.set_policy("shop/in", msgspec.convert({"metadata": meta, "spec": spec}, NetworkPolicy))
    compiler.flush()
    address = next(pod.addresses[0] for pod in WORLD.pods if key_of(pod.metadata) == "shop/db")
    assert address in ingress(compiler).peers.hosts
    audit = {**meta, "annotations": {"podwire.io/mode": "audit"}}
    compiler.set_policy("shop/in", msgspec.convert({"metadata": audit, "spec": spec}, NetworkPolicy))
    compiler.set_pod("shop/db", None)
    flush(compiler)
    assert address not in ingress(compiler).peers.hosts


def test_policy_with_another_block_costs_its_ranges_alone() -> None:
    """The policies have ranges of their own; the last of them changes its block."""
    compiler = compile_world(WORLD, "n1")
    for number in range(8):
        compiler.set_policy(f"shop/p{number}", of_block(number, f"203.0.{number}.0/24"))
        flush(compiler, in_place=number > 0)
    compiler.set_policy("shop/p7", of_block(7, "203.0.2.128/25"))
    flush(compiler)
    assert [first >> 7 & 0x1FF for first, _, _ in ingress(compiler).peers.ranges(4)] == [0, 2, 4, 5, 6, 8, 10, 12]
    table = ingress(compiler).at("203.0.2.200")
    assert [table.ruling("TCP", port).accept for port in (1002, 1007, 1001)] == [True, True, False]
    assert not ingress(compiler).at("203.0.7.1").ruling("TCP", 1007).accept


def of_block(number: int, cidr: str) -> NetworkPolicy:
    rule = {"from": [{"ipBlock": {"cidr": cidr}}], "ports": [{"port": 1000 + number}]}
    created = {"metadata": {"name": f"p{number}", "namespace": "shop"}, "spec": {"podSelector": WEB, "ingress": [rule]}}
    return msgspec.convert(created, NetworkPolicy)


def test_egress_policy_with_a_known_port_name_changes_in_place() -> None:
    compiler = compile_world(WORLD, "n1")
    for number, name in ((0, "http"), (1, "http"), (2, "sql")):
        rule = {"to": [{"namespaceSelector": {}}], "ports": [{"port": 1000 + number}, {"port": name}]}
        spec = {"podSelector": WEB, "policyTypes": ["Egress"], "egress": [rule]}
        created = {"metadata": {"name": f"p{number}", "namespace": "shop"}, "spec": spec}
        compiler.set_policy(f"shop/p{number}", msgspec.convert(created, NetworkPolicy))
        flush(compiler, in_place=number == 1)
    compiler.set_policy("shop/p1", None)
    flush(compiler)


def own_selector(number: int) -> dict[str, Any]:
    """A selector of its own for all pods of a namespace."""
    return {"matchExpressions": [{"key": "own", "operator": "NotIn", "values": [f"none{number}"]}]}


def test_pods_keep_their_profile_when_selectors_come_and_go() -> None:
    compiler = compile_world(WORLD, "n1")
    compiler.set_policy("shop/p0", policy("p0", own_selector(0), 1000))
    compiler.flush()
    keys = {pod.ingress for pod in compiler.pods.values()}
    for number in (1, 2, 3):
        compiler.set_policy(f"shop/p{number}", policy(f"p{number}", own_selector(number), 1000 + number))
        flush(compiler)
    compiler.set_policy("shop/p0", None)
    flush(compiler)
    assert {pod.ingress for pod in compiler.pods.values()} == keys
    assert len(ingress(compiler).subjects) == 3
    table = ingress(compiler).at(PEER)
    assert [table.ruling("TCP", 1000 + number).accept for number in range(5)] == [False, True, True, True, False]


def test_profile_goes_on_for_the_pods_that_stay() -> None:
    """A policy for some of the pods gives these another profile; the rest keep theirs, whose rules stay the same."""
    compiler = compile_world(WORLD, "n1")
    compiler.set_policy("shop/all", policy("all", own_selector(0), 80))
    compiler.flush()
    before = ingress(compiler)
    compiler.set_policy("shop/db", policy("db", {"matchLabels": {"app": "db"}}, 81))
    flush(compiler, in_place=False)
    assert ingress(compiler) is before
    db = compiler.pods["shop/db"].ingress
    assert db is not None
    assert db != before.key
    assert compiler.profiles[db].at(PEER).ruling("TCP", 81).accept
    assert not before.at(PEER).ruling("TCP", 81).accept


def test_new_profile_with_former_selectors_gets_its_own_key() -> None:
    compiler = compile_world(WORLD, "n1")
    compiler.set_policy("shop/a", policy("a", EVERYONE, 80))
    compiler.flush()
    compiler.set_policy("shop/db", policy("db", {"matchLabels": {"app": "db"}}, 81))
    compiler.flush()
    compiler.set_policy("shop/web", policy("web", {"matchLabels": {"app": "web"}}, 82))
    compiler.flush()
    keys = [pod.ingress for pod in compiler.pods.values() if pod.ingress is not None]
    for pod in WORLD.pods:
        if key_of(pod.metadata) == "shop/db":
            meta = msgspec.structs.replace(pod.metadata, name="plain", labels={})
            status = msgspec.structs.replace(pod.status, pod_ip="10.180.0.99", pod_ips=())
            compiler.set_pod("shop/plain", msgspec.structs.replace(pod, metadata=meta, status=status))
    flush(compiler, in_place=False)
    plain = compiler.pods["shop/plain"].ingress
    assert plain is not None
    assert plain not in keys
    assert not compiler.profiles[plain].at(PEER).ruling("TCP", 81).accept


@pytest.mark.parametrize("kind", [Crowd, Blocks, Selectors])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_crowds_of_policies_agree_with_the_evaluator(seed: int, kind: type[Crowd]) -> None:
    crowd = kind(seed)
    mirror = {name: copy(compiler) for name, compiler in crowd.compilers.items()}
    for step in range(20):
        for _ in range(1 + step % 4):
            crowd.change()
        for name, compiler in crowd.compilers.items():
            follow(mirror[name], compiler, compiler.flush())
            assert mirror[name] == copy(compiler)
            assert current(compiler) == current(compile_world(crowd.world, name))
        for connection in crowd.connections():
            agree(crowd.world, crowd.compilers, connection, EvaluationOptions())
