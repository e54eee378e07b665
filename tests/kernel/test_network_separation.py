"""Pod networks are separate with every backend; contracts pass reverse-path filtering. One node, without VLANs."""

import errno
import socket
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, ClusterNode, Pod, source_seen

from podwire.kernel import netns
from podwire.routing.backends.vlan.options import VlanOptions, VlanSection
from podwire.routing.podnetworks import Contract, PodNetworkSection
from podwire.routing.settings import RoutingSettings

BLUE = PodNetworkSection(name="blue", id=101, cidrs=("10.245.0.0/16", "fd45::/48"))
RED = PodNetworkSection(name="red", id=102, cidrs=("10.246.0.0/16", "fd46::/48"))
CLUSTER = ("10.244.0.0/16", "fd00::/48")
SHARES = {
    "blue": (ip_network("10.245.1.0/24"), ip_network("fd45:0:0:1::/64")),
    "red": (ip_network("10.246.1.0/24"), ip_network("fd46:0:0:1::/64")),
}


def join(node: ClusterNode, *contracts: Contract) -> None:
    section = VlanSection(networks=(BLUE, RED), contracts=contracts)
    node.router.configure(RoutingSettings(backend="hostgw", options={"vlan": VlanOptions(vlan=section)}))
    node.reconcile()
    node.leases.serve([ip_network(cidr) for cidr in node.cidrs], further=SHARES)
    node.shares = {name: tuple(map(str, ranges)) for name, ranges in SHARES.items()}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClusterNode]:
    cluster = Cluster(tmp_path, 1, families="46")
    try:
        (alone,) = cluster.all
        alone.router.cidrs = tuple(map(ip_network, CLUSTER))
        join(alone)
        yield alone
    finally:
        cluster.close()


def error(pod: Pod, address: str, port: int) -> int:
    """The error number of a connection; 0: it is established."""
    with netns.inside(pod.place):
        client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with client:
        client.settimeout(5)
        return client.connect_ex((address, port))


def test_networks_are_separate_with_another_backend(node: ClusterNode) -> None:
    blue, red, plain = node.pod("blue", "blue"), node.pod("red", "red"), node.pod("plain")
    with red.running(SOURCE_REPLY_SERVER):
        for client in (blue, plain):
            assert error(client, red.address, 8) == errno.EHOSTUNREACH
            assert error(client, red.address6, 8) in (errno.EHOSTUNREACH, errno.ENETUNREACH)
        assert source_seen(node.place, red.address), "the node reaches its pods"
        join(node, Contract(name="web", consumer="blue", provider="red", ports=("TCP/8",)))
        assert node.shows("sysctl", "-n", f"net.ipv4.conf.{_device(node, 'blue')}.rp_filter").strip() == "1"
        assert source_seen(blue.place, red.address) == blue.address
        assert source_seen(blue.place, red.address6) == blue.address6
        assert error(blue, red.address, 9) in (errno.EHOSTUNREACH, errno.EAGAIN), "the contract has another port"
        assert error(plain, red.address6, 8) != 0
        join(node)
        assert error(blue, red.address6, 8) != 0
        node.router.configure(RoutingSettings(backend="hostgw"))
        node.reconcile()
        assert "112" not in node.shows("ip", "rule") and "201" not in node.shows("ip", "route", "show", "table", "all")


def _device(node: ClusterNode, name: str) -> str:
    lines = node.shows("ip", "-br", "link").splitlines()
    return next(line.partition("@")[0] for line in lines if line.startswith(f"{name}-"))
