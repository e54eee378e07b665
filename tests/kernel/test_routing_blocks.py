"""Blocks of pod addresses with each routing backend: own ones, a second one, and an address of another node's block."""

from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, source_seen
from tests.kernel.test_routing_nodes import BACKENDS

from podwire.cluster.names import NODE_POD_BLOCKS
from podwire.routing.settings import RoutingSettings

BLOCKS = {
    "node-1": ("10.244.9.0/28", "10.244.9.128/28", "10.244.9.70/32"),
    "node-2": ("10.244.9.64/28",),
}
"""The node 2 lends an address of its block to the node 1."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[], Cluster]]:
    clusters: list[Cluster] = []

    def build() -> Cluster:
        clusters.append(Cluster(tmp_path, 2))
        for node in clusters[-1].all:
            node.annotations[NODE_POD_BLOCKS] = ",".join(BLOCKS[node.name])
            clusters[-1].nodes[node.name] = node.object()
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_own_and_borrowed_addresses_reach_other_nodes(make: Callable[[], Cluster], backend: str) -> None:
    cluster = make()
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    first, second = cluster.all
    pods = []
    for number, block in enumerate(BLOCKS[first.name]):
        first.leases.serve([ip_network(block)])  # The pod gets an address of this block.
        pods.append(first.pod(f"a{number}"))
        assert pods[-1].address in map(str, ip_network(block))
    second.leases.serve([ip_network(BLOCKS[second.name][0])])
    other = second.pod("b")
    for pod in pods:
        with pod.running(SOURCE_REPLY_SERVER):
            assert source_seen(other.place, pod.address) == other.address
            assert source_seen(second.place, pod.address)
        with other.running(SOURCE_REPLY_SERVER):
            assert source_seen(pod.place, other.address) == pod.address
