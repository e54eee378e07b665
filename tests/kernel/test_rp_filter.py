"""Strict reverse-path filtering that other programs set, for all devices and for new ones."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, ClusterNode, Pod, connect

from podwire.kernel import sysctl
from podwire.routing.settings import RoutingSettings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Make = Callable[..., Cluster]
CONF = "net/ipv4/conf"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int, segments: int = 1) -> Cluster:
        clusters.append(Cluster(tmp_path, count, segments))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


def set_filter(node: ClusterNode, *devices: str) -> None:
    for device in devices:
        sysctl.write(f"{CONF}/{device}/rp_filter", "1", node.place)


def filter_of(node: ClusterNode, device: str) -> str:
    return sysctl.read(f"{CONF}/{device}/rp_filter", node.place)


def check(pods: list[Pod]) -> None:
    """A connection from each pod to each other begins."""
    for a in pods:
        for b in pods:
            if a is not b:
                connect(a.place, b.address, 7).close()


@pytest.mark.parametrize("backend", ["vxlan", "hostgw"])
def test_strict_filters_of_other_programs_drop_nothing(make: Make, backend: str) -> None:
    """With direct routing, packets of a switch arrive by another device than the answers leave."""
    cluster = make(3)
    cluster.configure(RoutingSettings(backend=backend))
    cluster.settle()
    for node in cluster.all:
        set_filter(node, "all", "default")
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    with pods[0].running(ECHO_SERVER), pods[1].running(ECHO_SERVER), pods[2].running(ECHO_SERVER):
        check(pods)
        assert not any(node.machine.drifted() for node in cluster.all), (
            "the stricter of both is in force for pods alone"
        )
        other = "hostgw" if backend == "vxlan" else "vxlan"
        for node in cluster.all:
            node.router.configure(RoutingSettings(backend=other))
            node.reconcile()
            check(pods)
        first = cluster.all[0]
        devices = ["eth0", *(["podwire-vxlan"] if other == "vxlan" else [])]
        set_filter(first, *devices)
        assert first.machine.drifted(), "restored within a second"
        first.reconcile()
        assert {filter_of(first, device) for device in devices} == {"2"}
        check(pods)
