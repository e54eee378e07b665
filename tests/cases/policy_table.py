"""The packet table of policies: ``tests/cases/policies/*.yaml`` as API objects and expected verdicts.

Every policy data plane runs every case; the reference evaluator is held against the same table. The cluster that the
cases speak of is in ``world.yaml``; a case may add pods, replace labels and end pods.
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml

from podwire.cluster.world import World
from podwire.model.meta import Object, ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeStatus
from podwire.model.pod import Container, ContainerPort, Pod, PodIP, PodSpec, PodStatus
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.policy.connectionmatch import Connection


class Check(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """One connection attempt and its verdict."""

    source: str
    """A pod, ``node/NAME``, ``outside`` or an address."""
    target: str
    port: str
    """``number/PROTOCOL``, or a protocol without ports."""
    allowed: bool
    ingress: str = ""
    """The decision at the destination: a policy and the index of its rule (``shop/db 0``), ``no rule`` or ``none``."""
    egress: str = ""
    """The decision at the source."""
    audit: str = ""
    """The policies in audit that would drop it: ``shop/a, shop/b``, or a cluster policy and the index of its rule;
    ``none`` when none would."""
    families: tuple[int, ...] = (4, 6)

    def __str__(self) -> str:
        return f"{self.source} to {self.target} {self.port}"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster with policies, and the expected verdicts on connections."""

    name: str
    world: World
    checks: tuple[Check, ...]
    outside: tuple[str, str]
    own_node_egress: bool = True

    def connection(self, check: Check, family: int) -> Connection:
        """The connection of a check in family 4 or 6."""
        number, _, protocol = check.port.rpartition("/")
        return Connection(
            source=self.world.party(self.address(check.source, family)),
            destination=self.world.party(self.address(check.target, family)),
            protocol=protocol,
            port=int(number or 0),
        )

    def address(self, name: str, family: int) -> str:
        """The address of one end."""
        if name == "outside":
            return self.outside[family == 6]
        kind, _, rest = name.partition("/")
        if kind == "node":
            node = next(node for node in self.world.nodes if node.metadata.name == rest)
            return node.internal_ips[family == 6]
        for pod in self.world.pods:
            if f"{pod.metadata.namespace}/{pod.metadata.name}" == name:
                return pod.addresses[family == 6]
        return name


@cache
def read_cases(folder: Path) -> tuple[Case, ...]:
    """The cases of all files of a folder, in the order of their names."""
    base = yaml.load((folder / "world.yaml").read_text(), yaml.CSafeLoader)
    files = sorted(path for path in folder.glob("*.yaml") if path.name != "world.yaml")
    documents = (yaml.load(path.read_text(), yaml.CSafeLoader) for path in files)
    return tuple(parse_case(item, base) for document in documents for item in document)


def parse_case(document: dict[str, Any], base: dict[str, Any]) -> Case:
    """One case, as it stands in a file, in the cluster of ``base``."""
    nodes = tuple(_node(entry) for entry in base["nodes"])
    addresses = {node.metadata.name: node.internal_ips for node in nodes}
    changes = document.get("pods", {})
    pods = [{**entry, **changes.get(entry["name"], {})} for entry in base["pods"]]
    pods += [{"name": name, **entry} for name, entry in changes.items() if "addresses" in entry]
    labels = document.get("namespaces", {})
    namespaces = ({**entry, "labels": labels.get(entry["name"], entry["labels"])} for entry in base["namespaces"])
    policies = document.get("policies", ())
    cluster = (policy for policy in policies if "tier" in policy["spec"])
    plain = (policy for policy in policies if "tier" not in policy["spec"])
    return Case(
        name=document["name"],
        world=World(
            pods=tuple(_pod(entry, addresses) for entry in pods),
            namespaces=tuple(
                Object(metadata=ObjectMeta(name=entry["name"], labels=entry["labels"])) for entry in namespaces
            ),
            nodes=nodes,
            policies=tuple(msgspec.convert(_named(policy), NetworkPolicy) for policy in plain),
            cluster_policies=tuple(msgspec.convert(_named(policy), ClusterNetworkPolicy) for policy in cluster),
        ),
        checks=msgspec.convert(document["checks"], tuple[Check, ...]),
        outside=tuple(base["outside"]),
        own_node_egress=document.get("ownNodeEgress", True),
    )


def _named(policy: dict[str, Any]) -> dict[str, Any]:
    namespace, _, name = policy["name"].rpartition("/")
    meta = {"name": name, "namespace": namespace, "annotations": policy.get("annotations", {})}
    return {"metadata": meta, "spec": policy["spec"]}


def _node(entry: dict[str, Any]) -> Node:
    internal = (NodeAddress(type="InternalIP", address=address) for address in entry["addresses"])
    listed = (*internal, NodeAddress(type="Hostname", address=entry["name"]))
    return Node(
        metadata=ObjectMeta(name=entry["name"], labels=entry["labels"]),
        status=NodeStatus(addresses=listed),
    )


def _pod(entry: dict[str, Any], nodes: dict[str, tuple[str, ...]]) -> Pod:
    namespace, _, name = entry["name"].partition("/")
    addresses = tuple(entry.get("addresses", ())) or nodes[entry["node"]]
    containers = (Container(name="main", ports=_ports(entry.get("ports", ()))),)
    inits = (
        Container(name="sidecar", restart_policy="Always", ports=_ports(entry.get("sidecarPorts", ()))),
        Container(name="init", ports=_ports(entry.get("initPorts", ()))),
    )
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            labels=entry["labels"],
            creation_timestamp=entry.get("created", "2026-01-01T00:00:00Z"),
            deletion_timestamp=entry.get("deleted"),
        ),
        spec=PodSpec(
            node_name=entry["node"],
            host_network=entry.get("hostNetwork", False),
            containers=containers,
            init_containers=inits,
        ),
        status=PodStatus(
            phase=entry.get("phase", "Running"),
            pod_ip=addresses[0],
            pod_ips=tuple(PodIP(ip=address) for address in addresses),
        ),
    )


def _ports(entries: Any) -> tuple[ContainerPort, ...]:
    return msgspec.convert(entries, tuple[ContainerPort, ...])
