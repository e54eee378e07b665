"""The nftables data plane with real packets: every case of the packet table, restart, healing, replacement."""

import contextlib
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.kernel import netns
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.testing.servicecases import ADDRESSES, NODE, Case, Packet, read_cases

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MARK = f"pwt-proxy-{os.getpid()}"
CASES = read_cases(Path(__file__).parents[1] / "cases/services/policies.yaml")
PODS = ("one", "two", "far")
TRIES = 24


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def path(name: str) -> Path:
    return Path(f"/run/netns/{MARK}-{name}")


def inside(name: str, *words: str) -> str:
    return run("ip", "netns", "exec", f"{MARK}-{name}", *words)


class Answers(threading.Thread):
    """Answers on every pod's ports: the pod's name and the client's address."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.selector = selectors.DefaultSelector()
        self.stopping = False
        for pod in PODS:
            with netns.inside(path(pod)):
                for port in (8080, 8081):
                    listener = socket.create_server(
                        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64
                    )
                    self.selector.register(listener, selectors.EVENT_READ, pod)
                datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
                datagrams.bind(("::", 8080))
                self.selector.register(datagrams, selectors.EVENT_READ, pod)

    def run(self) -> None:
        while not self.stopping:
            for ready, _ in self.selector.select(0.2):
                self.answer(ready.fileobj, ready.data)  # type: ignore[arg-type]
        for ready in list(self.selector.get_map().values()):
            ready.fileobj.close()  # type: ignore[union-attr]
        self.selector.close()

    def answer(self, sock: socket.socket, pod: str) -> None:
        if sock.type == socket.SOCK_DGRAM:
            _, client = sock.recvfrom(64)
            sock.sendto(f"{pod} {client[0].removeprefix('::ffff:')}".encode(), client)
            return
        connection, client = sock.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(f"{pod} {client[0].removeprefix('::ffff:')}".encode())


class World:
    """The namespaces that the cases speak of."""

    def __enter__(self) -> "World":
        for name in ("node", "outside", *PODS):
            run("ip", "netns", "add", f"{MARK}-{name}")
            inside(name, "ip", "link", "set", "lo", "up")
        for index, name in enumerate(("outside", *PODS)):
            self.attach(name, index)
        for setting in (
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.ipv4.icmp_ratelimit=0",
            "net.ipv6.icmp.ratelimit=0",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.all.send_redirects=0",
        ):
            inside("node", "sysctl", "-qw", setting)
        inside("node", "ip", "route", "add", "default", "via", "192.168.99.2")
        inside("node", "ip", "route", "add", "default", "via", "fd99::2")
        self.answers = Answers()
        self.answers.start()
        return self

    def attach(self, name: str, index: int) -> None:
        inside("node", "ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", f"{MARK}-{name}")
        inside("node", "ip", "link", "set", name, "address", f"02:00:00:00:01:0{index}", "up")
        inside(name, "ip", "link", "set", "eth0", "address", f"02:00:00:00:02:0{index}", "up")
        four, six = ADDRESSES[name]
        if name == "outside":
            inside("node", "ip", "addr", "add", "192.168.99.1/24", "dev", name)
            inside("node", "ip", "addr", "add", "fd99::1/64", "dev", name, "nodad")
            inside(name, "ip", "addr", "add", f"{four}/24", "dev", "eth0")
            inside(name, "ip", "addr", "add", f"{six}/64", "dev", "eth0", "nodad")
            inside(name, "ip", "route", "add", "default", "via", "192.168.99.1")
            inside(name, "ip", "route", "add", "default", "via", "fd99::1")
            return
        for address, gateway in ((f"{four}/32", "169.254.1.1"), (f"{six}/128", "fe80::99")):
            inside(name, "ip", "addr", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else []))
            inside(name, "ip", "route", "add", gateway, "dev", "eth0")
            inside(name, "ip", "route", "add", "default", "via", gateway, "dev", "eth0")
            inside(name, "ip", "neigh", "add", gateway, "lladdr", f"02:00:00:00:01:0{index}", "dev", "eth0")
            inside("node", "ip", "route", "add", address, "dev", name)
            inside(
                "node", "ip", "neigh", "add", address.split("/")[0], "lladdr", f"02:00:00:00:02:0{index}", "dev", name
            )

    def __exit__(self, *failure: object) -> None:
        self.answers.stopping = True
        self.answers.join()
        for name in ("node", "outside", *PODS):
            run("ip", "netns", "delete", f"{MARK}-{name}")

    def connect(self, source: str, address: str, port: int, protocol: str = "tcp") -> tuple[str, str]:
        """(pod, source seen), ("refused", "") or ("dropped", "")."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
        with netns.inside(path(source)), socket.socket(family, kind) as sock:
            sock.settimeout(0.4)
            try:
                sock.connect((address, port))
                if protocol == "udp":
                    sock.send(b"x")
                words = sock.recv(200).decode().split()
            except ConnectionRefusedError:
                return "refused", ""
            except (TimeoutError, OSError):
                return "dropped", ""
        return words[0], words[1]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def plane(world: World) -> Iterator[NftablesDataPlane]:
    made = NftablesDataPlane(NODE, path("node"))
    yield made
    made.remove()
    made.close()


def outcome(world: World, packet: Packet) -> tuple[set[str], set[str]]:
    tries = TRIES if packet.reaches or packet.sticky else 1
    results = [world.connect(packet.source, packet.address, packet.port, packet.protocol) for _ in range(tries)]
    return {pod for pod, _ in results}, {seen for _, seen in results}


def check(world: World, packet: Packet) -> None:
    pods, seen = outcome(world, packet)
    if packet.refused or packet.dropped:
        assert pods == {"refused" if packet.refused else "dropped"}, packet
        return
    if packet.sticky:
        assert len(pods) == 1 and pods <= set(packet.sticky), (str(packet), pods)
    else:
        assert pods == set(packet.reaches), (str(packet), pods)
    if packet.seen == "client":
        assert seen == {packet.client}, (str(packet), seen)
    elif packet.seen == "node":
        own = {"192.168.99.1", "fd99::1"}
        assert seen <= own or packet.source == "node", (str(packet), seen)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_table(world: World, plane: NftablesDataPlane, case: Case) -> None:
    plane.load(case.resolved())
    failures = []
    for packet in case.packets:
        try:
            check(world, packet)
        except AssertionError as failure:
            failures.append(str(failure).splitlines()[0])
    assert not failures
