"""Random policies of both kinds, and random connections, from a seed: the same seed gives the same.

They are made for the cluster of the packet table (:mod:`tests.cases.policy_table`), so that every one can be judged
by the evaluator, followed through rules, and tried with real packets. Labels, ports and ranges are few, so that rules
meet, overlap and contradict each other often. The ports that are tried are those at the borders of what rules say.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from podwire.cluster.names import POLICY_MODE
from podwire.cluster.world import World
from podwire.model.meta import Object, key_of
from podwire.model.pod import Container, ContainerPort, Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.connectionmatch import Connection

T = TypeVar("T")

NAMESPACES = ("shop", "blog", "ops")
BLOCKS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("0.0.0.0/0", ("192.168.99.1/32", "10.180.0.0/16", "203.0.113.8/29")),
    ("10.180.0.0/16", ("10.180.0.0/24", "10.180.1.2/32")),
    ("10.180.1.0/25", ("10.180.1.2/31",)),
    ("10.180.0.2/32", ()),
    ("203.0.113.0/24", ("203.0.113.8/29",)),
    ("192.168.99.2/32", ()),
    ("::/0", ("fd18::/64", "2001:db8::/64")),
    ("fd18::/16", ("fd18:1::/64", "fd18::2/128")),
    ("fd18:1::2/128", ()),
    ("2001:db8::/32", ("2001:db8:1::/48",)),
)
"""Ranges, and their possible exceptions."""
NUMBERS = (1, 53, 5432, 8080, 8081, 9090, 65535)
NAMES = ("http", "sql", "admin", "sql-udp", "mesh")
PROTOCOLS = ("TCP", "UDP", "SCTP")
TRIED = (1, 2, 53, 80, 5431, 5432, 5433, 6000, 8079, 8080, 8081, 8082, 9090, 15000, 65535)
"""Ports of connections: those of rules and their neighbours."""
STRANGERS = ("203.0.113.9", "203.0.113.1", "2001:db8::9", "2001:db8:1::1")
"""Addresses outside of the cluster."""


class Choices:
    """Random choices from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, choices: Sequence[T]) -> T:
        """One of several values."""
        return self._random.choice(choices)

    def often(self, share: float) -> bool:
        """True in this share of the calls."""
        return self._random.random() < share

    def sample(self, names: Sequence[str]) -> list[str]:
        """Some of the names."""
        return [name for name in names if self.often(0.6)]

    def few(self, make: Callable[[], T], least: int = 0, most: int = 3) -> list[T]:
        """The results of a few calls."""
        return [make() for _ in range(self._random.randint(least, most))]

    def subset(self, values: Sequence[T], most: int) -> list[T]:
        """Different values, at most ``most``."""
        return self._random.sample(values, self._random.randint(0, most))

    def number(self, least: int, most: int) -> int:
        """A number from ``least`` to ``most``."""
        return self._random.randint(least, most)

    def mixed(self, old: Sequence[Any], new: Sequence[Any]) -> tuple[Any, ...]:
        """Combines two lists by name: each object comes from one of them, or is left out."""
        result = {key_of(item.metadata): item for item in new if self.often(0.5)}
        result |= {key_of(item.metadata): item for item in old if self.often(0.7)}
        return tuple(result.values())


class RandomPolicies:
    """Policies, labels and ports for the pods of a cluster; each call of :meth:`world` gives the next one."""

    def __init__(self, base: World, seed: int) -> None:
        """``base`` gives nodes, namespaces, and pods with their addresses."""
        self._base = base
        self._choices = Choices(seed)

    def world(self) -> World:
        """The cluster with other policies, labels and ports."""
        return World(
            pods=tuple(self._pod(pod) for pod in self._base.pods),
            namespaces=tuple(self._namespace(namespace) for namespace in self._base.namespaces),
            nodes=self._base.nodes,
            policies=tuple(
                self._policy(name) for name in self._choices.sample(("shop/a", "shop/b", "shop/c", "blog/a", "ops/a"))
            ),
            cluster_policies=tuple(self._cluster_policy(name) for name in self._choices.sample(("x", "y", "z"))),
        )

    def changed(self, world: World) -> World:
        """The same cluster with some of its policies replaced, gone or new, and other labels of a pod."""
        other = self.world()
        policies = self._choices.mixed(world.policies, other.policies)
        cluster_policies = self._choices.mixed(world.cluster_policies, other.cluster_policies)
        pods = tuple(
            self._choices.pick((pod, pod, pod, again)) for pod, again in zip(world.pods, other.pods, strict=True)
        )
        result = msgspec.structs.replace(world, policies=policies, cluster_policies=cluster_policies)
        return msgspec.structs.replace(result, pods=pods)

    def connections(self, world: World, count: int) -> Iterator[Connection]:
        """Connections between pods, nodes and the outside; no pod to itself."""
        addresses = [address for pod in world.pods if not pod.spec.host_network for address in pod.addresses]
        addresses += [address for node in world.nodes for address in node.internal_ips]
        addresses += STRANGERS
        parties = {address: world.party(address) for address in addresses}
        created = 0
        while created < count:
            source, destination = parties[self._choices.pick(addresses)], parties[self._choices.pick(addresses)]
            both = {":" in source.address, ":" in destination.address}
            if len(both) > 1 or source.name == destination.name or (source.pod is None and destination.pod is None):
                continue
            created += 1
            protocol = self._choices.pick((*PROTOCOLS, "TCP", "UDP", "ICMP"))
            port = 0 if protocol == "ICMP" else self._choices.pick(TRIED)
            yield Connection(source=source, destination=destination, protocol=protocol, port=port)

    def _pod(self, pod: Pod) -> Pod:
        labels = self._choices.pick(
            ({"app": "web"}, {"app": "web", "tier": "front"}, {"app": "db"}, {"app": "db", "tier": ""}, {})
        )
        names = self._choices.subset(NAMES, 3)
        ports = tuple(
            ContainerPort(name=name, container_port=self._choices.pick(NUMBERS), protocol=self._choices.pick(PROTOCOLS))
            for name in names
        )
        spec = msgspec.structs.replace(pod.spec, containers=(Container(name="main", ports=ports),), init_containers=())
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels), spec=spec)

    def _namespace(self, namespace: Object) -> Object:
        labels = self._choices.pick(({}, {"team": "press"}, {"team": "sales"}, {"team": "press", "stage": ""}))
        return msgspec.structs.replace(namespace, metadata=msgspec.structs.replace(namespace.metadata, labels=labels))

    def _selector(self) -> dict[str, Any]:
        return self._choices.pick(
            (
                {},
                {"matchLabels": {"app": self._choices.pick(("web", "db"))}},
                {"matchLabels": {"app": "db", "tier": ""}},
                {
                    "matchExpressions": [
                        {"key": "app", "operator": self._choices.pick(("NotIn", "In")), "values": ["web", "x"]}
                    ]
                },
                {"matchExpressions": [{"key": "tier", "operator": self._choices.pick(("Exists", "DoesNotExist"))}]},
            )
        )

    def _of_namespace(self) -> dict[str, Any]:
        return self._choices.pick(
            (
                {},
                {"matchLabels": {"team": self._choices.pick(("press", "sales"))}},
                {"matchLabels": {"kubernetes.io/metadata.name": self._choices.pick(NAMESPACES)}},
                {"matchExpressions": [{"key": "stage", "operator": "DoesNotExist"}]},
            )
        )

    def _block(self) -> dict[str, Any]:
        cidr, parts = self._choices.pick(BLOCKS)
        return {"cidr": cidr, "except": [part for part in parts if self._choices.often(0.5)]}

    def _peer(self) -> dict[str, Any]:
        return self._choices.pick(
            (
                {"podSelector": self._selector()},
                {"namespaceSelector": self._of_namespace()},
                {"namespaceSelector": self._of_namespace(), "podSelector": self._selector()},
                {"ipBlock": self._block()},
            )
        )

    def _port(self) -> dict[str, Any]:
        first, protocol = self._choices.pick(NUMBERS), self._choices.pick(PROTOCOLS)
        return self._choices.pick(
            (
                {"port": first, "protocol": protocol},
                {
                    "port": first,
                    "endPort": self._choices.pick([n for n in NUMBERS if n >= first]),
                    "protocol": protocol,
                },
                {"port": self._choices.pick(NAMES), "protocol": protocol},
                {"protocol": protocol},
            )
        )

    def _policy(self, name: str) -> NetworkPolicy:
        namespace, _, short = name.partition("/")
        spec = {
            "podSelector": self._selector(),
            "policyTypes": self._choices.pick((["Ingress"], ["Egress"], ["Ingress", "Egress"], [])),
            "ingress": self._choices.few(
                lambda: {"from": self._choices.few(self._peer, 0, 2), "ports": self._choices.few(self._port, 0, 2)}
            ),
            "egress": self._choices.few(
                lambda: {"to": self._choices.few(self._peer, 0, 2), "ports": self._choices.few(self._port, 0, 2)}
            ),
        }
        meta = {"name": short, "namespace": namespace, "annotations": self._annotations()}
        return msgspec.convert({"metadata": meta, "spec": spec}, NetworkPolicy)

    def _annotations(self) -> dict[str, str]:
        """Of a policy: one of eight is in audit."""
        return {POLICY_MODE: "audit"} if self._choices.often(0.125) else {}

    def _cluster_peer(self, *, egress: bool) -> dict[str, Any]:
        pods = {"namespaceSelector": self._of_namespace(), "podSelector": self._selector()}
        choices: list[dict[str, Any]] = [{"namespaces": self._of_namespace()}, {"pods": pods}]
        if egress:
            choices += [
                {"networks": [self._choices.pick(BLOCKS)[0]]},
                {
                    "nodes": self._choices.pick(
                        ({}, {"matchLabels": {"role": self._choices.pick(("gateway", "worker"))}})
                    )
                },
            ]
        return {"domainNames": ["example.com"]} if self._choices.often(0.03) else self._choices.pick(choices)

    def _protocol(self) -> dict[str, Any]:
        first = self._choices.pick(NUMBERS)
        last = self._choices.pick([n for n in NUMBERS if n >= first])
        return self._choices.pick(
            (
                {self._choices.pick(("tcp", "udp", "sctp")): {"destinationPort": {"number": first}}},
                {
                    self._choices.pick(("tcp", "udp", "sctp")): {
                        "destinationPort": {"range": {"start": first, "end": last}}
                    }
                },
                {self._choices.pick(("tcp", "udp", "sctp")): {}},
                {"destinationNamedPort": self._choices.pick(NAMES)},
            )
        )

    def _cluster_rule(self, *, egress: bool) -> dict[str, Any]:
        peers = self._choices.few(lambda: self._cluster_peer(egress=egress), 1, 2)
        action = self._choices.pick(("Accept", "Deny", "Pass"))
        return {
            "action": action,
            "to" if egress else "from": peers,
            "protocols": self._choices.few(self._protocol, 0, 2),
        }

    def _cluster_policy(self, name: str) -> ClusterNetworkPolicy:
        pods = {"namespaceSelector": self._of_namespace(), "podSelector": self._selector()}
        spec = {
            "tier": self._choices.pick(("Admin", "Baseline")),
            "priority": self._choices.number(0, 2),
            "subject": self._choices.pick(({"namespaces": self._of_namespace()}, {"pods": pods})),
            "ingress": self._choices.few(lambda: self._cluster_rule(egress=False)),
            "egress": self._choices.few(lambda: self._cluster_rule(egress=True)),
        }
        return msgspec.convert(
            {"metadata": {"name": name, "annotations": self._annotations()}, "spec": spec}, ClusterNetworkPolicy
        )
