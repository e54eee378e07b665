"""The ``ipvs`` data plane with real packets beyond the packet table: what it writes, heals and leaves alone."""

import contextlib
import os
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cases.service_table import NODE
from tests.kernel.kernel_dataplanes import opened
from tests.kernel.service_namespaces import (
    CASES,
    LATE_S,
    World,
    by_name,
    changes_under_traffic,
    inside,
    path,
    traffic,
)
from tests.kernel.service_owner import ServiceOwner
from tests.uml.ipvs_connections import (
    _PATIENCE_S,
    PODS,
    OpenConnections,
    another,
    differences,
    ipvsadm,
    kept_service,
    web,
)

from podwire.dataplane.tracing import trace_held
from podwire.install.migration.nodecheck import kube_proxy_mode
from podwire.kernel import iptables_chains, looks, netns
from podwire.kernel.ipvs import Ipvs
from podwire.kernel.netlink import Netlink
from podwire.kernel.network import read_paths
from podwire.proxy import leftovers
from podwire.proxy.dataplane import addresses_of_node
from podwire.proxy.dataplanes.ipvs import tracing
from podwire.proxy.dataplanes.ipvs.dataplane import clear
from podwire.proxy.modes import ServiceModes
from podwire.proxy.servicemap import IpvsSettings
from podwire.proxy.switch import Switch
from podwire.state.chain_marks import PROXY_IPVS
from podwire.trace.packet import LocalAddresses, Packet

pytestmark = pytest.mark.uml


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    socket.socket(socket.AF_INET6).close()  # which makes the kernel load IPv6
    with World() as created:
        yield created


@pytest.fixture
def plane(world: World) -> Iterator[ServiceOwner]:
    service_owner = ServiceOwner(opened("ipvs"))
    yield service_owner
    service_owner.remove()
    service_owner.close()


# What is written


def test_the_kernel_holds_what_is_desired_after_every_change(plane: ServiceOwner) -> None:
    plane.load({})
    keys: set[str] = set()
    for case in CASES:
        resolved = case.resolved()
        plane.update({**dict.fromkeys(keys - resolved.keys(), ()), **resolved})
        keys = set(resolved)
        assert differences(plane) == [], case.name
    assert not plane.disturbed()
    with another() as again:
        assert not any(again.load(resolved))
        again.load({})
        assert differences(again) == []


def test_held_and_planned_state_trace_the_same(plane: ServiceOwner) -> None:
    case = by_name("externalTrafficPolicy Local")
    plane.load(case.resolved())
    machine = LocalAddresses(addresses=frozenset(NODE.addresses))
    planned, kept_there = tracing.planned(case.resolved(), NODE, machine), trace_held(tracing, path("node"), machine)
    assert kept_there is not None
    with Netlink(path("node")) as netlink:
        assert set(addresses_of_node(read_paths(netlink))) >= set(NODE.addresses)
        assert "203.0.113.8" not in addresses_of_node(read_paths(netlink))
    for packet in case.packets:
        sent = Packet(
            source=packet.client, destination=packet.address, destination_port=packet.port,
            input="" if packet.source == "node" else packet.source,
        )  # fmt: skip
        assert {str(outcome) for outcome in kept_there.outcomes(sent)} == {
            str(outcome) for outcome in planned.outcomes(sent)
        }


def test_ipvsadm_and_ip_show_what_was_written(plane: ServiceOwner) -> None:
    plane.load({"default/web": web("one", "two")})
    assert ipvsadm("-S", "-n").splitlines() == [
        "-A -t 10.96.0.10:80 -s rr -b flag-3",
        "-a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 1",
        "-a -t 10.96.0.10:80 -r 10.180.0.2:8080 -m -w 1",
    ]
    shown = inside("node", "ip", "-d", "address", "show", "kube-ipvs0")
    assert "state DOWN" in shown and "dummy" in shown and "alias podwire/proxy" in shown
    assert "inet 10.96.0.10/32" in shown
    assert "10.180.0.2,tcp:8080,10.180.0.2" in inside("node", "ipset", "list", "KUBE-LOOP-BACK")


def test_one_endpoint_change_costs_at_most_two_messages(plane: ServiceOwner) -> None:
    plane.load({"default/web": web("one")})
    assert plane.update({"default/web": web("one", "two")}) == (
        "add KUBE-LOOP-BACK 10.180.0.2,tcp:8080,10.180.0.2",
        "-a -t 10.96.0.10:80 -r 10.180.0.2:8080 -m -w 1",
    )
    assert plane.update({"default/web": web("one", "two")}) == ()
    assert plane.update({"default/web": web("one")}) == (
        "-e -t 10.96.0.10:80 -r 10.180.0.2:8080 -m -w 0",
        "del KUBE-LOOP-BACK 10.180.0.2,tcp:8080,10.180.0.2",
    )


def test_a_restart_applies_changes_made_meanwhile(plane: ServiceOwner) -> None:
    plane.load(by_name("externalTrafficPolicy Local").resolved())
    with another() as again:
        again.load(by_name("ClusterIP").resolved())
        assert differences(again) == []
        assert "203.0.113" not in inside("node", "ipset", "save") + ipvsadm("-S", "-n")


def test_changes_and_restarts_under_traffic_lose_nothing(world: World, plane: ServiceOwner) -> None:
    changes_under_traffic(world, plane, least=3)
    resolved = by_name("ClusterIP").resolved()
    plane.load(resolved)
    with traffic(world, "far", "10.96.0.10") as results:
        for _ in range(3):
            with another() as again:
                assert not any(again.load(resolved))
    assert results and set(results) <= {"one", "two"}


def test_ipvs_settings_of_the_namespace_are_set(plane: ServiceOwner) -> None:
    settings = IpvsSettings(strict_arp=True, tcp_timeout=1000, udp_timeout=50)
    plane.load({}, replace(NODE, ipvs=settings))
    names = ("net.ipv4.vs.conntrack", "net.ipv4.vs.expire_nodest_conn", "net.ipv4.conf.all.arp_ignore",
             "net.ipv4.conf.all.arp_announce")  # fmt: skip
    assert inside("node", "sysctl", "-n", *names).split() == ["1", "1", "1", "2"]
    with Ipvs(path("node")) as ipvs:
        tcp, fin, udp = ipvs.timeouts()
    assert (tcp, udp) == (1000, 50) and fin > 0
    assert inside("outside", "sysctl", "-n", "net.ipv4.conf.all.arp_ignore").split() == ["0"]
    assert not any(plane.load({}, replace(NODE, ipvs=settings)))


# What is not ours


def test_host_ports_are_not_reached_through_service_addresses(world: World, plane: ServiceOwner) -> None:
    """Scenario 92."""
    plane.load({"default/web": web("one")})
    with netns.inside(path("node")):
        listener = socket.create_server(("0.0.0.0", 2222))
    with listener:
        assert world.connect("outside", "10.96.0.10", 2222)[0] == "refused"
        assert world.connect("node", "10.96.0.10", 2222)[0] == "refused"
        assert world.connect("outside", "192.168.99.1", 2222)[0] == "dropped", "it listens, and says nothing"
    assert echoed("outside", "10.96.0.10"), "it is there, though"


def echoed(source: str, address: str) -> bool:
    """Whether an address answers an ICMP echo request."""
    request = struct.pack("!BBHHH", 8, 0, 0xF7FC, 1, 2)  # type, code, checksum, identifier, sequence number
    with netns.inside(path(source)), socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(2)
        raw.sendto(request, (address, 0))
        while True:
            data, (sender, _) = raw.recvfrom(200)
            if sender == address:
                return data[20] == 0


FOREIGN = ("-A -t 198.51.100.7:80 -s wrr", "-a -t 198.51.100.7:80 -r 10.180.0.1:8080 -g -w 7", "-A -f 99 -s rr")


def test_virtual_servers_of_others_stay(world: World, plane: ServiceOwner) -> None:
    for line in FOREIGN:
        ipvsadm(*line.split())
    before = ipvsadm("-S", "-n")
    try:
        plane.load(by_name("externalTrafficPolicy Local").resolved())
        plane.heal()
        assert set(before.splitlines()) < set(ipvsadm("-S", "-n").splitlines())
        assert differences(plane) == []
        plane.remove()
        assert ipvsadm("-S", "-n") == before
        assert not leftovers.clear(path("node"))
        assert ipvsadm("-S", "-n") == before
    finally:
        ipvsadm("-C")


def test_foreign_virtual_server_at_our_address_is_a_conflict(world: World, plane: ServiceOwner) -> None:
    ipvsadm("-A", "-t", "10.96.0.10:80", "-s", "lc")
    plane.load({"default/web": web("one")})
    assert plane.conflicts() == ("default/web",)
    assert ipvsadm("-S", "-n").splitlines() == ["-A -t 10.96.0.10:80 -s lc"]
    assert plane.update({"default/web": web("one", "two")})[-1].startswith("add KUBE-LOOP-BACK")
    assert not any(plane.heal())
    ipvsadm("-A", "-t", "10.96.0.10:99", "-s", "lc")
    assert not any(plane.heal()), "nor at another port of our address"
    ipvsadm("-C")
    plane.heal()
    assert plane.conflicts() == ()
    assert world.connect("outside", "10.96.0.10", 80)[0] in PODS


KUBE_PROXY = """\
link add kube-ipvs0 type dummy
address add 10.96.0.10/32 dev kube-ipvs0
address add 10.96.0.77/32 dev kube-ipvs0
"""


def test_virtual_servers_of_kube_proxy_are_taken_over(world: World, plane: ServiceOwner) -> None:
    for line in KUBE_PROXY.splitlines():
        inside("node", "ip", *line.split())
    inside("node", "ipset", "create", "KUBE-NODE-PORT-TCP", "bitmap:port", "range", "0-65535")
    inside("node", "ipset", "add", "KUBE-NODE-PORT-TCP", "30099")
    for at in ("10.96.0.10:80", "10.96.0.77:80", "192.168.99.1:30099", "192.168.99.1:30100"):
        ipvsadm("-A", "-t", at, "-s", "rr")
    plane.load({"default/web": web("one")}, replace(NODE, ipvs=IpvsSettings(exclude_cidrs=("10.96.0.76/30",))))
    lines = ipvsadm("-S", "-n").splitlines()
    assert sorted(lines) == [
        "-A -t 10.96.0.10:80 -s rr -b flag-3",
        "-A -t 10.96.0.77:80 -s rr",
        "-A -t 192.168.99.1:30100 -s rr",
        "-a -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 1",
    ]
    assert "10.96.0.77" not in inside("node", "ip", "address", "show", "kube-ipvs0")
    ipvsadm("-C")


def test_mode_of_kube_proxy_is_recognized(world: World, plane: ServiceOwner) -> None:
    with netns.inside(path("node")):
        assert kube_proxy_mode() == ""
        for line in KUBE_PROXY.splitlines():
            inside("node", "ip", *line.split())
        assert kube_proxy_mode() == "ipvs"
        plane.load({"default/web": web("one")})
        assert kube_proxy_mode() == "", "podwire has taken over the device"


def test_everything_that_podwire_added_can_be_removed(plane: ServiceOwner) -> None:
    assert not clear(path("node"))
    plane.load(by_name("externalTrafficPolicy Local").resolved())
    assert clear(path("node"))
    assert not clear(path("node"))
    assert ipvsadm("-S", "-n") == "" and inside("node", "ipset", "list", "-n") == ""
    assert "kube-ipvs0" not in inside("node", "ip", "link")
    assert iptables_chains.read(path("node"), PROXY_IPVS) == ()


# What others change

BREAKS = {
    "virtual servers": ("ipvsadm -C",),
    "a real server": ("ipvsadm -d -t 10.96.0.10:80 -r 10.180.0.1:8080",),
    "a weight": ("ipvsadm -e -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 5",),
    "a scheduler": ("ipvsadm -E -t 10.96.0.10:80 -s lc",),
    "an address": ("ip address del 10.96.0.10/32 dev kube-ipvs0",),
    "the device": ("ip link del kube-ipvs0",),
    "elements": ("ipset flush KUBE-CLUSTER-IP", "ipset add KUBE-IPVS-IPS 10.96.0.55"),
    "a set": ("iptables-legacy -t nat -F", "ipset destroy KUBE-NODE-PORT-SCTP-HASH"),
    "rules": ("iptables-legacy -t nat -F", "iptables-legacy -t mangle -D PREROUTING 1"),
    "settings": ("sysctl -qw net.ipv4.vs.conntrack=0",),
}


@pytest.mark.parametrize("subject", BREAKS)
def test_changed_virtual_servers_are_repaired(world: World, plane: ServiceOwner, subject: str) -> None:
    plane.load(by_name("ClusterIP").resolved())
    for line in BREAKS[subject]:
        inside("node", *line.split())
    assert differences(plane)
    assert any(plane.heal())
    assert differences(plane) == []
    assert not any(plane.heal())
    assert world.connect("outside", "10.96.0.10", 80)[0] in PODS


LOSSES = {
    "all virtual servers": "ipvsadm -C",
    "a weight": "ipvsadm -e -t 10.96.0.10:80 -r 10.180.0.1:8080 -m -w 0",
    "a real server of IPv6": "ipvsadm -d -t [fd96::10]:80 -r [fd18::1]:8080",
    "elements": "ipset flush KUBE-CLUSTER-IP",
    "rules": "iptables-legacy -t nat -F",
}


@pytest.mark.parametrize("subject", LOSSES)
def test_lost_virtual_servers_and_elements_are_noticed_soon(
    world: World, plane: ServiceOwner, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the reading every 30 s nor the timer of the rules helps."""
    plane.load(by_name("both families").resolved())
    monkeypatch.setattr(plane.plane._rules.watch, "_compare_at", float("inf"))
    monkeypatch.setattr(looks, "_REST", 10)  # a look takes long in this tier
    quiet, until = 0, time.monotonic() + 30
    while quiet < 3:  # addresses of new links may still come
        assert time.monotonic() < until
        assert select.select([plane.fileno()], [], [], 30)[0]
        quiet += 1
        if plane.disturbed():
            plane.heal()
            quiet = 0
    monkeypatch.setattr(plane.plane, "_read_after", float("inf"))
    inside("node", *LOSSES[subject].split())
    assert differences(plane)
    until = time.monotonic() + 30
    while not plane.disturbed():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert any(plane.heal())
    assert differences(plane) == []


def test_only_foreign_changes_of_addresses_are_reported(world: World, plane: ServiceOwner) -> None:
    facts = replace(NODE, node_port_ranges=("192.168.99.0/24", "::/0"))
    services = by_name("NodePort with policy Cluster").resolved()
    plane.load(services, facts)
    plane.update({"default/more": web("one")})
    assert not plane.disturbed()
    inside("node", "ip", "address", "del", "10.96.0.10/32", "dev", "kube-ipvs0")
    assert plane.disturbed()
    assert any(plane.heal()) and not plane.disturbed()
    inside("node", "ip", "address", "add", "192.168.99.7/24", "dev", "outside")
    try:
        assert plane.disturbed()
        plane.heal()
        assert world.connect("outside", "192.168.99.7", 30080)[0] in PODS
    finally:
        inside("node", "ip", "address", "del", "192.168.99.7/24", "dev", "outside")
    assert plane.disturbed()
    plane.heal()
    assert "192.168.99.7" not in "".join(line for line in ipvsadm("-S", "-n").splitlines() if "-w 1" in line)


# Modes


@pytest.mark.parametrize("order", [("iptables", "ipvs"), ("ipvs", "iptables")])
def test_a_change_of_mode_under_traffic_refuses_nothing(world: World, order: tuple[str, str]) -> None:
    """The kernel of this tier has no nftables. IPVS resets the one connection that is open when its mode ends."""
    services = by_name("externalTrafficPolicy Local").resolved()
    modes = (order[1], order[0], order[1])
    resets = sum(before == "ipvs" for before in (order[0], *modes[:-1]))
    with contextlib.closing(Switch(ServiceModes(path("node")), order[0], NODE)) as switch:
        switch.load(services)
        with traffic(world, "one", "10.96.0.10") as results:
            for mode in modes:
                switch.configured_mode = mode
                switch.load(services)
                assert (switch.name, switch.problem) == (mode, None)
                rules = inside("node", "iptables-legacy-save")
                assert ("PODWIRE-PROXY" in rules, "PODWIRE-IPVS" in rules) == (mode == "iptables", mode == "ipvs")
                assert ("KUBE-SVC-" in rules, "KUBE-LOAD-BALANCER" in rules) == (mode == "iptables", mode == "ipvs")
                assert bool(ipvsadm("-S", "-n")) == (mode == "ipvs")
                assert ("kube-ipvs0" in inside("node", "ip", "link")) == (mode == "ipvs")
                for source, observed in (("outside", "192.168.99.2"), ("one", "10.180.0.1"), ("node", "192.168.99.1")):
                    assert world.connect(source, "203.0.113.8", 80, patience_s=LATE_S)[1] == observed
        assert len(results) > 10
        counts = Counter(results)
        assert counts.pop("reset", 0) <= resets and set(counts) == {"two", "far"}, Counter(results)
        for name in order:
            ServiceModes(path("node")).clear(name)
    assert "KUBE-" not in inside("node", "iptables-legacy-save")


def test_connections_outlive_the_change_to_ipvs(world: World) -> None:
    with (
        contextlib.closing(Switch(ServiceModes(path("node")), "iptables", NODE)) as switch,
        OpenConnections("one") as connections,
    ):
        switch.load({"default/web": kept_service("one")})
        connections.connect("far")
        switch.configured_mode = "ipvs"
        switch.load({"default/web": kept_service("one")})
        assert switch.name == "ipvs"
        assert connections.talk()
        ServiceModes(path("node")).clear("ipvs")


def test_leaving_ipvs_keeps_udp_clients_and_resets_tcp(world: World) -> None:
    """A UDP client that keeps its socket is served by the next mode; a TCP client gets a reset."""
    services = by_name("ports and protocols are independent").resolved() | {"default/kept": (
        replace(kept_service("one")[0], service="default/kept", cluster_ip="10.96.0.77"),
    )}  # fmt: skip
    with (
        contextlib.closing(Switch(ServiceModes(path("node")), "ipvs", NODE)) as switch,
        OpenConnections("one") as connections,
    ):
        switch.load(services)
        connections.connect("far", "10.96.0.77")
        with netns.inside(path("far")):
            talker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with talker:
            talker.settimeout(_PATIENCE_S)
            talker.connect(("10.96.0.10", 53))
            for mode in ("ipvs", "iptables", "ipvs"):
                switch.configured_mode = mode
                switch.load(services)
                assert switch.name == mode
                talker.send(b"x")
                assert talker.recv(100).split()[0] == b"two"
        _, client, _ = connections.clients[0]
        client.settimeout(_PATIENCE_S)
        with pytest.raises(ConnectionResetError):
            for _ in range(3):
                client.sendall(b"anybody?")
                client.recv(5)
        ServiceModes(path("node")).clear("ipvs")


def test_no_descriptor_is_left_open(plane: ServiceOwner) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with another() as again:
        again.load({})
    before = count()
    for _ in range(3):
        with another() as again:
            again.load({})
    assert count() == before
    assert os.geteuid() == 0
