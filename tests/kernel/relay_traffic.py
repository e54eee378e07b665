"""Servers, clients and reproducible bytes for tests of the userspace relay."""

import contextlib
import hashlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
from tests.cases.service_table import ADDRESSES
from tests.kernel.service_namespaces import by_name, path

from podwire.kernel import netns
from podwire.proxy.dataplanes.userspace.dataplane import UserspaceDataPlane
from podwire.proxy.dataplanes.userspace.messages import State
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort

VIP = ("10.96.0.10", 80)
UDP_VIP = ("10.96.0.10", 53)
SIZE = 24 << 20


@pytest.fixture(autouse=True)
def used(plane: UserspaceDataPlane) -> Iterator[None]:
    """The data plane of the test, for helpers that serve all tests."""
    PLANES.append(plane)
    yield
    PLANES.pop()


def ports(*endpoints: ResolvedEndpoint, **more: object) -> dict[str, tuple[ResolvedPort, ...]]:
    """The Service web with these endpoints."""
    (port,) = by_name("ClusterIP").resolved()["default/web"]
    return {"default/web": (msgspec.structs.replace(port, cluster_endpoints=endpoints, **more),)}


def udp_ports(*endpoints: ResolvedEndpoint) -> dict[str, tuple[ResolvedPort, ...]]:
    """The same Service with UDP ports."""
    serving = frozenset(str(endpoint) for endpoint in endpoints)
    return ports(*endpoints, protocol="udp", port=53, serving=serving)


def at(pod: str, port: int) -> ResolvedEndpoint:
    return ResolvedEndpoint(ADDRESSES[pod][0], port, pod != "far")


class Server(threading.Thread):
    """Serves connections in a pod, each in a thread."""

    def __init__(self, pod: str, serve: Callable[[socket.socket], None]) -> None:
        super().__init__(daemon=True)
        self.serve = serve
        with netns.inside(path(pod)):
            self.listener = socket.create_server(("0.0.0.0", 0), backlog=4096)
        self.endpoint = at(pod, self.listener.getsockname()[1])

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self.one, args=(connection,), daemon=True).start()

    def one(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self.serve(connection)

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


def client(source: str = "far", target: tuple[str, int] = VIP) -> socket.socket:
    with netns.inside(path(source)):
        return socket.create_connection(target, 30)


def blocks(seed: int, size: int = SIZE) -> Iterator[bytes]:
    """Pseudo-random bytes from a seed, in blocks."""
    numbers = random.Random(seed)
    for _ in range(size >> 16):
        yield numbers.randbytes(1 << 16)


def digest(seed: int, size: int = SIZE) -> str:
    return hashlib.sha256(b"".join(blocks(seed, size))).hexdigest()


def received(connection: socket.socket, pause: Callable[[], object] = lambda: None) -> str:
    """The digest of all bytes up to the end of the stream."""
    result = hashlib.sha256()
    while data := connection.recv(1 << 16):
        result.update(data)
        pause()
    return result.hexdigest()


def send(connection: socket.socket, seed: int) -> None:
    for block in blocks(seed):
        connection.sendall(block)
    connection.shutdown(socket.SHUT_WR)


def both_ways(meanwhile: Callable[[], object], source: str = "far", pods: tuple[str, ...] = ("one",)) -> None:
    """Sends much data in both directions at once through the Service, and asserts that it arrives unchanged."""
    observed: list[str] = []

    def serve(connection: socket.socket) -> None:
        sender = threading.Thread(target=send, args=(connection, 2))
        sender.start()
        observed.append(received(connection))
        sender.join()

    with Server(pods[0], serve) as server:
        PLANES[-1].load(ports(server.endpoint))
        with client(source) as connection:
            connection.settimeout(60)
            sender = threading.Thread(target=send, args=(connection, 1))
            sender.start()
            meanwhile()
            assert received(connection) == digest(2)
            sender.join()
        deadline = time.monotonic() + 30
        while not observed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert observed == [digest(1)]


PLANES: list[UserspaceDataPlane] = []


def state(plane: UserspaceDataPlane) -> State:
    result = plane.relay()
    assert result is not None
    return result


def kill(plane: UserspaceDataPlane, which: str, times: int = 1) -> Callable[[], None]:
    """Kills one process of the relay while data flows."""

    def strike() -> None:
        for _ in range(times):
            time.sleep(0.05)
            before = state(plane)
            os.kill(getattr(before, which), signal.SIGKILL)
            deadline = time.monotonic() + 30
            while getattr(state(plane), which) == getattr(before, which):
                assert time.monotonic() < deadline, "no new process replaced the killed one"

    return strike


def udp_client(source: str = "far") -> socket.socket:
    with netns.inside(path(source)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(20)
    sock.connect(UDP_VIP)
    return sock
