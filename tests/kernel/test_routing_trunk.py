"""Pod networks of the backend ``vlan``: tags, separation, contracts, restart, and objects of other programs."""

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest
from tests.kernel.routing_nodes import (
    ECHO_SERVER,
    SOURCE_REPLY_SERVER,
    Cluster,
    ClusterNode,
    Pod,
    Talk,
    inside,
    ip_batch,
    source_seen,
)
from tests.kernel.test_why_routes import asked

from podwire.errors import CniError
from podwire.kernel import netns
from podwire.routing.backends.vlan.options import VlanOptions, VlanSection
from podwire.routing.podnetworks import Contract, PodNetworkSection
from podwire.routing.settings import RoutingSettings

pytestmark = pytest.mark.uml

BLUE = PodNetworkSection(name="blue", id=101, cidrs=("10.245.0.0/16", "fd45::/48"))
RED = PodNetworkSection(name="red", id=102, cidrs=("10.246.0.0/16", "fd46::/48"))
CLUSTER = ("10.244.0.0/16", "fd00::/48")
SHOWN = (
    ("ip", "-o", "link", "show", "type", "vlan"),
    ("ip", "rule", "show"),
    ("ip", "-6", "rule", "show"),
    ("ip", "route", "show", "table", "all"),
    ("ip", "-6", "route", "show", "table", "all", "proto", "113"),
    ("bridge", "fdb", "show"),
)


def settings(*contracts: Contract, networks: tuple[PodNetworkSection, ...] = (BLUE, RED)) -> RoutingSettings:
    section = VlanSection(id=7, networks=networks, contracts=contracts)
    return RoutingSettings(backend="vlan", options={"vlan": VlanOptions(vlan=section)})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes whose pods have three networks."""
    made = Cluster(tmp_path, 2, families="46")
    for node in made.all:
        node.router.cidrs = tuple(map(ip_network, CLUSTER))
    try:
        made.configure(settings())
        made.settle()
        yield made
    finally:
        made.close()


@contextmanager
def tags(cluster: Cluster) -> Iterator[list[tuple[int, bytes]]]:
    """The frames that the network between the nodes carries meanwhile: VLAN (0: none) and IP packet."""
    frames: list[tuple[int, bytes]] = []
    with netns.inside(cluster.fabric):
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
    with wire:
        wire.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        wire.bind(("n1", 0))
        yield frames
        wire.setblocking(False)
        while True:
            try:
                data, extra, _, _ = wire.recvmsg(65536, 256)
            except BlockingIOError:
                return
            status, tci = struct.unpack_from("=I", extra[0][2])[0], struct.unpack_from("=H", extra[0][2], 16)[0]
            frames.append((tci & 0xFFF if status & 0x10 else 0, data[14:]))  # TP_STATUS_VLAN_VALID


def refused(pod: Pod, address: str, port: int = 8) -> bool:
    """Whether routing refuses a connection, with an error or without an answer; False: it is established."""
    with netns.inside(pod.place):
        client = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with client:
        client.settimeout(0.5)
        code = client.connect_ex((address, port))
    assert code in (0, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EAGAIN), errno.errorcode.get(code)
    return code != 0


def test_packets_of_each_network_have_its_tag(cluster: Cluster) -> None:
    first, second = cluster.all
    for network, vlan, part in (("default", 7, "10.244.2."), ("blue", 101, "10.245.2."), ("red", 102, "10.246.2.")):
        a, b = first.pod(f"a-{network}", network), second.pod(f"b-{network}", network)
        assert b.address.startswith(part)
        with b.running(SOURCE_REPLY_SERVER):
            for own, other in ((a.address, b.address), (a.address6, b.address6)):
                with tags(cluster) as frames:
                    assert source_seen(a.place, other) == own
                ends = {
                    socket.inet_pton(socket.AF_INET6 if ":" in end else socket.AF_INET, end) for end in (own, other)
                }
                seen = {vid for vid, packet in frames if all(end in packet[:40] for end in ends)}
                assert seen == {vlan}
            assert source_seen(second.place, b.address), "the node reaches its own pods of all networks"
            assert source_seen(first.place, b.address).startswith(part[:7]), "and those of other nodes"


def test_networks_are_separate_until_a_contract_joins_them(cluster: Cluster) -> None:
    first, second = cluster.all
    blue, near, far = first.pod("blue", "blue"), first.pod("near", "red"), second.pod("far", "red")
    plain, third = first.pod("plain"), second.pod("third")
    with far.running(SOURCE_REPLY_SERVER), near.running(SOURCE_REPLY_SERVER), third.running(SOURCE_REPLY_SERVER):
        for client in (blue, plain):
            for server in (near, far):
                assert refused(client, server.address)
                assert refused(client, server.address6)
        assert refused(blue, third.address)
        assert refused(blue, "10.246.77.9"), "an address that no node has leaves by no other route"
        cluster.configure(settings(Contract(name="web", consumer="blue", provider="red", ports=("TCP/8",))))
        cluster.settle()
        for server in (near, far):
            assert source_seen(blue.place, server.address) == blue.address
            assert source_seen(blue.place, server.address6) == blue.address6
            assert refused(blue, server.address, 7), "the contract has another port"
            assert refused(plain, server.address), "the contract is of other networks"
        with blue.running(SOURCE_REPLY_SERVER):
            assert refused(far, blue.address), "the provider begins no connection"
        cluster.configure(settings(Contract(name="all", consumer="red", provider="default")))
        cluster.settle()
        assert refused(blue, far.address) and refused(blue, near.address6)
        assert source_seen(plain.place, far.address) == plain.address
        assert source_seen(far.place, third.address6) == far.address6


def test_a_new_agent_changes_nothing_and_loses_no_packet(cluster: Cluster) -> None:
    first, second = cluster.all
    a, b = first.pod("a", "blue"), second.pod("b", "blue")
    before = [first.shows(*command) for command in SHOWN]
    with b.running(ECHO_SERVER):
        talk = Talk(a, b)
        for node in cluster.all:
            node.machine.close()
            node.start_agent()
            node.router.cidrs = tuple(map(ip_network, CLUSTER))
            node.router.configure(settings())
            node.reconcile()
        assert talk.end() == 0
    assert [first.shows(*command) for command in SHOWN] == before


def test_removed_rules_and_devices_of_networks_are_restored(cluster: Cluster) -> None:
    first, second = cluster.all
    a, b, red = first.pod("a", "blue"), second.pod("b", "blue"), second.pod("red", "red")
    damages = (
        "ip link del podwire-v101",
        "ip link del podwire-vp101",
        "ip route del 10.245.2.0/24",
        "ip rule del priority 1121 from 10.245.0.0/16",
        "ip -6 rule del priority 1121 from fd45::/48",
        "ip route flush table 20101",
        "bridge link set dev podwire-vp101 locked off",
    )
    with b.running(SOURCE_REPLY_SERVER), red.running(SOURCE_REPLY_SERVER):
        for damage in damages:
            first.shows(*damage.split())
            first.reconcile()
            assert source_seen(a.place, b.address) == a.address, damage
            assert source_seen(a.place, b.address6) == a.address6, damage
            assert refused(a, red.address) and refused(a, red.address6), damage
            assert "locked on" in first.shows("bridge", "-d", "link", "show", "dev", "podwire-vp101"), damage


def test_objects_of_other_programs_are_not_touched(cluster: Cluster) -> None:
    first, second = cluster.all
    foreign = (
        "link add link eth0 name lan9 up type vlan id 103",
        "address add 203.0.113.1/24 dev lan9",
        "rule add priority 1121 from 198.51.100.0/24 lookup 20101",
        "route add 198.51.100.0/24 dev lan9 table 20101",
    )
    ip_batch(first.place, *foreign)
    green = PodNetworkSection(name="green", id=103, cidrs=("10.247.0.0/16",))

    def shown(node: ClusterNode) -> list[str]:
        lines = node.shows("ip", "-o", "address", "show", "lan9").splitlines()
        for command in (("rule", "show"), ("route", "show", "table", "20101")):
            lines += [line for line in node.shows("ip", *command).splitlines() if "198.51.100" in line]
        return lines

    before = shown(first)
    assert len(before) >= 3
    cluster.configure(settings(networks=(BLUE, RED, green)))
    for _ in range(2):
        first.router.reconcile()
        second.router.reconcile()
    assert "podwire-vp103" in first.router.problem and "File exists" in first.router.problem
    inside(first.place, "ip", "link", "show", "podwire-v101")
    cluster.configure(RoutingSettings(backend="hostgw"))
    cluster.settle()
    assert shown(first) == before
    assert "podwire-v" not in first.shows("ip", "link", "show", "type", "vlan")
    assert "10.245" not in first.shows("ip", "rule") + first.shows("ip", "route", "show", "table", "all")


def test_a_pod_of_an_unknown_network_is_refused(cluster: Cluster) -> None:
    node = cluster.all[0]
    with pytest.raises(CniError, match=r"podwire\.io/network: this node has no pod network 'green'") as failure:
        node.pod("lost", "green")
    assert failure.value.code == 7
    assert failure.value.details == "the pod networks are default, blue, red"
    assert "lost" not in node.shows("ip", "link")


def test_why_names_networks_and_refusals_as_packets_meet_them(cluster: Cluster) -> None:
    first, second = cluster.all
    blue, far, red = first.pod("blue", "blue"), second.pod("far", "blue"), second.pod("red", "red")
    answer = asked(cluster, settings(), (blue.address, far.address))
    there, back = answer.routes
    assert (there.network, there.device, there.missing, there.drift) == ("blue (VLAN 101)", "podwire-v101", (), ())
    assert (back.network, back.state, back.missing) == ("blue (VLAN 101)", "held", ())
    with red.running(SOURCE_REPLY_SERVER):
        refusal = asked(cluster, settings(), (blue.address, red.address))
        assert refusal.outcome == "refused" and refused(blue, red.address)
        assert "no contract joins them for TCP/8, so node-1 refuses the packet" in refusal.findings[0].message
        web = settings(Contract(name="web", consumer="blue", provider="red", ports=("TCP/8",)))
        cluster.configure(web)
        cluster.settle()
        joined = asked(cluster, web, (blue.address, red.address))
        assert joined.outcome == "untouched" and source_seen(blue.place, red.address) == blue.address
        assert joined.findings[0].message.endswith("to red (VLAN 102), joined by the contract web")
        assert joined.routes[0].network == "red (VLAN 102)"
