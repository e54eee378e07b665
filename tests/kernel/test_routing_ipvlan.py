"""Second interfaces of pods with the hardware address of their node: modes, hooks, peers without them, Services."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kernel.routing_nodes import (
    SOURCE_REPLY_SERVER,
    Cluster,
    ClusterNode,
    Pod,
    inside,
    ip_batch,
    source_seen,
)

from podwire.kernel import netns
from podwire.routing.backends.ipvlan.backend import IpvlanOptions, IpvlanSection
from podwire.routing.settings import RoutingSettings

pytestmark = pytest.mark.uml
MODES = ("l2", "l3", "l3s")
SERVICE = "10.96.0.10"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, 2, families="46")
    try:
        yield made
    finally:
        made.close()


def configure(cluster: Cluster, mode: str = "l2", uplink: str = "") -> None:
    options = {"ipvlan": IpvlanOptions(ipvlan=IpvlanSection(mode=mode, uplink=uplink))}  # type: ignore[arg-type]
    cluster.configure(RoutingSettings(backend="ipvlan", options=options))
    cluster.settle()


def leaves_by(pod: Pod, address: str) -> str:
    """The interface of a pod by which packets to an address leave."""
    route: str = json.loads(inside(pod.place, "ip", "-j", "route", "get", address))[0]["dev"]
    return route


def rules(node: ClusterNode, *commands: str) -> None:
    for command in commands:
        inside(node.place, *command.split())


def counted(node: ClusterNode, hook: str) -> int:
    """The packets that the rule of a hook counted."""
    return int(inside(node.place, "iptables-legacy", "-nvxL", hook).splitlines()[2].split()[0])


def refused(pod: Pod, address: str) -> bool:
    """Whether a connection gets no answer within half a second."""
    with netns.inside(pod.place):
        client = socket.socket()
    with client:
        client.settimeout(0.5)
        try:
            client.connect((address, 8))
        except TimeoutError:
            return True
    return False


@pytest.mark.parametrize("mode", MODES)
def test_packets_between_pods_pass_no_forwarding_node(cluster: Cluster, mode: str) -> None:
    configure(cluster, mode)
    first, second = cluster.all
    a, b, c = first.pod("a"), second.pod("b"), first.pod("c")
    for node in cluster.all:
        rules(node, "iptables-legacy -P FORWARD DROP", "ip6tables-legacy -P FORWARD DROP")
        rules(node, *(f"iptables-legacy -A {hook} -p tcp -s {a.address}" for hook in ("INPUT", "OUTPUT", "FORWARD")))
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address
        assert source_seen(a.place, b.address6) == a.address6
    assert [leaves_by(a, to) for to in (b.address, second.ip, c.address, first.ip)] == ["lan0", "lan0", "eth0", "eth0"]
    assert all(counted(node, "FORWARD") == 0 for node in cluster.all)
    assert (counted(second, "INPUT") > 0) == (mode == "l3s"), "the node's hooks see arriving packets in one mode"
    assert (counted(first, "OUTPUT") > 0) == (mode != "l2")
    card = json.loads(first.shows("ip", "-j", "link", "show", "eth0"))[0]["address"]
    neighbours = second.shows("ip", "neigh", "show", "dev", "eth0") + inside(
        b.place, "ip", "neigh", "show", "dev", "lan0"
    )
    assert mode != "l2" or f"{a.address} lladdr {card}" in neighbours, "the network sees one hardware address per node"


def test_answers_to_nodes_without_legs_take_the_leg(cluster: Cluster) -> None:
    first, second = cluster.all
    second.router.own.leg_obstacle = "policies are in force"
    configure(cluster)
    a, b = first.pod("a"), second.pod("b")
    assert "lan0" not in inside(b.place, "ip", "link")
    assert second.router.plan is not None and "policies are in force" in second.router.plan.degraded
    for node in cluster.all:
        for program in ("iptables-legacy", "ip6tables-legacy"):
            rules(node, f"{program} -A FORWARD -m conntrack --ctstate INVALID -j DROP")
    with a.running(SOURCE_REPLY_SERVER), b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address
        assert source_seen(a.place, b.address6) == a.address6
        assert source_seen(b.place, a.address) == b.address
        assert source_seen(b.place, a.address6) == b.address6
        assert source_seen(second.place, a.address) == second.ip
        rules(second, "iptables-legacy -P FORWARD DROP")
        assert refused(a, b.address), "packets to pods of a node with policies pass its rules"


@pytest.mark.parametrize("mode", ["l2", "l3s"])
def test_translated_connections_pass_the_node_in_both_directions(cluster: Cluster, mode: str) -> None:
    """The rules are those of a Service and of ``podwire-ipvlan``, in the form that this kernel has."""
    configure(cluster, mode)
    first, second = cluster.all
    a, b = first.pod("a"), second.pod("b")
    nat = "iptables-legacy -t nat -A"
    rules(first, f"{nat} PREROUTING -p tcp -d {SERVICE} --dport 8 -j DNAT --to {b.address}:8")
    with b.running(SOURCE_REPLY_SERVER):
        if mode == "l2":
            ends = f"-s {first.cidr} -d {second.cidr}"
            rules(first, f"{nat} POSTROUTING -m conntrack --ctstate DNAT {ends} -j MASQUERADE")
        assert source_seen(a.place, SERVICE) == (first.ip if mode == "l2" else a.address)


def test_legs_follow_their_mode_and_uplink_and_go(cluster: Cluster) -> None:
    for node in cluster.all:
        ip_batch(cluster.fabric, f"link add m{node.number} up type veth peer name eth1 netns {node.place}")
        ip_batch(node.place, "link set eth1 up mtu 1400")
    ports = [f"link set m{node.number} master lan mtu 1400" for node in cluster.all]
    ip_batch(cluster.fabric, "link add lan up type bridge", *ports)
    first, second = cluster.all
    a, b = first.pod("a"), second.pod("b")
    for mode, uplink, mtu in (("l2", "", 1500), ("l3", "", 1500), ("l2", "eth1", 1400)):
        configure(cluster, mode, uplink)
        leg = json.loads(inside(a.place, "ip", "-d", "-j", "link", "show", "lan0"))[0]
        assert (leg["linkinfo"]["info_data"]["mode"], leg["mtu"]) == (mode, mtu)
        with b.running(SOURCE_REPLY_SERVER):
            assert source_seen(a.place, b.address) == a.address
            assert source_seen(a.place, b.address6) == a.address6
    assert [leaves_by(a, to) for to in (b.address, second.ip)] == ["lan0", "eth0"]
    cluster.configure(RoutingSettings(backend="hostgw"))
    cluster.settle()
    assert "lan0" not in inside(a.place, "ip", "link")


def test_an_uplink_with_macvlan_devices_gives_no_legs(cluster: Cluster) -> None:
    first, second = cluster.all
    ip_batch(first.place, "link add link eth0 name lan9 type macvlan mode bridge")
    configure(cluster)
    a, b = first.pod("a"), second.pod("b")
    assert first.router.plan is not None
    assert "eth0 of node node-1 has the macvlan device lan9" in first.router.plan.degraded
    assert "lan0" not in inside(a.place, "ip", "link")
    ip_batch(first.place, "link del lan9")
    cluster.settle()
    assert leaves_by(a, b.address) == leaves_by(b, a.address) == "lan0"
