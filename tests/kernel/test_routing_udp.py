"""The backend udp: large frames, packets of others, changed peers, and the death of its processes under traffic."""

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.kernel.datagram_stream import Stream, until
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, ClusterNode, Pod, inside, source_seen

from podwire.cli.main import root
from podwire.errors import KernelError, KernelNotFound
from podwire.kernel import comparison, netns, udptunnel
from podwire.routing.machine import OWNER
from podwire.routing.settings import RoutingSettings, parse_settings
from podwire.runtime import messages
from podwire.state.share import parse, render
from podwire.state.udptunnel import UdpPeer, UdpTunnel

DEVICE = "podwire-udp"
Make = Callable[..., Cluster]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    clusters: list[Cluster] = []

    def build(count: int = 2, families: str = "4") -> Cluster:
        clusters.append(Cluster(tmp_path, count, families=families))
        clusters[0].configure(RoutingSettings(backend="udp"))
        clusters[0].settle()
        return clusters[0]

    yield build
    for cluster in clusters:
        cluster.close()


def worker(node: ClusterNode) -> int:
    """The process that carries the packets of a node; 0 while there is none."""
    keeper = node.children()[DEVICE]
    return int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text().strip() or 0)


def counted(node: ClusterNode, name: str) -> int:
    """A counter of the process of a node."""
    text = udptunnel.counters(node.place, DEVICE)
    return next((int(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}: ")), 0)


def transfer(source: Pod, target: Pod, address: str, data: bytes) -> bytes:
    """The bytes that arrive of ``data``, by one connection of TCP."""
    with netns.inside(target.place):
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    received = bytearray()

    def take() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(60)
            while piece := connection.recv(1 << 18):
                received.extend(piece)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    with listener, netns.inside(source.place), socket.create_connection(listener.getsockname()[:2], 60) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        thread.join(60)
    return bytes(received)


@pytest.mark.parametrize("families", ["46", "64"])
def test_large_frames_arrive_unchanged_in_both_families(make: Make, families: str) -> None:
    cluster = make(families=families)
    first, second = cluster.all
    a, b = first.pod("a"), second.pod("b")
    data = os.urandom(1 << 16) * 100
    for address in (b.address, b.address6):
        assert transfer(a, b, address, data) == data
    sent, frames = counted(first, "sent bytes"), counted(first, "sent frames")
    assert sent > 2 * len(data)
    assert sent / frames > 2 * first.mtu, "one read returns many segments"
    with netns.inside(first.place):
        shown = CliRunner().invoke(root, ["udp"]).output.splitlines()
    assert shown[0].startswith("udp podwire-udp listen ") and shown[1].startswith("udp-peer podwire-udp ")
    assert any(line.startswith("sent frames: ") for line in shown)


def test_datagrams_that_a_pod_sends_together_arrive_one_by_one(make: Make) -> None:
    cluster = make()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    with netns.inside(a.place):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(b.place):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender, sink:
        sink.bind(("", 9))
        sink.settimeout(30)
        data = os.urandom(20 * 1000 + 7)
        udp_segment = (17, 103, struct.pack("=H", 1000))  # SOL_UDP, UDP_SEGMENT
        sender.sendmsg([data], [udp_segment], 0, (b.address, 9))
        chunks = [sink.recv(2000) for _ in range(21)]
    assert b"".join(chunks) == data and [len(piece) for piece in chunks] == [1000] * 20 + [7]


def test_killed_worker_loses_few_packets(make: Make) -> None:
    first, second = (cluster := make()).all
    a, b = first.pod("a"), second.pod("b")
    pids = [worker(node) for node in cluster.all]
    stream = Stream(a, b, every_s=0.01)
    until(lambda: stream.arrived > 30)
    for node in cluster.all:
        before, arrived = worker(node), stream.arrived
        os.kill(before, signal.SIGKILL)
        until(lambda node=node, before=before: worker(node) not in (0, before))  # type: ignore[misc]
        until(lambda arrived=arrived: stream.arrived > arrived + 30)  # type: ignore[misc]
    assert all(worker(node) != pid for node, pid in zip(cluster.all, pids, strict=True))
    lost = stream.lost()
    print(f"{lost} of {stream.sent} datagrams were lost when the worker of each of two nodes was killed")
    assert lost <= 4, "a frame in each direction of each worker"
    assert udptunnel.read(first.place, [DEVICE])[0].peers, "the peers stay without an agent"


def test_a_killed_keeper_and_its_agent_lose_no_packet(make: Make) -> None:
    first, second = make().all
    a, b = first.pod("a"), second.pod("b")
    stream = Stream(a, b)
    for node in (first, second):
        keeper, before = node.children()[DEVICE], worker(node)
        os.kill(keeper, signal.SIGKILL)
        arrived = stream.arrived
        until(lambda arrived=arrived: stream.arrived > arrived + 30)  # type: ignore[misc]
        node.machine.close()
        node.start_agent()
        node.router.configure(RoutingSettings(backend="udp"))
        node.reconcile()
        assert node.children()[DEVICE] != keeper
        until(lambda before=before: not Path(f"/proc/{before}/exe").exists())  # type: ignore[misc]
        arrived = stream.arrived
        until(lambda arrived=arrived: stream.arrived > arrived + 30)  # type: ignore[misc]
    assert stream.lost() == 0


def datagram(source: str, target: str) -> bytes:
    """A packet of UDP to port 9 as it travels between nodes, without a checksum."""
    inner = struct.pack("!HHHH", 1000, 9, 8 + 6, 0) + b"forged"
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(inner), 0, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(target)
    )
    total = sum(struct.unpack("!10H", header))
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return bytes((0, 0, 0, 0, 0x40, 0, 0, 0)) + header[:10] + struct.pack("!H", checksum) + header[12:] + inner


def test_packets_of_strangers_and_forged_sources_are_dropped(make: Make) -> None:
    first, second = (cluster := make()).all
    a, b = first.pod("a"), second.pod("b")
    with netns.inside(b.place):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("", 9))
    sink.settimeout(30)
    outside, pod, node = (
        socket_in(cluster.fabric, 8285),
        socket_in(a.place, 8285),
        socket_in(first.place, 8286),
    )
    with sink, outside, pod, node:
        for sender in (outside, pod):
            sender.sendto(datagram(a.address, b.address), (second.ip, 8285))
        node.sendto(datagram(a.address, b.address), (second.ip, 8285))
        until(lambda: counted(second, "dropped: not from a peer"))
        assert counted(second, "dropped: not from a peer") == 1, "the guard drops what is from no node"
        for peer in cluster.all:
            os.kill(peer.children()[DEVICE], signal.SIGTERM)
            until(lambda peer=peer: DEVICE not in peer.children())  # type: ignore[misc]
        with socket_in(first.place, 8285) as member:
            second.reconcile()
            for source in (b.address, "10.244.9.9", "192.0.2.99"):
                member.sendto(datagram(source, b.address), (second.ip, 8285))
            member.sendto(b"\xff" * 100, (second.ip, 8285))
            member.sendto(datagram(a.address, b.address), (second.ip, 8285))
            data, (source, _) = sink.recvfrom(100)
            assert (data, source) == (b"forged", a.address), "a member may say what it likes about its own pods"
        assert counted(second, "dropped: source of another node") == 3
        assert counted(second, "dropped: datagram not understood") == 1


def socket_in(place: Path, port: int) -> socket.socket:
    """A UDP socket with that port in a namespace."""
    with netns.inside(place):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", port))
    return sock


def test_a_wrong_text_is_refused_and_the_last_stays(make: Make) -> None:
    first, second = make().all
    a, b = first.pod("a"), second.pod("b")
    good = udptunnel.ask(first.place, DEVICE, "show")
    for text in (
        "",
        "udp podwire-udp listen 10.89.0.11:9999",
        f"{good}\nudp-peer podwire-udp 10.89.0.77",
        f"{good}\nudp-peer podwire-udp 10.89.0.77:1 networks 10.244.2.0/24",
    ):
        with pytest.raises(KernelError, match=r"ADDRESS:PORT|expected one tunnel|two peers have the network"):
            udptunnel.ask(first.place, DEVICE, f"set\n{text}")
    for lines in (
        "-udp-peer podwire-udp 10.89.0.77:1",
        f"+{good.splitlines()[1]}",
        "udp-peer podwire-udp 10.89.0.77:1",
    ):
        with pytest.raises(KernelError, match=r"has no peer|two peers have the endpoint|is not a changed line"):
            udptunnel.ask(first.place, DEVICE, f"change\n{lines}")
    with pytest.raises(KernelError, match="no such request now: 'take'"):
        udptunnel.ask(first.place, DEVICE, "take")
    assert udptunnel.ask(first.place, DEVICE, "show") == good
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address


def test_peers_change_without_a_restart_and_differences_are_shown(make: Make) -> None:
    first, second, third = (cluster := make(3)).all
    before = worker(first)
    text = "\n".join(render([first.router.applied.share(OWNER)]))
    line = f"udp-peer {DEVICE} {third.ip}:8285 networks {third.cidr},{third.ip}/32"
    assert line in text.splitlines()
    stated = parse(text.splitlines())
    assert [item for item in comparison.compare(stated, first.place) if "udp" in item.where] == []
    held = udptunnel.ask(first.place, DEVICE, "show").splitlines()
    udptunnel.ask(first.place, DEVICE, "set\n" + "\n".join(item for item in held if item != line))
    results = [(item.sign, item.text) for item in comparison.compare(stated, first.place) if "udp" in item.where]
    assert results == [("+", line)]
    del cluster.nodes[third.name]
    first.reconcile()
    assert udptunnel.read(first.place, [DEVICE])[0].peers[0].endpoint == f"{second.ip}:8285"
    cluster.nodes[third.name] = third.object()
    first.reconcile()
    assert line in udptunnel.ask(first.place, DEVICE, "show").splitlines()
    assert worker(first) == before


@contextmanager
def process_of_an_earlier_version(place: Path, held: list[str]) -> Iterator[list[str]]:
    """Answers requests for the device ``old0`` as before there was ``change``; gives the verbs of the requests."""
    verbs: list[str] = []
    with netns.inside(place):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(udptunnel.control_name("old0"))
    listener.listen()

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                verb, _, text = messages.receive(connection)[0].decode().partition("\n")
                verbs.append(verb)
                if verb == "end":
                    return
                held[:] = [text] if verb == "set" else held
                messages.send(connection, {"show": f"ok\n{held[0]}", "set": "ok\n"}.get(verb, "refused\nno").encode())

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield verbs
    finally:
        with pytest.raises(KernelError):
            udptunnel.ask(place, "old0", "end")
        server.join()
        listener.close()


def test_a_process_of_an_earlier_version_gets_all_peers(tmp_path: Path) -> None:
    place = tmp_path / "node"
    netns.create(place)
    peers = tuple(UdpPeer(f"192.0.2.{number}:1", (f"10.{number}.0.0/16",)) for number in (2, 3))
    old, new = (UdpTunnel("old0", "192.0.2.1:1", members) for members in (peers[:1], peers))
    held = [str(old)]
    try:
        with process_of_an_earlier_version(place, held) as verbs:
            assert udptunnel.apply(place, old) == ()
            assert udptunnel.apply(place, new) == (peers[1].line("old0"),)
            assert verbs == ["show", "show", "change", "set"] and held == [str(new)]
            assert not udptunnel.differs(place, [new]) and udptunnel.differs(place, [old])
    finally:
        netns.delete(place)


def test_another_port_is_taken_by_all_nodes_in_turn(make: Make) -> None:
    cluster = make()
    a, b = cluster.all[0].pod("a"), cluster.all[1].pod("b")
    for node in cluster.all:
        node.router.configure(parse_settings({"backend": "udp", "udp.port": 7000}, "test"))
    cluster.settle()
    assert "listen 10.89.0.11:7000" in udptunnel.ask(cluster.all[0].place, DEVICE, "show")
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address


def test_packets_that_wait_in_processes_survive_a_switch(make: Make) -> None:
    first, second = (cluster := make()).all
    a, b = first.pod("a"), second.pod("b")
    with netns.inside(b.place):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with netns.inside(a.place):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    cluster.configure(RoutingSettings(backend="hostgw"))
    with sink, sender:
        sink.bind(("", 9))
        sink.settimeout(10)
        with stopped(worker(first)):
            for _ in range(200):
                sender.sendto(b"in the device", (b.address, 9))
            first.reconcile()
        assert {sink.recv(100) for _ in range(200)} == {b"in the device"}
        second.reconcile()
        first.reconcile()
        assert DEVICE not in first.shows("ip", "link")
        with socket_in(first.place, 8285) as peer, stopped(worker(second)):
            for _ in range(200):
                peer.sendto(datagram(a.address, b.address), (second.ip, 8285))
            second.reconcile()
        assert DEVICE not in second.shows("ip", "link")
        assert {sink.recv(100) for _ in range(200)} == {b"forged"}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stops a process, which goes on 0.3 s after the body has begun."""
    os.kill(pid, signal.SIGSTOP)
    goes_on = threading.Timer(0.3, os.kill, (pid, signal.SIGCONT))
    goes_on.start()
    yield
    goes_on.join()


def test_a_switch_away_leaves_no_process_and_no_device(make: Make) -> None:
    cluster = make()
    workers = [worker(node) for node in cluster.all]
    cluster.configure(RoutingSettings(backend="vxlan"))
    cluster.settle()
    for node in cluster.all:
        assert node.children() == {}
        assert DEVICE not in node.shows("ip", "link") + node.shows("ip", "route")
        assert not list(Path(node.router.own.run_dir).glob("*.state"))
        with pytest.raises(KernelNotFound):
            udptunnel.ask(node.place, DEVICE, "show")
    assert not [pid for pid in workers if Path(f"/proc/{pid}/exe").exists()]


def test_a_worker_without_keeper_ends_after_its_device(make: Make) -> None:
    node = make().all[0]
    alone = worker(node)
    os.kill(node.children()[DEVICE], signal.SIGKILL)
    time.sleep(0.1)
    assert udptunnel.ask(node.place, DEVICE, "show")
    inside(node.place, "ip", "link", "del", DEVICE)
    until(lambda: not Path(f"/proc/{alone}/exe").exists())
