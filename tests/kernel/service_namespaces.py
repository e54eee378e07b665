"""Namespaces for real packets through a Service data plane: a node, three pods and an outside host."""

import asyncio
import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.cases.service_table import ADDRESSES, NODE, Case, Packet, read_cases
from tests.fakes.collection import Collection
from tests.kernel import sctp
from tests.kernel.marked_namespaces import MarkedNamespaces, run
from tests.present import present

from podwire.kernel import netns
from podwire.model.node import Node
from podwire.model.service import EndpointSlice, Service
from podwire.proxy.flows import flow_cleaner
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.runtime.clock import SystemClock

CASES = read_cases(Path(__file__).parents[1] / "cases/services/policies.yaml")
PODS = ("one", "two", "far")
ENDS = ("outside", *PODS)
TRIES = 24
"""Connections until each endpoint that is chosen at random has answered, whichever they are."""
TURNS = 8
"""The same where endpoints take turns: two rounds of all endpoints of this world."""
SOON_S, LATE_S = 0.4, 5.0
"""How long to wait for an answer that is not expected, and for one that is; machines may be busy."""
PATIENCE_S = 0.9 if os.uname().nodename == "uml" else SOON_S
"""The time limit without an expectation; below the second after which a lost first packet is sent again."""


_NAMESPACES = MarkedNamespaces("pwt-proxy")
path, inside, ip = _NAMESPACES.path, _NAMESPACES.inside, _NAMESPACES.ip


def near_end(name: str, index: int) -> Iterator[str]:
    """The ip(8) commands for the node's end of a link to a pod or to the outside host."""
    yield f"link add {name} type veth peer name eth0 netns {_NAMESPACES.mark}-{name}"
    yield f"link set {name} address 02:00:00:00:01:0{index} up"
    if name == "outside":
        yield f"addr add 192.168.99.1/24 dev {name}"
        yield f"addr add fd99::1/64 dev {name} nodad"
        return
    for address in ADDRESSES[name]:
        yield f"route add {address} dev {name}"
        yield f"neigh add {address} lladdr 02:00:00:00:02:0{index} dev {name}"


def far_end(name: str, index: int) -> Iterator[str]:
    """The ip(8) commands for the other end of the link."""
    four, six = ADDRESSES[name]
    yield f"link set eth0 address 02:00:00:00:02:0{index} up"
    if name == "outside":
        yield f"addr add {four}/24 dev eth0"
        yield f"addr add {six}/64 dev eth0 nodad"
        yield "route add default via 192.168.99.1"
        yield "route add default via fd99::1"
        return
    yield f"addr add {four}/32 dev eth0"
    yield f"addr add {six}/128 dev eth0 nodad"
    for gateway in ("169.254.1.1", "fe80::99"):
        yield f"route add {gateway} dev eth0"
        yield f"neigh add {gateway} lladdr 02:00:00:00:01:0{index} dev eth0"
    yield "route add default via 169.254.1.1 dev eth0"
    yield "route add default via fe80::99 dev eth0"


class EchoServers(threading.Thread):
    """Servers on the ports of all pods and the node; they answer with endpoint, client address and port."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.selector = selectors.DefaultSelector()
        self.stopping = False
        for pod in (*PODS, "node"):
            with netns.inside(path(pod)):
                for port in (8080, 8081):
                    listener = socket.create_server(
                        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64
                    )
                    self.selector.register(listener, selectors.EVENT_READ, pod)
                    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
                    datagrams.bind(("::", port))
                    self.selector.register(datagrams, selectors.EVENT_READ, pod)
                for listener in sctp.listeners(ADDRESSES[pod]):
                    self.selector.register(listener, selectors.EVENT_READ, pod)

    def run(self) -> None:
        while not self.stopping:
            for ready, _ in self.selector.select(0.2):
                self.answer(ready.fileobj, ready.data)  # type: ignore[arg-type]
        for ready in list(self.selector.get_map().values()):
            ready.fileobj.close()  # type: ignore[union-attr]
        self.selector.close()

    def answer(self, sock: socket.socket, pod: str) -> None:
        if sock.proto == socket.IPPROTO_SCTP:
            sctp.answer(sock, pod)
            return
        if sock.type == socket.SOCK_DGRAM:
            _, client = sock.recvfrom(64)
            sock.sendto(self.text(sock, pod, client[0]), client)
            return
        connection, client = sock.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(self.text(sock, pod, client[0]))

    @staticmethod
    def text(sock: socket.socket, pod: str, client: str) -> bytes:
        return f"{pod} {client.removeprefix('::ffff:')} {sock.getsockname()[1]}".encode()


class World:
    """The namespaces of the cases."""

    def __enter__(self) -> "World":
        ip(None, *(f"netns add {_NAMESPACES.mark}-{name}" for name in ("node", "outside", *PODS)))
        ip("node", "link set lo up", *(line for at, name in enumerate(ENDS) for line in near_end(name, at)))
        for at, name in enumerate(ENDS):
            ip(name, "link set lo up", *far_end(name, at))
        inside(
            "node",
            "sysctl",
            "-eqw",
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.ipv4.icmp_ratelimit=0",
            "net.ipv4.icmp_msgs_burst=10000",
            "net.ipv6.icmp.ratelimit=0",
            "net.ipv4.conf.all.rp_filter=0",
            "net.ipv4.conf.all.send_redirects=0",
        )
        ip("node", "route add default via 192.168.99.2", "route add default via fd99::2")
        self.answers = EchoServers()
        self.answers.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.answers.stopping = True
        self.answers.join()
        for name in ("node", "outside", *PODS):
            run("ip", "netns", "delete", f"{_NAMESPACES.mark}-{name}")

    def connect(
        self,
        source: str,
        address: str,
        port: int,
        protocol: str = "tcp",
        bound: str = "",
        patience_s: float = PATIENCE_S,
    ) -> tuple[str, str]:
        """The result of a connection: (pod, source it saw), ("refused", ""), ("reset", "") or ("dropped", "")."""
        if protocol == "sctp":
            with netns.inside(path(source)):
                return sctp.connect(address, port, bound or ADDRESSES[source][":" in address], patience_s)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
        with netns.inside(path(source)), socket.socket(family, kind) as sock:
            sock.settimeout(patience_s)
            if bound:
                sock.bind((bound, 0))
            try:
                sock.connect((address, port))
                if protocol == "udp":
                    with contextlib.suppress(PermissionError):  # a rule of the own machine took it; then comes why
                        sock.send(b"x")
                fields = sock.recv(200).decode().split()
            except ConnectionRefusedError:
                return "refused", ""
            except ConnectionResetError:
                return "reset", ""
            except (TimeoutError, OSError):
                return "dropped", ""
        return fields[0], fields[1]


REFUSALS = 3
"""The number of attempts when an expected refusal does not arrive."""


def outcome(world: World, packet: Packet, tries: int) -> tuple[set[str], set[str]]:
    tries = tries if packet.reaches or packet.sticky else 1
    way = (packet.address, packet.port, packet.protocol, packet.bound, SOON_S if packet.dropped else LATE_S)
    results = [world.connect(packet.source, *way) for _ in range(tries)]
    return {pod for pod, _ in results}, {observed for _, observed in results}


def check(world: World, packet: Packet, tries: int) -> None:
    pods, observed = outcome(world, packet, tries)
    if packet.refused:
        for _ in range(REFUSALS):  # the kernel limits its ICMP errors per second, for all namespaces together
            if pods == {"dropped"}:
                pods, observed = outcome(world, packet, tries)
    if packet.refused or packet.dropped:
        assert pods == {"refused" if packet.refused else "dropped"}, packet
        return
    if packet.sticky:
        assert len(pods) == 1 and pods <= set(packet.sticky), (str(packet), pods)
    else:
        assert pods == set(packet.reaches), (str(packet), pods)
    if packet.seen == "client":
        assert observed == {packet.client}, (str(packet), observed)
    elif packet.seen == "node":
        own = {"192.168.99.1", "fd99::1"}
        assert observed <= own or packet.source == "node", (str(packet), observed)


def failures_of(world: World, case: Case, tries: int = TRIES) -> list[str]:
    """The packets of a case whose outcome differs from the expected one, of ``tries`` connections each."""
    failures = []
    for packet in case.packets:
        try:
            check(world, packet, tries)
        except AssertionError as failure:
            failures.append(str(failure).splitlines()[0])
    return failures


def by_name(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


async def until(check: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def traffic(world: World, source: str, address: str, port: int = 80) -> Iterator[list[str]]:
    """A client that connects all the time until the end of the block; the pods that answer, or how connections fail."""
    results: list[str] = []
    stop = threading.Event()

    def connect() -> None:
        while not stop.is_set():
            results.append(world.connect(source, address, port, patience_s=LATE_S)[0])

    client = threading.Thread(target=connect)
    client.start()
    try:
        yield results
    finally:
        stop.set()
        client.join()


def changes_under_traffic(world: World, plane: Any, least: int) -> None:
    """Updates and reloads endpoints while a client connects, for 1.5 s at least; asserts that no connection fails."""
    both = by_name("ClusterIP").resolved()
    web = both["default/web"][0]
    item = msgspec.structs.replace(web, cluster_endpoints=web.cluster_endpoints[:1])
    plane.load(both)
    began, step = time.monotonic(), 0
    with traffic(world, "far", "10.96.0.10") as results:

        def goes_on() -> bool:
            ran_s = time.monotonic() - began
            return ran_s < 1.5 or ((step <= least or len(results) <= 50) and ran_s < 60)

        while goes_on():
            step += 1
            plane.update({"default/web": (item if step % 2 else web,)})
            if step % 10 == 0:
                plane.load(both)
    assert step > least
    assert len(results) > 50
    assert set(results) <= {"one", "two"}, {r: results.count(r) for r in set(results)}


def affinity_to_an_endpoint_that_goes(world: World, plane: Any) -> None:
    """When an endpoint goes, its clients get another endpoint and keep it when the first one comes back."""
    case = by_name("session affinity")
    resolved = case.resolved()
    plane.load(resolved)

    def ten() -> set[str]:
        return {world.connect("far", "10.96.0.10", 80, patience_s=LATE_S)[0] for _ in range(10)}

    (first,) = ten()
    (port,) = resolved["default/web"]
    rest = tuple(e for e in port.cluster_endpoints if e.address != ADDRESSES[first][0])
    other = {"one": "two", "two": "one"}[first]
    plane.update({"default/web": (msgspec.structs.replace(port, cluster_endpoints=rest),)})
    assert ten() == {other}
    plane.update(resolved)
    assert ten() == {other}


def connecting(source: str, address: str, port: int, bound: tuple[str, int] | None = None) -> socket.socket:
    """A client socket whose first packet is sent now; ``bound`` is its own address and port."""
    with netns.inside(path(source)):
        client = socket.socket()
    client.setblocking(False)
    if bound is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(bound)
    client.connect_ex((address, port))
    return client


def is_connected(client: socket.socket) -> bool:
    """Whether the connection is made, also when the first packet had to be sent again."""
    with contextlib.suppress(OSError):
        client.getpeername()
        return True
    return False


def flush(*, legacy: bool = False) -> None:
    """Deletes all rules as another program would, ``legacy``: also those; connection tracking stays on."""
    for table in ("nat", "filter") if legacy else ():
        inside("node", "iptables-legacy", "-t", table, "-F")
    chain = "add chain ip other c { type filter hook prerouting priority 0; }"
    inside("node", "nft", f"flush ruleset; add table ip other; {chain}; add rule ip other c ct state new counter")


async def becomes(expected: str, ask: Callable[[], Awaitable[str]]) -> None:
    deadline = time.monotonic() + 15
    while (answer := await ask()) != expected:
        assert time.monotonic() < deadline, f"{answer!r} in place of {expected!r}"


async def follow_flow(slices: Collection[EndpointSlice], endpoint_slice: EndpointSlice) -> None:
    """A UDP client with one socket reaches the current endpoints, and none when there is none."""
    with netns.inside(path("far")):
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with client:
        client.settimeout(0.2)
        client.connect(("10.96.0.10", 53))

        def answer() -> str:
            try:
                client.send(b"x")
                return client.recv(100).decode().split()[0]
            except OSError:
                return ""

        async def ask() -> str:
            return await asyncio.to_thread(answer)

        await becomes("two", ask)
        other = msgspec.structs.replace(present(endpoint_slice.endpoints)[0], addresses=(ADDRESSES["one"][0],))
        slices.put("default/web-0", msgspec.structs.replace(endpoint_slice, endpoints=(other,)))
        await becomes("one", ask)
        slices.put("default/web-0", msgspec.structs.replace(endpoint_slice, endpoints=()))
        await becomes("", ask)
        slices.put("default/web-0", endpoint_slice)
        await becomes("two", ask)


def proxy_follows_and_heals(world: World, plane: Any, *, legacy: bool = False) -> None:
    """Runs a whole proxy on fake sources; packets sent while its rules are missing arrive when they are sent again."""
    case = by_name("ports and protocols are independent")

    async def answering() -> str:
        """The endpoint that answers, while the proxy keeps running."""
        return (await asyncio.to_thread(world.connect, "one", "10.96.0.10", 53))[0]

    async def scenario() -> None:
        services, slices, nodes = Collection[Service](), Collection[EndpointSlice](), Collection[Node]()
        cleaner = flow_cleaner(lambda: NODE.addresses, path("node"), mode=plane.name)
        proxy = ServiceProxy(Sources(services, slices, nodes), plane, NODE, SystemClock(), cleaner)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(proxy.run())
            services.synced.set()
            await asyncio.sleep(0.05)
            assert not proxy.programmed.is_set()
            slices.synced.set()
            nodes.synced.set()
            await proxy.programmed.wait()
            assert await answering() == "dropped"
            services.put("default/web", case.services[0])
            for endpoint_slice in case.slices:
                slices.put(f"default/{endpoint_slice.metadata.name}", endpoint_slice)
            await becomes("two", answering)
            flush(legacy=legacy)
            with connecting("far", "10.96.0.10", 53) as early:
                await becomes("two", answering)
                await until(lambda: is_connected(early))
            inside("node", "nft", "delete", "table", "ip", "other")
            await follow_flow(slices, case.slices[0])
            running.cancel()

    asyncio.run(scenario())
