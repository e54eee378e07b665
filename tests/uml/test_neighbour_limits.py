"""Small neighbour tables and many nodes, on a kernel of its own: the limits hold for the whole machine."""

import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, Talk

from podwire.kernel import sysctl
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.machine import KernelMachine
from podwire.routing.nodes import LocalNode, peer_of
from podwire.routing.plan import plan
from podwire.routing.settings import RoutingSettings

pytestmark = [
    pytest.mark.uml,
    pytest.mark.skipif(
        os.uname().nodename != "uml",
        reason="for the kernel of user-mode Linux: make uml, or scripts/uml pytest tests/uml",
    ),
]

LIMIT = "net/ipv4/neigh/default/gc_thresh3"
NODES = 300


@pytest.fixture(autouse=True)
def small_tables() -> Iterator[None]:
    """A table of 128 entries, as in the smallest machines that are known to fail."""
    paths = [LIMIT.replace("3", number) for number in "123"]
    before = sysctl.snapshot(paths)
    for path, small in zip(paths, ("32", "64", "128"), strict=True):
        sysctl.write(path, small)
    yield
    for usual in reversed(before):
        sysctl.write(usual.path, usual.value)


def synthetic(number: int) -> Node:
    cidr = f"10.{128 + number // 250}.{number % 250}.0/24"
    address = f"10.89.{number // 250}.{100 + number % 150}" if number < 150 else f"10.88.{number // 250}.{number % 250}"
    return Node(
        metadata=ObjectMeta(name=f"other-{number}"),
        spec=NodeSpec(pod_cidr=cidr, pod_cidrs=(cidr,)),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=address),)),
    )


def test_tunnels_to_many_nodes_need_no_room_in_the_table(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    try:
        cluster.nodes.update({node.metadata.name: node for node in map(synthetic, range(NODES))})
        cluster.configure(RoutingSettings(backend="vxlan"))
        cluster.settle()
        entries = cluster.all[0].shows("ip", "neigh", "show", "dev", "podwire-vxlan", "nud", "permanent")
        assert len(entries.splitlines()) == NODES + 1
        a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
        with b.running(ECHO_SERVER):
            Talk(a, b).end()
    finally:
        cluster.close()


def test_peers_of_the_own_subnet_get_room_in_the_table() -> None:
    run = ("ip", "link", "add", "under", "type", "dummy")
    subprocess.run(run, check=True)
    try:
        subprocess.run(("ip", "address", "add", "10.88.0.1/13", "dev", "under"), check=True)
        subprocess.run(("ip", "link", "set", "under", "up"), check=True)
        machine = KernelMachine()
        address = ip_address("10.88.0.1")
        under = machine.underlay((address,))
        assert under is not None and under.neighbour_limits[4] == (64, 128)
        me = LocalNode(name="own", addresses=(address,), pod_cidrs=(ip_network("10.244.0.0/24"),), underlay=under)
        settings = RoutingSettings(backend="hostgw")
        created = plan(me, map(peer_of, map(synthetic, range(NODES))), settings, settings.load())
        assert machine.hold(created.state) == []
        assert int(sysctl.read(LIMIT)) >= 4 * NODES
        machine.close()
    finally:
        subprocess.run(("ip", "link", "delete", "under"), check=True)
