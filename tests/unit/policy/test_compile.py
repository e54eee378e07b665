"""The compiler against the reference evaluator: the packet table, and random clusters that change."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.cases.policy_table import Case, parse_case, read_cases

from podwire.cluster.world import Party, World
from podwire.model.meta import Object, ObjectMeta, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import EGRESS, INGRESS, Decision, EvaluationOptions, decide
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.ports import PortTable
from podwire.policy.profile import Profile, ProfileKey

FOLDER = Path(__file__).parents[2] / "cases/policies"
CASES = read_cases(FOLDER)


Found = tuple[bool, str, int, tuple[str, ...], int]
"""Whether it is allowed, by which rule of which policy; which policies in audit would drop it, by which rule."""


def ruling_of(decision: Decision) -> Found:
    return decision.allowed, decision.policy, decision.rule, decision.audit, decision.audit_rule


def compiled(compiler: Compiler, direction: str, subject: Party, peer: Party, connection: Connection) -> Found:
    """What a node's profiles say of one direction."""
    assert subject.pod is not None
    of = compiler.pods[key_of(subject.pod.metadata)]
    key = of.ingress if direction == INGRESS else of.egress
    if key is None:
        return True, "", -1, (), -1
    ruling = compiler.profiles[key].at(peer.address).ruling(connection.protocol, connection.port)
    alone = (ruling.audit_policy,) if ruling.audit_policy else compiler.profiles[key].policies.audited
    return ruling.accept, ruling.policy, ruling.rule, alone if ruling.audit else (), ruling.audit_rule


def sides(connection: Connection) -> Iterator[tuple[str, Party, Party]]:
    """The directions that a node decides: not for what is no pod, nor for a pod that talks to itself."""
    source, destination = connection.source, connection.destination
    for direction, subject, peer in ((EGRESS, source, destination), (INGRESS, destination, source)):
        if subject.pod is not None and (peer.pod is None or peer.pod != subject.pod):
            yield direction, subject, peer


def agree(world: World, compilers: dict[str, Compiler], connection: Connection, rules: EvaluationOptions) -> None:
    for direction, subject, peer in sides(connection):
        expected = ruling_of(decide(world, connection, direction, rules))
        result = compiled(compilers[subject.node], direction, subject, peer, connection)
        assert result == expected, (direction, subject.name, peer.name, connection.protocol, connection.port)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_packet_table(case: Case) -> None:
    rules = EvaluationOptions(own_node_egress=case.own_node_egress)
    compilers = {
        node.metadata.name: compile_world(case.world, node.metadata.name, own_node_egress=case.own_node_egress)
        for node in case.world.nodes
    }
    for check in case.checks:
        for family in check.families:
            agree(case.world, compilers, case.connection(check, family), rules)


class Chaos:
    """A cluster that changes at random, and the compilers of its nodes that are told of each change."""

    POLICIES: tuple[str, ...] = ("shop/a", "shop/b", "blog/a", "ops/a")
    CLUSTER_POLICIES: tuple[str, ...] = ("x", "y")

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = parse_case({"name": "", "checks": []}, yaml.load(_base(), yaml.CSafeLoader)).world
        self.compilers = {name: compile_world(self.world, name) for name in ("n1", "n2")}

    def selector(self) -> dict[str, Any]:
        pick = self.random.choice
        return pick(
            (
                {},
                {"matchLabels": {"app": pick(("web", "db"))}},
                {"matchExpressions": [{"key": "app", "operator": pick(("NotIn", "In")), "values": ["web"]}]},
                {"matchExpressions": [{"key": "tier", "operator": pick(("Exists", "DoesNotExist"))}]},
            )
        )

    def of_namespace(self) -> dict[str, Any]:
        pick = self.random.choice
        key = "kubernetes.io/metadata.name"
        return pick(({}, {"matchLabels": {"team": "press"}}, {"matchLabels": {key: pick(("shop", "ops"))}}))

    def block(self) -> dict[str, Any]:
        pick = self.random.choice
        cidr, parts = pick(
            (
                ("10.180.0.0/16", ["10.180.0.0/24", "10.180.1.2/32"]),
                ("0.0.0.0/0", ["192.168.99.1/32"]),
                ("fd18::/16", ["fd18:1::/64"]),
                ("10.180.1.0/25", []),
                ("203.0.113.0/24", ["203.0.113.8/29"]),
            )
        )
        return {"cidr": cidr, "except": [part for part in parts if self.random.random() < 0.5]}

    def peer(self) -> dict[str, Any]:
        return self.random.choice(
            (
                {"podSelector": self.selector()},
                {"namespaceSelector": self.of_namespace()},
                {"namespaceSelector": self.of_namespace(), "podSelector": self.selector()},
                {"ipBlock": self.block()},
            )
        )

    def port(self) -> dict[str, Any]:
        pick = self.random.choice
        first = pick((1, 5432, 8080, 9000))
        return pick(
            (
                {"port": first, "protocol": pick(("TCP", "UDP"))},
                {"port": first, "endPort": first + pick((0, 1, 3000))},
                {"port": pick(("http", "sql", "admin"))},
                {"protocol": pick(("TCP", "SCTP"))},
            )
        )

    def few(self, make: Any, most: int = 2) -> list[Any]:
        return [make() for _ in range(self.random.randint(0, most))]

    def policy(self, name: str) -> NetworkPolicy:
        namespace, _, short = name.partition("/")
        spec = {
            "podSelector": self.selector(),
            "policyTypes": self.random.choice((["Ingress"], ["Egress"], ["Ingress", "Egress"], [])),
            "ingress": self.few(lambda: {"from": self.few(self.peer), "ports": self.few(self.port)}),
            "egress": self.few(lambda: {"to": self.few(self.peer), "ports": self.few(self.port)}),
        }
        meta = {"name": short, "namespace": namespace, "annotations": self.annotations()}
        return msgspec.convert({"metadata": meta, "spec": spec}, NetworkPolicy)

    def annotations(self) -> dict[str, str]:
        """Of a policy: now and then it is in audit."""
        return {"podwire.io/mode": "audit"} if self.random.random() < 0.3 else {}

    def cluster_peer(self, *, egress: bool) -> dict[str, Any]:
        pods = {"namespaceSelector": self.of_namespace(), "podSelector": self.selector()}
        choices: list[dict[str, Any]] = [{"namespaces": self.of_namespace()}, {"pods": pods}]
        if egress:
            choices += [
                {"networks": [self.block()["cidr"]]},
                {"nodes": self.random.choice(({}, {"matchLabels": {"role": "gateway"}}))},
            ]
        if self.random.random() < 0.05:
            choices = [{"domainNames": ["example.com"]}]
        return self.random.choice(choices)

    def protocol(self) -> dict[str, Any]:
        return self.random.choice(
            (
                {"tcp": {"destinationPort": {"number": 8080}}},
                {"udp": {}},
                {"tcp": {"destinationPort": {"range": {"start": 5000, "end": 9000}}}},
                {"destinationNamedPort": "http"},
            )
        )

    def cluster_policy(self, name: str) -> ClusterNetworkPolicy:
        def rule(*, egress: bool) -> dict[str, Any]:
            peers = [self.cluster_peer(egress=egress) for _ in range(self.random.randint(1, 2))]
            action = self.random.choice(("Accept", "Deny", "Pass"))
            return {"action": action, "to" if egress else "from": peers, "protocols": self.few(self.protocol)}

        pods = {"namespaceSelector": self.of_namespace(), "podSelector": self.selector()}
        spec = {
            "tier": self.random.choice(("Admin", "Baseline")),
            "priority": self.random.randint(0, 3),
            "subject": self.random.choice(({"namespaces": self.of_namespace()}, {"pods": pods})),
            "ingress": self.few(lambda: rule(egress=False)),
            "egress": self.few(lambda: rule(egress=True)),
        }
        meta = {"name": name, "annotations": self.annotations()}
        return msgspec.convert({"metadata": meta, "spec": spec}, ClusterNetworkPolicy)

    def change(self) -> None:
        """One change of anything."""
        subject = self.random.choice(
            (self.change_policy, self.change_cluster_policy, self.change_pod, self.change_labels)
        )
        subject()

    def change_policy(self) -> None:
        name = self.random.choice(self.POLICIES)
        rest = tuple(policy for policy in self.world.policies if key_of(policy.metadata) != name)
        created = self.policy(name) if self.random.random() < 0.8 else None
        self.world = msgspec.structs.replace(self.world, policies=rest + ((created,) if created else ()))
        for compiler in self.compilers.values():
            compiler.set_policy(name, created)

    def change_cluster_policy(self) -> None:
        name = self.random.choice(self.CLUSTER_POLICIES)
        rest = tuple(
            cluster_policy for cluster_policy in self.world.cluster_policies if cluster_policy.metadata.name != name
        )
        created = self.cluster_policy(name) if self.random.random() < 0.7 else None
        self.world = msgspec.structs.replace(self.world, cluster_policies=rest + ((created,) if created else ()))
        for compiler in self.compilers.values():
            compiler.set_cluster_policy(name, created)

    def change_pod(self) -> None:
        pod = self.random.choice(self.world.pods)
        rest = tuple(item for item in self.world.pods if item is not pod)
        meta = msgspec.structs.replace(
            pod.metadata,
            labels=self.random.choice(({"app": "web"}, {"app": "db", "tier": ""}, {})),
            deletion_timestamp=self.random.choice((None, None, "2026-01-02T00:00:00Z")),
        )
        phase = self.random.choice(("Running", "Running", "Running", "Failed"))
        status = msgspec.structs.replace(pod.status, phase=phase)
        created = msgspec.structs.replace(pod, metadata=meta, status=status)
        self.put_pods((*rest, created), key_of(meta), created)
        if self.random.random() < 0.3:
            self.twin(created)

    def twin(self, pod: Pod) -> None:
        """Another pod takes over the address before the first is gone; or it goes."""
        name = f"{pod.metadata.name}-twin"
        key = f"{pod.metadata.namespace}/{name}"
        rest = tuple(pod for pod in self.world.pods if key_of(pod.metadata) != key)
        if len(rest) < len(self.world.pods) or pod.metadata.name.endswith("-twin") or pod.spec.host_network:
            self.put_pods(rest, key, None)
            return
        meta = msgspec.structs.replace(
            pod.metadata, name=name, labels={"app": "db"}, creation_timestamp="2026-05-01T00:00:00Z"
        )
        created = msgspec.structs.replace(pod, metadata=meta)
        self.put_pods((*rest, created), key, created)

    def put_pods(self, pods: tuple[Pod, ...], key: str, pod: Pod | None) -> None:
        self.world = msgspec.structs.replace(self.world, pods=pods)
        for compiler in self.compilers.values():
            compiler.set_pod(key, pod)

    def change_labels(self) -> None:
        name = self.random.choice(("shop", "blog"))
        labels = self.random.choice(({}, {"team": "press"}))
        rest = tuple(namespace for namespace in self.world.namespaces if namespace.metadata.name != name)
        obj = Object(metadata=ObjectMeta(name=name, labels=labels))
        nodes: tuple[Node, ...] = self.world.nodes
        if self.random.random() < 0.5:
            turned = {"role": self.random.choice(("gateway", "worker"))}
            first = msgspec.structs.replace(
                nodes[0], metadata=msgspec.structs.replace(nodes[0].metadata, labels=turned)
            )
            nodes = (first, *nodes[1:])
        self.world = msgspec.structs.replace(self.world, namespaces=(*rest, obj), nodes=nodes)
        for compiler in self.compilers.values():
            compiler.set_namespace(name, labels)
            compiler.set_node(nodes[0].metadata.name, nodes[0])

    def connections(self) -> Iterator[Connection]:
        """Some connections between all kinds of ends."""
        addresses = [address for pod in self.world.pods for address in pod.addresses]
        addresses += ["192.168.99.1", "fd99::2", "203.0.113.9", "203.0.113.1", "10.180.0.77"]
        parties = {address: self.world.party(address) for address in addresses}
        for _ in range(25):
            item, other = (self.random.choice(addresses) for _ in range(2))
            if (":" in item) == (":" in other):
                ports = (
                    (8080, "TCP"),
                    (8081, "TCP"),
                    (5432, "UDP"),
                    (9090, "TCP"),
                    (1, "SCTP"),
                    (0, "ICMP"),
                    (5432, "TCP"),
                )
                port, protocol = self.random.choice(ports)
                yield Connection(source=parties[item], destination=parties[other], protocol=protocol, port=port)


def _base() -> str:
    return (FOLDER / "world.yaml").read_text()


@pytest.mark.parametrize("seed", range(40))
def test_a_cluster_that_changes(seed: int) -> None:
    chaos = Chaos(seed)
    for step in range(25):
        for _ in range(1 + step % 3):
            chaos.change()
        for compiler in chaos.compilers.values():
            compiler.flush()
        for connection in chaos.connections():
            agree(chaos.world, chaos.compilers, connection, EvaluationOptions())


@pytest.mark.parametrize("seed", range(20))
def test_incremental_compile_equals_full_compile_and_reports_changes(seed: int) -> None:
    chaos = Chaos(1000 + seed)
    mirror: dict[str, Any] = {name: copy(compiler) for name, compiler in chaos.compilers.items()}
    for _ in range(25):
        chaos.change()
        for name, compiler in chaos.compilers.items():
            follow(mirror[name], compiler, compiler.flush())
            assert copy(compiler) == mirror[name]
            assert current(compiler) == current(compile_world(chaos.world, name))
            assert not compiler.flush()


def copy(compiler: Compiler) -> dict[str, Any]:
    """All that a data plane would program."""
    profiles = {
        key: [created.peers.hosts, tables(created, 4), tables(created, 6), created.peers.default]
        for key, created in compiler.profiles.items()
    }
    return {"pods": dict(compiler.pods), "profiles": profiles}


def current(compiler: Compiler) -> dict[str, Any]:
    """All that a data plane would program, with profiles named by the current selectors of their pods."""

    def now(key: ProfileKey | None) -> ProfileKey | None:
        if key is None:
            return None
        return msgspec.structs.replace(key, subjects=compiler.profiles[key].subjects, copy=0)

    pods = {
        key: msgspec.structs.replace(pod, ingress=now(pod.ingress), egress=now(pod.egress))
        for key, pod in compiler.pods.items()
    }
    return {"pods": pods, "profiles": {now(key): profile for key, profile in copy(compiler)["profiles"].items()}}


def tables(profile: Profile, family: int) -> list[tuple[int, int, PortTable]]:
    return [(first, last, group.table) for first, last, group in profile.peers.ranges(family)]


def follow(mirror: dict[str, Any], compiler: Compiler, delta: PolicyDelta) -> None:
    """Takes over only what a delta names, as a data plane does."""
    now = copy(compiler)
    for key, pod in delta.pods.items():
        if pod is None:
            del mirror["pods"][key]
        else:
            mirror["pods"][key] = pod
    for profile in delta.ended:
        del mirror["profiles"][profile]
    for profile in delta.new_profiles:
        mirror["profiles"][profile] = now["profiles"][profile]
    for profile in delta.hosts.keys() | delta.groups.keys():
        groups = delta.groups.get(profile, set())
        surround(mirror["profiles"][profile], now["profiles"][profile], compiler.profiles[profile], delta)
        addresses = {address for group in groups for address in group.all_addresses()}
        hosts = mirror["profiles"][profile][0]
        for address in addresses | delta.hosts.get(profile, set()):
            hosts.pop(address, None)
            if address in now["profiles"][profile][0]:
                hosts[address] = now["profiles"][profile][0][address]


def surround(mirror: list[Any], now: list[Any], profile: Profile, delta: PolicyDelta) -> None:
    """Takes over the ranges in the regions that a delta names, and those of changed groups of the surroundings."""
    groups, regions = delta.groups.get(profile.key, set()), delta.ranges.get(profile.key, {})
    for place, family in ((1, 4), (2, 6)):
        own = regions.get(family, ())
        kept = [
            entry for entry in mirror[place] if not any(entry[0] <= last and first <= entry[1] for first, last in own)
        ]
        new = [entry for entry in now[place] if any(entry[0] <= last and first <= entry[1] for first, last in own)]
        changed = {first: group.table for first, _, group in profile.peers.ranges(family) if group in groups}
        mirror[place] = [
            (first, last, changed.get(first, table)) for first, last, table in sorted(kept + new, key=_first)
        ]
    if profile.peers.surroundings() in groups:
        mirror[3] = now[3]


def _first(entry: tuple[int, int, PortTable]) -> int:
    return entry[0]


def test_pods_with_the_same_policies_share_a_profile() -> None:
    case = next(
        case for case in CASES if case.name == "pods of the policy's namespace, of chosen namespaces, and of all"
    )
    twin = next(pod for pod in case.world.pods if key_of(pod.metadata) == "shop/db")
    meta = msgspec.structs.replace(twin.metadata, name="db-2")
    status = msgspec.structs.replace(twin.status, pod_ip="10.180.0.9", pod_ips=())
    compiler = compile_world(case.world, "n1")
    before = len(compiler.profiles)
    compiler.set_pod("shop/db-2", msgspec.structs.replace(twin, metadata=meta, status=status))
    delta = compiler.flush()
    assert len(compiler.profiles) == before
    assert list(delta.pods) == ["shop/db-2"]
    assert not delta.new_profiles


def test_labels_of_pods_that_are_gone_do_not_pile_up() -> None:
    compiler = compile_world(CASES[0].world, "n1")
    compiler.set_policy("shop/a", msgspec.convert({"metadata": {"name": "a", "namespace": "shop"}}, NetworkPolicy))
    job = next(pod for pod in CASES[0].world.pods if key_of(pod.metadata) == "shop/web")
    for number in range(1000):
        meta = msgspec.structs.replace(job.metadata, name="job", labels={"job": str(number)})
        compiler.set_pod("shop/job", msgspec.structs.replace(job, metadata=meta))
        compiler.flush()
    assert compiler.remembered_labels("shop") < 100


def test_labels_count_from_the_moment_that_a_policy_mentions_them() -> None:
    case = next(item for item in CASES if item.name == "without a policy everything passes")
    compiler = compile_world(case.world, "n1")
    web = next(pod for pod in case.world.pods if key_of(pod.metadata) == "shop/web")
    for number in (0, 1):
        labels = {"app": "web", "pod-name": f"web-{number}"}
        meta = msgspec.structs.replace(web.metadata, name=f"web-{number}", labels=labels)
        status = msgspec.structs.replace(web.status, pod_ip=f"10.180.7.{number}", pod_ips=())
        compiler.set_pod(f"shop/web-{number}", msgspec.structs.replace(web, metadata=meta, status=status))

    def let_in(labels: dict[str, str]) -> set[str]:
        peer = {"podSelector": {"matchLabels": labels}}
        spec = {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": [peer]}]}
        created = {"metadata": {"name": "in", "namespace": "shop"}, "spec": spec}
        compiler.set_policy("shop/in", msgspec.convert(created, NetworkPolicy))
        compiler.flush()
        key = compiler.pods["shop/db"].ingress
        assert key is not None
        return {address for address in compiler.profiles[key].peers.hosts if address.startswith("10.180.7.")}

    assert let_in({"app": "web"}) == {"10.180.7.0", "10.180.7.1"}
    assert let_in({"pod-name": "web-1"}) == {"10.180.7.1"}
    assert let_in({"app": "web"}) == {"10.180.7.0", "10.180.7.1"}


def test_pods_that_the_same_policies_select_share_a_choice() -> None:
    """A policy for many pods costs one sorted list of policies, not one for each pod."""
    case = next(case for case in CASES if case.name == "a policy without rules isolates")
    compiler = compile_world(case.world, "n1")
    spec = {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}
    everyone = msgspec.convert({"metadata": {"name": "all", "namespace": "shop"}, "spec": spec}, NetworkPolicy)
    web = case.world.pods[0]
    twin = msgspec.structs.replace(
        web,
        metadata=msgspec.structs.replace(web.metadata, name="twin"),
        status=msgspec.structs.replace(web.status, pod_ip="10.180.0.77", pod_ips=()),
    )
    compiler.set_pod("shop/twin", twin)
    compiler.flush()
    compiler.set_policy("shop/all", everyone)
    delta = compiler.flush()
    assert key_of(web.metadata) in delta.pods
    assert all(key.startswith("shop/") for key in delta.pods)
    assert compiler.pods["shop/twin"].ingress is compiler.pods[key_of(web.metadata)].ingress is not None
    compiler.set_policy("shop/all", None)
    assert set(compiler.flush().pods) == set(delta.pods)
