"""The relay of mode userspace: bytes exact in both directions, whatever process is killed meanwhile."""

import contextlib
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.kernel.serviceworld import World, by_name, path

from podwire.errors import KernelError
from podwire.kernel import netns
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.dataplanes.userspace.choose import Balancer
from podwire.proxy.dataplanes.userspace.datagrams import Sessions
from podwire.proxy.dataplanes.userspace.dataplane import UserspaceDataPlane
from podwire.proxy.dataplanes.userspace.link import Link
from podwire.proxy.dataplanes.userspace.loop import Loop
from podwire.proxy.dataplanes.userspace.memory import Memory
from podwire.proxy.dataplanes.userspace.orders import Arrange, Pool, Renew, State, Target
from podwire.proxy.dataplanes.userspace.process import ARGV
from podwire.proxy.dataplanes.userspace.relay import Relay
from podwire.proxy.servicemap import Endpoint, ServicePort
from podwire.testing.servicecases import ADDRESSES, NODE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

VIP = ("10.96.0.10", 80)
UDP_VIP = ("10.96.0.10", 53)
SIZE = 24 << 20


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture
def plane(world: World) -> Iterator[UserspaceDataPlane]:
    made = UserspaceDataPlane(NODE, path("node"))
    yield made
    made.remove()
    made.close()


def ports(*endpoints: Endpoint, **more: object) -> dict[str, tuple[ServicePort, ...]]:
    """The Service web with these endpoints."""
    (port,) = by_name("ClusterIP").resolved()["default/web"]
    return {"default/web": (msgspec.structs.replace(port, cluster_endpoints=endpoints, **more),)}


def udp_ports(*endpoints: Endpoint) -> dict[str, tuple[ServicePort, ...]]:
    """The same for UDP."""
    serving = frozenset(str(endpoint) for endpoint in endpoints)
    return ports(*endpoints, protocol="udp", port=53, serving=serving)


def at(pod: str, port: int) -> Endpoint:
    return Endpoint(ADDRESSES[pod][0], port, pod != "far")


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
        return socket.create_connection(target, 10)


def blocks(seed: int, size: int = SIZE) -> Iterator[bytes]:
    """Bytes that nobody can mistake for others."""
    numbers = random.Random(seed)
    for _ in range(size >> 16):
        yield numbers.randbytes(1 << 16)


def digest(seed: int, size: int = SIZE) -> str:
    return hashlib.sha256(b"".join(blocks(seed, size))).hexdigest()


def received(connection: socket.socket, pause: Callable[[], object] = lambda: None) -> str:
    """The digest of everything until the end."""
    found = hashlib.sha256()
    while data := connection.recv(1 << 16):
        found.update(data)
        pause()
    return found.hexdigest()


def send(connection: socket.socket, seed: int) -> None:
    for block in blocks(seed):
        connection.sendall(block)
    connection.shutdown(socket.SHUT_WR)


def both_ways(meanwhile: Callable[[], object], source: str = "far", pods: tuple[str, ...] = ("one",)) -> None:
    """Much goes both ways at once, through the Service, and arrives as it was sent."""
    seen: list[str] = []

    def serve(connection: socket.socket) -> None:
        sender = threading.Thread(target=send, args=(connection, 2))
        sender.start()
        seen.append(received(connection))
        sender.join()

    with Server(pods[0], serve) as server:
        _PLANES[-1].load(ports(server.endpoint))
        with client(source) as connection:
            connection.settimeout(60)
            sender = threading.Thread(target=send, args=(connection, 1))
            sender.start()
            meanwhile()
            assert received(connection) == digest(2)
            sender.join()
        deadline = time.monotonic() + 10
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
        assert seen == [digest(1)]


_PLANES: list[UserspaceDataPlane] = []


@pytest.fixture(autouse=True)
def used(plane: UserspaceDataPlane) -> Iterator[None]:
    """The plane of the test, for what serves all tests."""
    _PLANES.append(plane)
    yield
    _PLANES.pop()


def state(plane: UserspaceDataPlane) -> State:
    found = plane.relay()
    assert found is not None
    return found


def kill(plane: UserspaceDataPlane, which: str, times: int = 1) -> Callable[[], None]:
    """Kills one of the relay's processes while bytes go."""

    def strike() -> None:
        for _ in range(times):
            time.sleep(0.05)
            before = state(plane)
            os.kill(getattr(before, which), signal.SIGKILL)
            deadline = time.monotonic() + 10
            while getattr(state(plane), which) == getattr(before, which):
                assert time.monotonic() < deadline, "nobody took its place"

    return strike


@pytest.mark.parametrize("source", ["far", "node", "outside", "one"])
def test_bytes_go_both_ways_at_once(plane: UserspaceDataPlane, source: str) -> None:
    both_ways(lambda: None, source)
    assert state(plane).connections == 0


def test_a_worker_that_is_killed_loses_no_byte(plane: UserspaceDataPlane) -> None:
    both_ways(kill(plane, "pid", 4))


def test_a_keeper_that_is_killed_loses_no_byte(plane: UserspaceDataPlane) -> None:
    both_ways(kill(plane, "keeper", 2))


def test_another_program_loses_no_byte(plane: UserspaceDataPlane) -> None:
    def renew() -> None:
        before = state(plane).pid
        link = Link(path("node"))
        link._ask(Renew(ARGV))
        link.close()
        assert state(plane).pid != before

    both_ways(renew)


def test_a_new_agent_finds_the_relay_and_loses_no_byte(plane: UserspaceDataPlane) -> None:
    def restart() -> None:
        before = state(plane)
        plane.close()
        plane.__init__(NODE, path("node"))  # type: ignore[misc]
        assert state(plane).pid == before.pid

    both_ways(restart)


def test_the_mode_ends_and_established_connections_go_on(plane: UserspaceDataPlane) -> None:
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        with client("node") as connection:
            time.sleep(0.1)
            other = NftablesDataPlane(NODE, path("node"))
            other.load(ports(server.endpoint))
            plane.remove()
            time.sleep(2.5)
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"
            assert connection.recv(10) == b""
    other.remove()
    other.close()
    deadline = time.monotonic() + 10
    while (left := plane.relay()) is not None and not left.sessions:
        assert time.monotonic() < deadline, "the relay stays"
        time.sleep(0.05)


def test_new_connections_while_workers_are_killed(plane: UserspaceDataPlane) -> None:
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
        for each in clients:
            each.start()
        kill(plane, "pid", 5)()
        stop.set()
        for each in clients:
            each.join()
        assert len(results) > 20
        assert set(results) == {b"hello"}


def test_half_close(plane: UserspaceDataPlane) -> None:
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


def test_the_server_may_be_done_first(plane: UserspaceDataPlane) -> None:
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
        assert done.wait(5)
        assert b"".join(rest) == b"more"


def test_a_reset_becomes_a_reset(plane: UserspaceDataPlane) -> None:
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
    """What waits does so in sockets and one pipe; nothing is lost when the reader goes on."""
    go = threading.Event()
    seen: list[str] = []

    def read_late(connection: socket.socket) -> None:
        go.wait(30)
        seen.append(received(connection))
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
            assert seen == [sent.hexdigest()]


def test_many_connections_at_once(plane: UserspaceDataPlane) -> None:
    """All are open before the first is answered."""
    count = 1500
    go = threading.Event()

    with netns.inside(path("one")):
        listener = socket.create_server(("0.0.0.0", 0), backlog=4096)
    served: list[socket.socket] = []

    def serve() -> None:
        while len(served) < count:
            served.append(listener.accept()[0])
        go.wait(30)
        for connection in served:
            connection.sendall(connection.recv(20))
            connection.close()

    server = threading.Thread(target=serve)
    server.start()
    plane.load(ports(at("one", listener.getsockname()[1])))
    clients = [client() for _ in range(count)]
    for number, connection in enumerate(clients):
        connection.sendall(f"number {number}".encode())
    deadline = time.monotonic() + 20
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


def test_the_next_endpoint_is_tried(plane: UserspaceDataPlane) -> None:
    """One refuses, one does not answer at all; every client gets the third."""
    with Server("two", lambda c: c.sendall(b"two")) as server:
        plane.load(ports(at("one", 1), Endpoint("203.0.113.99", 80), server.endpoint))
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


def test_when_both_are_killed_another_relay_is_started(plane: UserspaceDataPlane) -> None:
    resolved = ports(at("one", 8080))
    plane.load(resolved)
    before = state(plane)
    os.kill(before.keeper, signal.SIGSTOP)
    os.kill(before.pid, signal.SIGKILL)
    os.kill(before.keeper, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while not plane.disturbed():
        assert time.monotonic() < deadline, "it is not noticed"
        time.sleep(0.01)
    assert any(plane.heal())
    with client() as connection:
        assert connection.recv(100).decode().split()[0] == "one"


def test_the_relay_obeys_root_alone(plane: UserspaceDataPlane) -> None:
    plane.load(ports(at("one", 8080)))
    pid = os.fork()
    if pid == 0:
        netns.enter(path("node"))
        os.setuid(65534)
        try:
            Link().state()
        except KernelError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def udp_client(source: str = "far") -> socket.socket:
    with netns.inside(path(source)):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(2)
    sock.connect(UDP_VIP)
    return sock


def test_many_udp_clients_keep_their_endpoint(plane: UserspaceDataPlane) -> None:
    plane.load(udp_ports(at("one", 8080), at("two", 8080)))
    of_others = state(plane).sessions
    clients = [udp_client() for _ in range(600)]

    def ask(sock: socket.socket) -> bytes:
        sock.send(b"x")
        return sock.recv(100)

    first = [ask(sock) for sock in clients]
    assert {answer.split()[0] for answer in first} == {b"one", b"two"}
    assert len(clients) <= state(plane).sessions <= len(clients) + of_others
    kill(plane, "pid")()
    assert [ask(sock) for sock in clients] == first
    assert len(clients) <= state(plane).sessions <= len(clients) + of_others
    for sock in clients:
        sock.close()


def test_udp_leaves_an_endpoint_that_is_gone(plane: UserspaceDataPlane) -> None:
    plane.load(udp_ports(at("one", 8080), at("two", 8080)))
    clients = [udp_client() for _ in range(8)]

    def ask(sock: socket.socket) -> str:
        sock.send(b"x")
        return sock.recv(100).decode().split()[0]

    assert {ask(sock) for sock in clients} == {"one", "two"}
    plane.update(udp_ports(at("two", 8080)))
    deadline = time.monotonic() + 3
    while {ask(sock) for sock in clients} != {"two"}:
        assert time.monotonic() < deadline
    for sock in clients:
        sock.close()


def test_a_worker_finds_its_way_through_pools_that_are_gone(plane: UserspaceDataPlane) -> None:
    """Numbers of descriptors in the journal may be those of something else by now."""
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        for _ in range(3):
            plane.load(ports(server.endpoint))
            plane.update({"default/web": ()})
            time.sleep(2.2)
        plane.load(ports(server.endpoint))
        with client() as connection:
            kill(plane, "pid")()
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"


def test_a_relay_in_the_foreground_is_found_and_stays(world: World, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, netns.inside(path("two")):
        process = subprocess.Popen([sys.executable, "-m", "podwire.cli.main", "proxy", "relay"], stderr=log)
    link = Link(path("two"))
    try:
        deadline = time.monotonic() + 10
        while (found := link.state()) is None:
            assert time.monotonic() < deadline, "it does not start"
            time.sleep(0.05)
        assert found.keeper == process.pid
        made = UserspaceDataPlane(NODE, path("two"))
        made.load(ports(at("one", 8080)))
        assert made.relay() is not None
        made.remove()
        made.close()
        time.sleep(2.5)
        after = link.state()
        assert after is not None
        assert (after.pid, after.ports) == (found.pid, {})
        second = [sys.executable, "-m", "podwire.cli.main", "proxy", "relay"]
        with netns.inside(path("two")):
            refused = subprocess.run(second, capture_output=True, text=True, timeout=20, check=False)
        assert refused.returncode != 0
        assert "Address already in use" in refused.stderr
    finally:
        link.close()
        process.kill()
        os.kill(found.pid, signal.SIGKILL)
        process.wait()


def test_a_udp_session_ends_when_nothing_comes(world: World) -> None:
    """30 s after the only answer, 120 s where answers came for a while; a clock that is set by hand."""
    now = [1000.0]
    memory = Memory.create(16)
    loop = Loop(lambda: now[0])

    class Owner:
        def __init__(self) -> None:
            self.loop, self.memory = loop, memory

        def chosen(self, number: int, client: str, target: Target) -> None:
            raise AssertionError("there is no affinity")

    with netns.inside(path("node")):
        socks = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
    listener, endpoint, brief, talkative = socks
    for sock in socks:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
    target = endpoint.getsockname()
    pool = Pool(key="a", protocol="udp", address="127.0.0.1", endpoints=(target,))
    with netns.inside(path("node")):
        sessions = Sessions(Owner(), 1, pool, Balancer(pool.endpoints), listener)

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


def test_a_program_that_cannot_be_started_changes_nothing(plane: UserspaceDataPlane) -> None:
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        with client() as connection:
            before = state(plane)
            link = Link(path("node"))
            link._ask(Renew(("/nowhere/python",)))
            link.close()
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"
            assert state(plane).keeper == before.keeper


def test_an_agent_of_another_version_takes_the_relay_along(
    plane: UserspaceDataPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay that runs other code than the agent's goes on as the agent's, with its connections and ports."""
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        before = state(plane)
        with client() as connection:
            monkeypatch.setattr("podwire.proxy.dataplanes.userspace.link.build", lambda: "another")
            with contextlib.closing(UserspaceDataPlane(NODE, path("node"))) as newer:
                assert not any(newer.load(ports(server.endpoint)))
                after = state(newer)
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"
        assert after.pid != before.pid
        assert after.keeper != before.keeper
        assert after.ports == before.ports


def test_what_cannot_be_accepted_waits(world: World) -> None:
    """A relay with memory for two connections: the third is served when one of them has ended."""
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        target = (server.endpoint.address, server.endpoint.port)
        reading, writing = os.pipe()
        relay = os.fork()
        if not relay:
            netns.enter(path("node"))
            loop = Loop()
            pool = Pool(key="a", protocol="tcp", address="192.168.99.1", endpoints=(target,))
            arranged = Relay(Memory.create(2), loop).arrange(Arrange((pool,)))
            os.write(writing, str(arranged.ports["a"]).encode())
            loop.run()
            os._exit(0)
        try:
            place = ("192.168.99.1", int(os.read(reading, 10)))
            first, second, third = (client("outside", place) for _ in range(3))
            with first, second, third:
                second.sendall(b"second")
                third.sendall(b"third")
                assert second.recv(10) == b"second"
                third.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    third.recv(10)
                second.close()
                third.settimeout(5)
                assert third.recv(10) == b"third"
                first.sendall(b"first")
                assert first.recv(10) == b"first"
        finally:
            os.kill(relay, signal.SIGKILL)
            os.waitpid(relay, 0)
            os.close(reading)
            os.close(writing)


def test_a_relay_that_is_asked_to_end_serves_what_it_has(plane: UserspaceDataPlane) -> None:
    with Server("one", lambda c: c.sendall(c.recv(10))) as server:
        plane.load(ports(server.endpoint))
        with client() as connection:
            asked = state(plane)
            os.kill(asked.keeper, signal.SIGTERM)
            time.sleep(2.5)
            connection.sendall(b"still")
            assert connection.recv(10) == b"still"
            after = state(plane)
            assert (after.pid, after.ports) == (asked.pid, {})
        plane._link.close()
        link = Link(path("node"))
        deadline = time.monotonic() + 5
        while (left := link.state()) is not None and not left.sessions:
            link.close()
            assert time.monotonic() < deadline, "it stays"
            time.sleep(0.05)
        link.close()
