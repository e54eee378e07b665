"""Namespaces, sysctls, notifications, connection tracking and feature probes on the real kernel."""

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.kernel.sockets import socket_in

from podwire.errors import KernelError, KernelExists, KernelNotFound
from podwire.kernel import netns, network, sysctl, tun
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.features import FEATURES, FeatureAnswer, Features
from podwire.kernel.monitor import Event, Monitor
from podwire.kernel.netlink import Netlink
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Address, Route, Sysctl

FOLDER = Path(f"/run/pwt-kernel-access-{os.getpid()}")


@pytest.fixture
def place() -> Iterator[Path]:
    path = FOLDER / "a"
    netns.create(path)
    yield path
    netns.delete(path)
    FOLDER.rmdir()


def test_a_namespace_is_created_and_deleted(place: Path) -> None:
    own = netns.identity()
    assert netns.exists(place)
    assert netns.identity(place) != own
    with netns.inside(place):
        assert netns.identity() == netns.identity(place)
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
    assert netns.identity() == own
    with pytest.raises(KernelExists):
        netns.create(place)
    assert netns.delete(FOLDER / "b") is False


_BEFORE_IP_NETNS = """
import subprocess
from podwire.kernel import netns

mark = "pwt-first-" + sys.argv[1]
run = lambda *words: subprocess.run(words, check=True)
run("mount", "--make-rprivate", "/")
while subprocess.run(("mountpoint", "-q", "/run/netns")).returncode == 0:
    run("umount", "--lazy", "/run/netns")
netns.create("/run/netns/" + mark)
run("ip", "netns", "add", mark + "-ip")
run("ip", "netns", "delete", mark + "-ip")
assert netns.delete("/run/netns/" + mark)
"""
"""In a mount namespace of its own: the state of a machine on which ``ip netns add`` has never run."""


def test_a_namespace_older_than_ip_netns_is_deleted() -> None:
    program = "import sys\n" + _BEFORE_IP_NETNS
    arguments = ("unshare", "--mount", sys.executable, "-c", program, str(os.getpid()))
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_thread_returns_after_a_failure(place: Path) -> None:
    own = netns.identity()
    with pytest.raises(ZeroDivisionError), netns.inside(place):
        raise ZeroDivisionError
    assert netns.identity() == own


def test_a_plain_file_is_no_namespace(place: Path) -> None:
    plain = FOLDER / "plain"
    plain.touch()
    assert not netns.exists(plain)
    with pytest.raises(KernelError), netns.inside(plain):
        pass
    assert netns.delete(plain) is True
    assert not plain.exists()


@pytest.fixture
def busy(place: Path) -> Iterator[Path]:
    """A path on which something is mounted that is no namespace: the kernel refuses to remove it."""
    path, other = FOLDER / "busy", FOLDER / "other"
    path.touch()
    other.touch()
    subprocess.run(["mount", "--bind", str(other), str(path)], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=False, capture_output=True)
    path.unlink(missing_ok=True)
    other.unlink()


def test_delete_waits_while_the_path_is_busy(busy: Path) -> None:
    later = threading.Timer(0.2, netns.unmount, (busy,))
    later.start()
    assert netns.delete(busy) is True
    later.join()
    assert not busy.exists()


def test_delete_gives_up_on_a_path_that_stays_busy(busy: Path) -> None:
    with pytest.raises(KernelError) as caught:
        netns.delete(busy)
    assert caught.value.errno == errno.EBUSY and busy.exists()


def test_a_namespace_lives_as_long_as_a_socket(place: Path) -> None:
    with netns.inside(place):
        pass
    descriptor = netns.create_anonymous()
    with Netlink(descriptor) as netlink:
        os.close(descriptor)
        assert [link.name for link in network.read_links(netlink)] == ["lo"]


def test_sysctls_are_read_in_the_namespace(place: Path) -> None:
    before = sysctl.read("net/ipv4/ip_forward")
    sysctl.write("net/ipv4/ip_forward", "1", place)
    assert sysctl.read("net/ipv4/ip_forward", place) == "1"
    assert sysctl.read("net/ipv4/ip_forward") == before
    remaining = sysctl.snapshot(("net/ipv4/ip_forward", "net/ipv4/nothing", "net/ipv4/ip_local_port_range"), place)
    assert [x.path for x in remaining] == ["net/ipv4/ip_forward", "net/ipv4/ip_local_port_range"]
    assert remaining[0] == Sysctl("net/ipv4/ip_forward", "1")
    with pytest.raises(KernelNotFound, match="net/ipv4/nothing"):
        sysctl.read("net/ipv4/nothing", place)
    with pytest.raises(KernelError, match="Invalid argument"):
        sysctl.write("net/ipv4/ip_forward", "x", place)


def test_changes_are_reported(place: Path) -> None:
    with Monitor(place, ("link", "address", "route")) as monitor, Netlink(place) as netlink:
        assert monitor.read() == []
        state = NetworkState(
            links=(Link("x", "bridge"),),
            addresses=(Address("x", "10.0.0.1/24", proto=9),),
            routes=(Route("10.1.0.0/16", "10.0.0.2", "x", proto=113),),
        )
        network.add(netlink, state).check()
        index = network.read_link(netlink, "x").index
        events = monitor.read()
        assert Event("link", False, index) in events
        assert Event("address", False, index, 9) in events
        assert Event("route", False, index, 113, "10.1.0.0/16") in events
        with netns.inside(place):
            subprocess.run(["ip", "link", "delete", "x"], check=True)
        assert Event("link", True, index) in monitor.read()


def test_own_changes_can_be_ignored(place: Path) -> None:
    with Netlink(place) as netlink, Netlink(place) as other, Monitor(place, ("route",)) as monitor:
        network.add(netlink, NetworkState((Link("x", "bridge"),), (Address("x", "10.0.0.1/24"),))).check()
        monitor.read()
        monitor.ignore(netlink.port)
        network.add(netlink, NetworkState(routes=(Route("10.1.0.0/16", "10.0.0.2", proto=113),))).check()
        assert monitor.read() == []
        network.add(other, NetworkState(routes=(Route("10.2.0.0/16", "10.0.0.2", proto=4),))).check()
        assert [event.proto for event in monitor.read()] == [4]


def test_sysctl_changes_are_reported_except_for_new_devices(place: Path) -> None:
    with Netlink(place) as netlink, Monitor(place, ("sysctl",)) as monitor:
        network.add(netlink, NetworkState((Link("x", "bridge"),))).check()
        index = network.read_link(netlink, "x").index
        assert monitor.read() == []
        sysctl.write("net/ipv4/conf/x/rp_filter", "2", place)
        assert monitor.read() == [Event("sysctl", device=index)]
        sysctl.write("net/ipv4/ip_forward", "1" if sysctl.read("net/ipv4/ip_forward", place) == "0" else "0", place)
        assert {0, index} <= {event.device for event in monitor.read()}


def test_missed_changes_give_a_lost_event(place: Path) -> None:
    with Monitor(place, ("route",)) as monitor, Netlink(place) as netlink:
        network.add(netlink, NetworkState((Link("x", "bridge"),), (Address("x", "10.0.0.1/24"),))).check()
        routes = tuple(Route(f"10.{i // 250}.{i % 250}.0/24", "10.0.0.2", "x", proto=9) for i in range(250, 8000))
        network.add(netlink, NetworkState(routes=routes)).check()
        assert "lost" in {event.kind for event in monitor.read()}


def test_an_attached_loop_gets_events(place: Path) -> None:
    async def watch() -> list[Event]:
        reported: asyncio.Queue[Sequence[Event]] = asyncio.Queue()
        with Monitor(place, ("link",)) as monitor, Netlink(place) as netlink:
            monitor.attach(reported.put_nowait)
            network.add(netlink, NetworkState((Link("x", "bridge"),))).check()
            async with asyncio.timeout(5):
                return list(await reported.get())

    assert {event.kind for event in asyncio.run(watch())} == {"link"}


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_tracked_flows_are_listed_and_deleted(place: Path, family: socket.AddressFamily, address: str) -> None:
    """A rule of nft switches connection tracking on in the namespace."""
    with Netlink(place) as netlink:
        network.apply(netlink, NetworkState((Link("lo"),)), _nobody()).check()
    _track(place)
    with (
        socket_in(place, family, socket.SOCK_DGRAM) as server,
        socket_in(place, family, socket.SOCK_DGRAM) as client,
        Conntrack(place) as conntrack,
    ):
        server.bind((address, 5353))
        client.connect((address, 5353))
        client.send(b"x")
        flows = [flow for flow in conntrack.flows() if flow.original.dport == 5353]
        assert [(flow.protocol, flow.original.dst, flow.backend) for flow in flows] == [
            ("UDP", address, (address, 5353))
        ]
        assert str(flows[0]).startswith(f"UDP {address} ")
        assert conntrack.flows([address]) == conntrack.flows()
        assert conntrack.flows(["192.0.2.1"]) == conntrack.flows(protocol="TCP") == []
        assert conntrack.flows(protocol="UDP") == conntrack.flows()
        assert conntrack.flows([address], "UDP", assured=False) == conntrack.flows()
        assert conntrack.flows(assured=True) == conntrack.flows(["fd00::1"], assured=False) == []
        assert conntrack.forget_addresses(["192.0.2.1"]) == conntrack.forget_addresses([]) == 0
        assert conntrack.forget_addresses([address], "TCP") == 0
        assert conntrack.forget_addresses([address], "UDP") == 1
        assert conntrack.flows() == []


def _nobody() -> OwnerMark:
    return OwnerMark(200)


def _track(place: Path) -> None:
    rules = (
        "add table inet t; add chain inet t c { type filter hook output priority 0; }; add rule inet t c ct state new"
    )
    with netns.inside(place):
        subprocess.run(["nft", rules], check=True)


def test_probes_answer_with_a_reason() -> None:
    features = Features()
    answers = features.all()
    assert [answer.name for answer in answers] == list(FEATURES)
    for answer in answers:
        assert answer.verdict == "yes" or answer.reason, answer
        assert answer.minimum or answer.name in ("bird", "libbpf", "ovs-vswitchd", "wireguard-engine"), (
            "all but programs came with a version"
        )
    assert features.probe("veth") and features.probe("bridge") and features.probe("nftables")
    assert features.probe("veth") is features.probe("veth")


def test_a_missing_feature_says_why_and_since_when() -> None:
    answer = FeatureAnswer("ip_vs", "no", "the kernel has no such netlink family", "2.6.28")
    assert not answer
    assert str(answer) == "ip_vs: no (the kernel has no such netlink family), in Linux since 2.6.28"


def test_a_tun_device_passes_packets(place: Path) -> None:
    with Netlink(place) as netlink:
        descriptor = tun.open_tun("t0", place)
        try:
            state = NetworkState((Link("t0", mtu=1400),), (Address("t0", "10.9.0.1/24"),))
            network.apply(netlink, state, _nobody()).check()
            with socket_in(place, socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.sendto(b"hello", ("10.9.0.2", 99))
            packets = [os.read(descriptor, 2048)]
            while packets[-1][0] >> 4 != 4:
                packets.append(os.read(descriptor, 2048))
            assert packets[-1].endswith(b"hello")
        finally:
            os.close(descriptor)
        with pytest.raises(KernelNotFound):
            network.read_link(netlink, "t0")


def test_a_socket_stays_where_it_was_made(place: Path) -> None:
    with Netlink(place) as netlink:
        network.apply(netlink, NetworkState((Link("lo"),)), _nobody()).check()
    with socket_in(place) as server:
        server.bind(("127.0.0.1", 18080))
        server.listen()
        with socket_in(place, blocking=True) as client, socket.socket() as outside:
            client.connect(("127.0.0.1", 18080))
            with pytest.raises(ConnectionRefusedError):
                outside.connect(("127.0.0.1", 18080))
