"""Assigns the pods of a case to the nodes of a cluster, and computes the cluster that cases need (pure)."""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import msgspec

from podwire.errors import ConfigError
from podwire.local.conformance.casefile import CaseFile
from podwire.local.conformance.families import PREFIX, embedded_range
from podwire.local.conformance.stage import CasePod, Stage
from podwire.model.node import Node
from podwire.model.wording import count

POD_NETWORK = IPv4Network("10.244.0.0/16")
MOST_NODES = 16
_RANGE_LENGTH = 24
"""The prefix length of a node's pod range."""


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the cluster."""

    name: str
    ranges: tuple[str, ...]
    addresses: tuple[str, ...]
    labels: dict[str, str] = {}

    def owns(self, address: str) -> bool:
        """Whether an address lies in one of this node's pod ranges."""
        return any(ip_address(address) in ip_network(text) for text in self.ranges)

    def address(self, family: int) -> str:
        """The node's own address of a family, empty when it has none."""
        return next((text for text in self.addresses if (":" in text) == (family == 6)), "")


def cluster_nodes(nodes: Iterable[Node]) -> tuple[ClusterNode, ...]:
    """The nodes of a cluster that have a pod range, by name."""
    return tuple(
        ClusterNode(
            name=node.metadata.name,
            ranges=node.pod_cidrs,
            addresses=node.internal_ips,
            labels=node.metadata.labels,
        )
        for node in sorted(nodes, key=lambda node: node.metadata.name)
        if node.pod_cidrs
    )


class Placing:
    """Which nodes of the cluster the pods and nodes of one case are assigned to."""

    def __init__(self, stage: Stage, nodes: tuple[ClusterNode, ...]) -> None:
        self._nodes = nodes
        self.by_address: dict[str, ClusterNode] = {}
        """The cluster's nodes, by the node addresses that the case names."""
        addresses = [node.address for node in stage.nodes]
        for pod in stage.pods.values():
            if pod.node_address and not pod.host_network and (owner := self._owner(pod.address)):
                self.by_address.setdefault(pod.node_address, owner)
            addresses += [pod.node_address or pod.address] * pod.host_network
        for address in dict.fromkeys(addresses):
            free = [node for node in nodes if node not in self.by_address.values()]
            if address not in self.by_address and free:
                self.by_address[address] = free[0]

    def _owner(self, address: str) -> ClusterNode | None:
        return next((node for node in self._nodes if node.owns(address)), None)

    def node_of(self, pod: CasePod) -> ClusterNode:
        """The node of a pod: the node whose pod range contains the pod's address.

        Raises: ValueError when there is none.
        """
        if pod.host_network:
            node = self.by_address.get(pod.node_address or pod.address)
            problem = f"the cluster has {count(len(self._nodes), 'node')}, and no node is free for {pod.node_address}"
        else:
            node = self._owner(pod.address)
            ranges = ", ".join(text for node in self._nodes for text in node.ranges if ":" not in text)
            problem = f"{pod.address} is in no pod range of the cluster's nodes ({ranges})"
        if node is None:
            raise ValueError(problem)
        if pod.ipv6 and not pod.host_network and not node.owns(pod.ipv6):
            ranges = ", ".join(node.ranges)
            raise ValueError(f"{pod.ipv6} is in no pod range of {node.name} ({ranges}), which has {pod.address}")
        return node


def cluster_for(files: Sequence[CaseFile]) -> tuple[int, tuple[str, str]]:
    """The number of nodes and the pod networks (IPv4, IPv6) that the cases of the files need.

    Raises: ConfigError when their addresses lie too far apart.
    """
    pods = [(file.source, case, pod) for file in files for case, pod in _pods(file)]
    network = _network_of(pods[0][2].address) if pods else POD_NETWORK
    six = _six_of(files, network)
    most = max((len(case.initial.nodes) for file in files for case in file.cases), default=0)
    for source, case, pod in pods:
        place, key = f"{source}: case {case}", f"pod {pod.key}"
        address = IPv4Address(pod.address)
        number = _number(address)
        if address not in network or number >= MOST_NODES:
            last = network[(MOST_NODES << (32 - _RANGE_LENGTH)) - 1]
            problem = (
                f"{pod.address}: expected an address from {network[0]} to {last}, a /{_RANGE_LENGTH} for each node"
            )
            raise ConfigError(place, key, problem)
        if pod.ipv6 and (IPv6Address(pod.ipv6) not in six or _number(IPv6Address(pod.ipv6)) != number):
            first = int(six.network_address) + (number << (32 - _RANGE_LENGTH))
            own = IPv6Network((first, 96 + _RANGE_LENGTH))
            raise ConfigError(place, key, f"{pod.ipv6}: expected an address of {own}, the range of its node")
        most = max(most, number + 1)
    return max(most, 1), (str(network), str(six))


def _six_of(files: Sequence[CaseFile], network: IPv4Network) -> IPv6Network:
    """The IPv6 network: that of the pods' own addresses if no case translates addresses."""
    own = next((pod.ipv6 for file in files for _, pod in _pods(file) if pod.ipv6), "")
    translated = any(pod.translate for file in files for _, pod in _pods(file))
    if not own or translated:
        return IPv6Network(embedded_range(str(network), PREFIX))
    return IPv6Network((int(IPv6Address(own)) >> 16 << 16, 112))


def _number(address: IPv4Address | IPv6Address) -> int:
    """The index of the node whose range in the network has an address."""
    return int(address) >> (32 - _RANGE_LENGTH) & 0xFF


def _network_of(address: str) -> IPv4Network:
    return IPv4Network((int(IPv4Address(address)) >> 16 << 16, 16))


def _pods(file: CaseFile) -> Iterable[tuple[str, CasePod]]:
    for case in file.cases:
        for stage in (case.initial, *(step.stage for step in case.steps)):
            for pod in stage.pods.values():
                if not pod.host_network:
                    yield case.id, pod


def labels_to_set(stage: Stage, placing: Placing) -> Mapping[str, dict[str, str]]:
    """The labels of the case's nodes, by the names of the cluster's nodes that they are assigned to."""
    return {
        placing.by_address[node.address].name: node.labels
        for node in stage.nodes
        if node.address in placing.by_address and node.labels
    }
