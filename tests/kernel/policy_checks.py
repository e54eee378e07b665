"""Checks with real packets that hold for every policy data plane; the tests of each data plane call them."""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.kernel.policy_namespaces import World, batch, inside, load, path
from tests.kernel.sockets import is_answered
from tests.kernel.test_policy_packets import CASES, compilers

from podwire.kernel import netns
from podwire.model.policy import NetworkPolicy
from podwire.policy.compile import Compiler

OPEN = next(case for case in CASES if case.name == "without a policy everything passes")
PORTS = next(case for case in CASES if case.name == "ports, protocols and ranges")
WEB, DB = "10.180.0.1", "10.180.0.2"
_IP_TRANSPARENT = 19
QUIET_S, LATE_S = 0.3, 10.0
"""How long to wait for unexpected packets, and for expected packets."""
RANGES = (
    ("10.180.0.0/24", "10.180.1.0/24", "fd18::/64"),
    ("10.180.0.0/23", "10.180.4.0/24", "fd18::/63"),
    ("10.180.0.0/22", "10.180.4.0/24"),
    ("10.180.1.0/24", "10.180.2.0/23", "fd18::/64", "fd18:0:0:2::/64"),
)
"""Pod ranges of a cluster whose nodes change, one after the other: adjacent ranges, nested ranges, other ranges."""


def policy(name: str, **spec: object) -> NetworkPolicy:
    namespace, _, short = name.partition("/")
    return msgspec.convert({"metadata": {"name": short, "namespace": namespace}, "spec": spec}, NetworkPolicy)


DENY = policy("shop/deny", podSelector={"matchLabels": {"app": "db"}}, policyTypes=["Ingress"])
ALLOW = policy("shop/allow", podSelector={"matchLabels": {"app": "db"}}, ingress=[{"from": [{"podSelector": {}}]}])


def change(plane: Any, world: World, compiler: Compiler, **policies: NetworkPolicy | None) -> None:
    for name, created in policies.items():
        compiler.set_policy(f"shop/{name}", created)
    plane.update(compiler, world.devices("n1"), compiler.flush())


class Echo(threading.Thread):
    """Echoes TCP and UDP on port 5432 of a namespace."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        with netns.inside(path(name)):
            self.listener = socket.create_server(("", 5432), backlog=64)
            self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(("", 5432))
        self.selector = selectors.DefaultSelector()
        for sock in (self.listener, self.datagrams):
            sock.setblocking(False)
            self.selector.register(sock, selectors.EVENT_READ)
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            for ready, _ in self.selector.select(0.1):
                with contextlib.suppress(OSError):
                    self.answer(ready.fileobj)  # type: ignore[arg-type]

    def answer(self, sock: socket.socket) -> None:
        if sock is self.listener:
            connection, _ = sock.accept()
            self.selector.register(connection, selectors.EVENT_READ)
        elif sock is self.datagrams:
            data, sender = sock.recvfrom(4096)
            sock.sendto(data, sender)
        elif data := sock.recv(4096):
            sock.sendall(data)
        else:
            self.selector.unregister(sock)
            sock.close()

    def close(self) -> None:
        self.stopping = True
        self.join()
        for entry in tuple(self.selector.get_map().values()):
            entry.fileobj.close()  # type: ignore[union-attr]
        self.selector.close()


def begin(plane: Any, world: World, **policies: NetworkPolicy) -> Compiler:
    """Loads only these policies into a data plane."""
    compiler = compilers(OPEN)["n1"]
    for name, created in policies.items():
        compiler.set_policy(f"shop/{name}", created)
    compiler.flush()
    load(plane, compiler, world)
    return compiler


@pytest.fixture
def echo() -> Iterator[Echo]:
    created = Echo("shop-db")
    created.start()
    yield created
    created.close()


def client(kind: int, seconds: float = LATE_S) -> socket.socket:
    with netns.inside(path("shop-web")):
        created = socket.socket(socket.AF_INET, kind)
    created.settimeout(seconds)
    return created


def answered(sock: socket.socket) -> bool:
    try:
        sock.send(b"x")
        return sock.recv(100) != b""
    except OSError:
        return False


def arrived() -> int:
    """The number of datagrams that reached the kernel of the pod, with or without a listener."""
    arguments = inside("shop-db", "cat", "/proc/net/snmp").splitlines()
    names, values = (line.split() for line in arguments if line.startswith("Udp:"))
    counts = dict(zip(names, values, strict=True))
    return int(counts["InDatagrams"]) + int(counts["NoPorts"])


def reaches(name: str, address: str, *, patience_s: float = QUIET_S) -> bool:
    """Whether a datagram gets an answer; a refusal counts as an answer."""
    return is_answered(path(name), address, 9, patience_s)


def arrives(source: str, *, patience_s: float = QUIET_S) -> bool:
    """Whether the pod gets a datagram that its node sends with this source address, as IPVS does when it forwards."""
    with netns.inside(path("n1")):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    before = arrived()
    with sock:
        sock.setsockopt(socket.SOL_IP, _IP_TRANSPARENT, 1)
        sock.bind((source, 0))
        with contextlib.suppress(PermissionError):  # the sender's error when the output hook drops the packet
            sock.sendto(b"x", (DB, 5432))
    deadline = time.monotonic() + patience_s
    while not (result := arrived() > before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return result


def cut_and_come_back(world: World, plane: Any) -> None:
    """A policy change that denies a connection cuts it; the next change, which allows it, restores it."""
    compiler = begin(plane, world)
    stream, datagrams = client(socket.SOCK_STREAM), client(socket.SOCK_DGRAM)
    stream.connect((DB, 5432))
    datagrams.connect((DB, 5432))
    assert answered(stream)
    assert answered(datagrams)
    change(plane, world, compiler, deny=DENY)
    for sock in (datagrams, stream):
        sock.settimeout(QUIET_S)
        assert not answered(sock)
        sock.settimeout(LATE_S)
    change(plane, world, compiler, allow=ALLOW)
    assert answered(datagrams)
    assert stream.recv(100) == b"x"
    stream.close()
    datagrams.close()


def shut_off_strangers(world: World, plane: Any) -> None:
    """A pod that the agent does not know can neither send nor receive."""
    begin(plane, world)
    world.attach("shop/new", "n1", ("10.180.0.9",))
    try:
        before = arrived()
        assert not reaches("shop-new", DB)
        assert arrived() == before
        assert not reaches("shop-web", "10.180.0.9")
    finally:
        world.detach("shop/new")


def stop_borrowed_addresses(world: World, plane: Any, dropped: Callable[[], int]) -> None:
    """A pod cannot send with the address of another pod as source; ``dropped`` counts such packets."""
    begin(plane, world)
    batch("blog-db", [f"address add {WEB}/32 dev eth0"])
    try:
        before, count = arrived(), dropped()
        with netns.inside(path("blog-db")):
            thief = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with thief:
            thief.bind((WEB, 0))
            for target in (DB, "192.168.99.1", "192.168.99.9"):
                thief.sendto(b"x", (target, 5432))
        time.sleep(0.1)
        assert arrived() == before
        assert dropped() == count + 3
    finally:
        batch("blog-db", [f"address delete {WEB}/32 dev eth0"])


def judge_by_who_sent(world: World, plane: Any) -> None:
    """A packet that the node forwards is judged by its original sender."""
    into = policy("shop/into", podSelector={"matchLabels": {"app": "db"}}, ingress=[{"from": [{"podSelector": {}}]}])
    compiler = begin(plane, world, into=into)
    assert arrives("192.168.99.1", patience_s=LATE_S), "the node itself"
    assert arrives(WEB, patience_s=LATE_S), "a pod that may come in"
    assert not arrives("10.180.1.2"), "a pod of another namespace"
    assert not arrives("203.0.113.9"), "somebody outside"
    out = policy("shop/out", podSelector={"matchLabels": {"app": "web"}}, policyTypes=["Egress"])
    change(plane, world, compiler, out=out)
    assert not arrives(WEB), "a pod that may not go out"
