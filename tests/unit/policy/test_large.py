"""The compiler at 10,000 pods and 1,000 policies, against the evaluator on random pairs, before and after changes."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.unit.policy.test_compile import compiled, ruling_of, sides

from podwire.cluster.world import Party, World
from podwire.model.meta import Object, ObjectMeta, key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.compile import compile_world
from podwire.policy.connectionmatch import Connection
from podwire.policy.evaluate import EvaluationOptions, decide

PODS, POLICIES, CLUSTER_POLICIES, NAMESPACES, NODES = 10_000, 1_000, 10, 50, 200
PORTS = (53, 80, 443, 5432, 8080)


class Large:
    """A large cluster of one family, as node ``n0`` compiles it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pods = [self.pod(number) for number in range(PODS)]
        self.policies = [self.policy(number) for number in range(POLICIES)]
        self.world = World(
            pods=tuple(self.pods),
            namespaces=tuple(
                Object(metadata=ObjectMeta(name=f"ns{number}", labels={"team": f"t{number % 7}"}))
                for number in range(NAMESPACES)
            ),
            nodes=tuple(self.node(number) for number in range(NODES)),
            policies=tuple(self.policies),
            cluster_policies=tuple(self.cluster_policy(number) for number in range(CLUSTER_POLICIES)),
        )
        self.compiler = compile_world(self.world, "n0")

    def pod(self, number: int) -> Pod:
        app = number // NAMESPACES % 12
        ports = [{"name": "http", "containerPort": 8080 + number % 2}, {"containerPort": 5432, "name": "sql"}]
        ips = [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"]
        labels = {"app": f"a{app}", "tier": f"t{number % 3}"}
        return msgspec.convert(
            {
                "metadata": {"name": f"p{number}", "namespace": f"ns{number % NAMESPACES}", "labels": labels},
                "spec": {"nodeName": f"n{self.random.randrange(NODES)}", "containers": [{"name": "c", "ports": ports}]},
                "status": {"phase": "Running", "podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]},
            },
            Pod,
        )

    def node(self, number: int) -> Node:
        addresses = [{"type": "InternalIP", "address": f"192.168.0.{number}"}]
        labels = {"role": "gateway"} if number % 10 == 0 else {}
        return msgspec.convert(
            {"metadata": {"name": f"n{number}", "labels": labels}, "status": {"addresses": addresses}}, Node
        )

    def app(self) -> dict[str, Any]:
        return {"matchLabels": {"app": f"a{self.random.randrange(12)}"}}

    def peer(self) -> dict[str, Any]:
        pick = self.random.choice
        block = {"cidr": pick(("10.0.0.0/20", "10.0.16.0/21", "192.168.0.0/25", "0.0.0.0/0"))}
        team = {"matchLabels": {"team": f"t{self.random.randrange(7)}"}}
        return pick(
            (
                {"podSelector": self.app()},
                {"podSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["t1"]}]}},
                {"namespaceSelector": team},
                {"namespaceSelector": team, "podSelector": self.app()},
                {"ipBlock": block},
            )
        )

    def rules(self, word: str) -> list[dict[str, Any]]:
        ports = ({"port": "http"}, {"port": 5432}, {"port": 53, "protocol": "UDP"}, {"port": 80, "endPort": 9000})
        return [
            {word: [self.peer() for _ in range(2)], "ports": self.random.sample(ports, self.random.randint(0, 2))}
            for _ in range(self.random.randint(1, 3))
        ]

    def policy(self, number: int) -> NetworkPolicy:
        spec = {
            "podSelector": self.app() if number % 20 else {},
            "policyTypes": ["Ingress", "Egress"] if number % 3 else ["Ingress"],
            "ingress": self.rules("from"),
            "egress": self.rules("to"),
        }
        meta = {"name": f"pol{number}", "namespace": f"ns{number % NAMESPACES}"}
        return msgspec.convert({"metadata": meta, "spec": spec}, NetworkPolicy)

    def cluster_policy(self, number: int) -> ClusterNetworkPolicy:
        team = {"namespaces": {"matchLabels": {"team": f"t{self.random.randrange(7)}"}}}
        action = self.random.choice(("Accept", "Deny", "Pass"))
        spec = {
            "tier": "Admin" if number % 2 else "Baseline",
            "priority": number,
            "subject": team,
            "ingress": [{"action": action, "from": [team], "protocols": [{"destinationNamedPort": "sql"}]}],
            "egress": [{"action": action, "to": [{"nodes": {"matchLabels": {"role": "gateway"}}}]}],
        }
        return msgspec.convert({"metadata": {"name": f"c{number}"}, "spec": spec}, ClusterNetworkPolicy)

    def connections(self, count: int) -> Iterator[Connection]:
        """Between a pod of the node and anybody."""
        own = [pod for pod in self.pods if pod.spec.node_name == "n0"]
        for _ in range(count):
            pod, other = self.random.choice(own), self.random.choice(self.pods)
            ends = [self.party(pod), self.party(other)]
            if self.random.random() < 0.2:
                node = self.random.choice(self.world.nodes)
                ends[1] = Party(address=node.internal_ips[0], node=node.metadata.name)
            self.random.shuffle(ends)
            protocol = self.random.choice(("TCP", "TCP", "UDP", "SCTP", "ICMP"))
            port = 0 if protocol == "ICMP" else self.random.choice((*PORTS, 8081))
            yield Connection(source=ends[0], destination=ends[1], protocol=protocol, port=port)

    def party(self, pod: Pod) -> Party:
        return Party(address=pod.addresses[0], node=pod.spec.node_name, pod=pod)

    def agree(self, count: int) -> set[str]:
        """Compares some connections; the policies that decided."""
        result = set()
        for connection in self.connections(count):
            for direction, subject, peer in sides(connection):
                if subject.node != "n0":
                    continue
                expected = ruling_of(decide(self.world, connection, direction, EvaluationOptions()))
                assert compiled(self.compiler, direction, subject, peer, connection) == expected, connection
                result.add(expected[1])
        return result

    def change(self) -> None:
        """Other policies, and other labels of pods."""
        for number in self.random.sample(range(POLICIES), 5):
            self.policies[number] = self.policy(number)
            self.compiler.set_policy(key_of(self.policies[number].metadata), self.policies[number])
        for number in self.random.sample(range(PODS), 20):
            pod = self.pods[number]
            meta = msgspec.structs.replace(pod.metadata, labels={**pod.metadata.labels, "app": "a1"})
            self.pods[number] = msgspec.structs.replace(pod, metadata=meta)
            self.compiler.set_pod(key_of(meta), self.pods[number])
        self.world = msgspec.structs.replace(self.world, pods=tuple(self.pods), policies=tuple(self.policies))


@pytest.fixture(scope="module")
def large() -> Large:
    return Large(1)


def test_a_large_cluster(large: Large) -> None:
    assert 30 < len(large.compiler.pods) < 70
    assert len(large.agree(2000)) > 30


def test_a_large_cluster_that_changes(large: Large) -> None:
    for _ in range(3):
        large.change()
        delta = large.compiler.flush()
        assert delta
        assert len(delta.new_profiles) < len(large.compiler.profiles)
        large.agree(500)
