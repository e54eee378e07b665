"""The userspace relay forwards streams and datagrams unchanged, whichever process is killed meanwhile."""

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.cases.service_table import NODE
from tests.kernel import relay_traffic
from tests.kernel.relay_traffic import (
    Server,
    at,
    blocks,
    both_ways,
    client,
    kill,
    ports,
    received,
    state,
    udp_client,
    udp_ports,
)
from tests.kernel.service_namespaces import World, path

from podwire.kernel import netns
from podwire.kernel.conntrack import Conntrack
from podwire.proxy.dataplanes.userspace.balancer import Balancer
from podwire.proxy.dataplanes.userspace.dataplane import UserspaceDataPlane
from podwire.proxy.dataplanes.userspace.loop import Loop
from podwire.proxy.dataplanes.userspace.memory import Memory
from podwire.proxy.dataplanes.userspace.messages import RelayPool, Target
from podwire.proxy.dataplanes.userspace.udp import UdpSessions
from podwire.proxy.servicemap import ResolvedEndpoint

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


@pytest.fixture
def plane(world: World) -> Iterator[UserspaceDataPlane]:
    with Conntrack(path("node")) as tracked:
        tracked.forget(lambda _: True)  # a client may get the port that one of an earlier test had
    userspace_data_plane = UserspaceDataPlane(NODE, path("node"))
    yield userspace_data_plane
    userspace_data_plane.remove()
    userspace_data_plane.close()


used = relay_traffic.used


@pytest.mark.parametrize("source", ["far", "node", "outside", "one"])
def test_bytes_flow_in_both_directions_at_once(plane: UserspaceDataPlane, source: str) -> None:
    both_ways(lambda: None, source)
    assert state(plane).connections == 0


def test_a_worker_that_is_killed_loses_no_byte(plane: UserspaceDataPlane) -> None:
    both_ways(kill(plane, "pid", 4))


def test_a_keeper_that_is_killed_loses_no_byte(plane: UserspaceDataPlane) -> None:
    both_ways(kill(plane, "keeper", 2))


def test_new_connections_work_while_workers_are_killed(plane: UserspaceDataPlane) -> None:
    """Each is answered, also those that a worker had just accepted."""
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        results: list[bytes] = []
        stop = threading.Event()

        def connect() -> None:
            while not stop.is_set():
                with client() as connection:
                    connection.sendall(b"hello")
                    results.append(connection.recv(10))

        clients = [threading.Thread(target=connect) for _ in range(4)]
        for item in clients:
            item.start()
        kill(plane, "pid", 5)()
        deadline = time.monotonic() + 60
        while len(results) <= 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        stop.set()
        for item in clients:
            item.join()
        assert len(results) > 20
        assert set(results) == {b"hello"}


def test_a_half_closed_connection_still_carries_data(plane: UserspaceDataPlane) -> None:
    def answer(connection: socket.socket) -> None:
        asked = b""
        while data := connection.recv(100):
            asked += data
        connection.sendall(b"you said " + asked)

    with Server("one", answer) as server:
        plane.load(ports(server.endpoint))
        with client() as connection:
            connection.sendall(b"all")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b"you said all"
            assert connection.recv(100) == b""


def test_the_server_may_close_first(plane: UserspaceDataPlane) -> None:
    rest: list[bytes] = []
    done = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(100):
            rest.append(data)
        done.set()

    with Server("one", answer) as server:
        plane.load(ports(server.endpoint))
        with client() as connection:
            assert connection.recv(100) == b""
            connection.sendall(b"more")
        assert done.wait(30)
        assert b"".join(rest) == b"more"


def test_a_reset_is_passed_on(plane: UserspaceDataPlane) -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(10)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with Server("one", reset) as server:
        plane.load(ports(server.endpoint))
        with client() as connection:
            connection.sendall(b"x")
            with pytest.raises(ConnectionResetError):
                connection.recv(10)
    assert state(plane).connections == 0


def test_a_slow_reader_stops_the_sender(plane: UserspaceDataPlane) -> None:
    """Data waits in sockets and one pipe; none is lost when the reader continues."""
    go = threading.Event()
    observed: list[str] = []

    def read_late(connection: socket.socket) -> None:
        go.wait(90)
        observed.append(received(connection))
        connection.sendall(b"k")

    with Server("one", read_late) as server:
        plane.load(ports(server.endpoint))
        with client() as connection:
            connection.settimeout(1)
            sent, total = hashlib.sha256(), 0
            with contextlib.suppress(TimeoutError):
                for block in blocks(3, 1 << 30):
                    count = connection.send(block)
                    sent.update(block[:count])
                    total += count
                    if count < len(block):
                        break
            assert 0 < total < 64 << 20
            go.set()
            connection.settimeout(20)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"k"
            assert observed == [sent.hexdigest()]


def test_the_relay_carries_many_connections_at_once(plane: UserspaceDataPlane) -> None:
    """All are open before the first is answered."""
    count = 1500
    go = threading.Event()

    with netns.inside(path("one")):
        listener = socket.create_server(("0.0.0.0", 0), backlog=4096)
    served: list[socket.socket] = []

    def serve() -> None:
        while len(served) < count:
            served.append(listener.accept()[0])
        go.wait(90)
        for connection in served:
            connection.sendall(connection.recv(20))
            connection.close()

    server = threading.Thread(target=serve)
    server.start()
    plane.load(ports(at("one", listener.getsockname()[1])))
    clients = [client() for _ in range(count)]
    for number, connection in enumerate(clients):
        connection.sendall(f"number {number}".encode())
    deadline = time.monotonic() + 60
    while len(served) < count:
        assert time.monotonic() < deadline, len(served)
        time.sleep(0.05)
    assert state(plane).connections == count
    kill(plane, "pid")()
    assert state(plane).connections == count
    go.set()
    for number, connection in enumerate(clients):
        assert connection.recv(20) == f"number {number}".encode()
        connection.close()
    server.join()
    listener.close()


def test_the_next_endpoint_is_tried_when_one_refuses(plane: UserspaceDataPlane) -> None:
    """One endpoint refuses, one does not answer; every client gets the third."""
    with Server("two", lambda c: c.sendall(b"two")) as server:
        plane.load(ports(at("one", 1), ResolvedEndpoint("203.0.113.99", 80), server.endpoint))
        for _ in range(6):
            with client() as connection:
                assert connection.recv(10) == b"two"


def test_no_endpoint_that_accepts_is_a_reset(plane: UserspaceDataPlane) -> None:
    plane.load(ports(at("one", 1), at("two", 1)))
    with pytest.raises(ConnectionResetError), client() as connection:
        connection.recv(10)


def test_affinity_outlives_a_worker(plane: UserspaceDataPlane) -> None:
    ends = (at("one", 8080), at("two", 8080), at("far", 8080))
    plane.load(ports(*ends, affinity_s=600))

    def ask(source: str) -> str:
        with client(source) as connection:
            return connection.recv(100).decode().split()[0]

    before = {source: ask(source) for source in ("outside", "node", "one")}
    kill(plane, "pid", 2)()
    assert {source: ask(source) for source in before} == before


def test_many_udp_clients_keep_their_endpoint(plane: UserspaceDataPlane) -> None:
    plane.load(udp_ports(at("one", 8080), at("two", 8080)))
    of_others = state(plane).sessions
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(udp_client()) for _ in range(600)]

        def ask(sock: socket.socket) -> bytes:
            sock.send(b"x")
            return sock.recv(100)

        first = [ask(sock) for sock in clients]
        assert {answer.split()[0] for answer in first} == {b"one", b"two"}
        assert len(clients) <= state(plane).sessions <= len(clients) + of_others
        kill(plane, "pid")()
        assert [ask(sock) for sock in clients] == first
        assert len(clients) <= state(plane).sessions <= len(clients) + of_others


def test_udp_clients_leave_a_removed_endpoint(plane: UserspaceDataPlane) -> None:
    plane.load(udp_ports(at("one", 8080), at("two", 8080)))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(udp_client()) for _ in range(8)]

        def ask(sock: socket.socket) -> str:
            sock.send(b"x")
            return sock.recv(100).decode().split()[0]

        assert {ask(sock) for sock in clients} == {"one", "two"}
        fewer = udp_ports(at("two", 8080))
        plane.update(fewer, fewer)
        deadline = time.monotonic() + 20
        while (results := {ask(sock) for sock in clients}) != {"two"}:
            assert time.monotonic() < deadline, results


def test_an_idle_udp_session_ends(world: World) -> None:
    """It ends 30 s after a single answer, or 120 s after several; the test sets the clock."""
    now = [1000.0]
    memory = Memory.create(16)
    loop = Loop(lambda: now[0])

    class Owner:
        def __init__(self) -> None:
            self.loop, self.memory = loop, memory

        def remember_affinity(self, pool: int, client: str, target: Target) -> None:
            raise AssertionError("the pool has no affinity")

    with netns.inside(path("node")):
        socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
    listener, endpoint, brief, talkative = socks
    for sock in socks:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
    target = endpoint.getsockname()
    pool = RelayPool(key="a", protocol="udp", address="127.0.0.1", endpoints=(target,))
    with netns.inside(path("node")):
        sessions = UdpSessions(Owner(), 1, pool, Balancer(pool.endpoints), listener)

        def exchange(sock: socket.socket) -> None:
            sock.sendto(b"ask", listener.getsockname())
            loop.later(0, lambda: None)
            loop.turn()
            loop.later(0, lambda: None)
            data, peer = endpoint.recvfrom(10)
            endpoint.sendto(b"answer", peer)
            loop.turn()
            assert (data, sock.recv(10)) == (b"ask", b"answer")

        def after(seconds: float) -> int:
            now[0] += seconds
            loop.later(0, lambda: None)
            loop.turn()
            return len(sessions)

        exchange(brief)
        exchange(talkative)
        assert after(3) == 2
        exchange(talkative)
        assert after(26) == 2
        assert after(2) == 1
        assert after(90) == 1
        exchange(talkative)
        assert after(119) == 1
        assert after(2) == 0
    assert list(memory.used()) == []
    for sock in socks:
        sock.close()
    loop.close_all()
    memory.close()
