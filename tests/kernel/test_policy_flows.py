"""Connections when policies change: `strict` ends them, also when only the other side sends; `keep` keeps them."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from tests.kernel.policy_checks import OPEN, policy
from tests.kernel.policy_namespaces import FACTS, World, path
from tests.kernel.raw_responders import EndlessReplies
from tests.kernel.test_policy_packets import compilers

from podwire.kernel import netns
from podwire.kernel.conntrack import Conntrack
from podwire.policy.dataplane import PolicyDataPlane
from podwire.policy.flows import Losses, forget, verdicts
from podwire.policy.modes import open_dataplane
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.registry import DATAPLANES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

FAMILIES = (socket.AF_INET, socket.AF_INET6)
CLIENT = {socket.AF_INET: "10.180.0.1", socket.AF_INET6: "fd18::1"}
SERVER = {socket.AF_INET: "10.180.0.2", socket.AF_INET6: "fd18::2"}
PORT = 5432
QUIET_S = 0.3
ONLY = policy("shop/only", podSelector={}, policyTypes=["Ingress", "Egress"])
OUT = policy(
    "shop/out",
    podSelector={"matchLabels": {"app": "web"}},
    policyTypes=["Egress"],
    egress=[{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}],
)
INTO = policy(
    "shop/into",
    podSelector={"matchLabels": {"app": "db"}},
    ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        created.attach_pods(OPEN)
        yield created


class Node:
    """The first node with its policies, and the agent's handling of connections."""

    def __init__(self, world: World, plane: PolicyDataPlane) -> None:
        self.world = world
        self.plane = plane
        self.compiler = compilers(OPEN)["n1"]
        self.losses = Losses(self.compiler)
        for name, created in (("only", ONLY), ("out", OUT), ("into", INTO)):
            self.compiler.set_policy(f"shop/{name}", created)
        self.compiler.flush()

    def load(self, *, keep: bool) -> None:
        self.plane.load(self.compiler, self.world.devices("n1"), replace(FACTS["n1"], keep=keep))
        self.losses.follow(PolicyDelta(pods=dict(self.compiler.pods)))

    def allow(self, *, allowed: bool) -> set[str]:
        """Deletes or restores the policy that allows the client; returns the lost permissions."""
        self.compiler.set_policy("shop/into", INTO if allowed else None)
        delta = self.compiler.flush()
        self.plane.update(self.compiler, self.world.devices("n1"), delta)
        return self.losses.follow(delta)

    def forget(self, addresses: set[str]) -> int:
        return len(forget(lambda local: verdicts(self.compiler, local), addresses, path("n1")))


@pytest.fixture(scope="module", params=tuple(DATAPLANES))
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[PolicyDataPlane]:
    created = open_dataplane(request.param, FACTS["n1"], path("n1"))
    yield created
    created.remove()
    created.close()


@pytest.fixture
def node(world: World, plane: PolicyDataPlane) -> Node:
    with Conntrack(path("n1")) as conntrack:
        conntrack.forget(lambda _flow: True)
    return Node(world, plane)


def in_pod(name: str, family: int, kind: int) -> socket.socket:
    with netns.inside(path(name)):
        created = socket.socket(family, kind)
    created.settimeout(20)
    return created


class Pusher(threading.Thread):
    """A server that sends to its first client without end and reads nothing."""

    def __init__(self, family: int, kind: int) -> None:
        super().__init__(daemon=True)
        self.kind = kind
        self.sock = in_pod("shop-db", family, kind)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(("", PORT))
        self.stopping = False
        if kind == socket.SOCK_STREAM:
            self.sock.listen()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            if self.kind == socket.SOCK_STREAM:
                peer, _ = self.sock.accept()
                peer.settimeout(0.1)
            else:
                _, address = self.sock.recvfrom(100)
                peer = self.sock
                peer.connect(address)
            with peer:  # also when the client is gone first, which a send answers with a reset
                self.push(peer)

    def push(self, peer: socket.socket) -> None:
        while not self.stopping:
            with contextlib.suppress(TimeoutError, PermissionError):
                peer.send(b"x" * 500)
            time.sleep(0.002)

    def close(self) -> None:
        self.stopping = True
        self.join()
        self.sock.close()


@pytest.fixture
def pushed(request: pytest.FixtureRequest) -> Iterator[Callable[[int, int], socket.socket]]:
    """Connects a client to a server that pushes."""
    opened: list[Pusher | socket.socket] = []

    def start(family: int, kind: int) -> socket.socket:
        server = Pusher(family, kind)
        server.start()
        sock = in_pod("shop-web", family, kind)
        opened.extend((server, sock))
        sock.connect((SERVER[socket.AddressFamily(family)], PORT))
        if kind == socket.SOCK_DGRAM:
            sock.send(b"go")
        return sock

    yield start
    for item in reversed(opened):
        item.close()


def comes(sock: socket.socket, seconds: float = 10.0) -> bool:
    """Whether new data comes."""
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while sock.recv(1 << 16):
            pass
    sock.settimeout(seconds)
    try:
        return bool(sock.recv(1 << 16))
    except TimeoutError:
        return False


@pytest.mark.parametrize("family", FAMILIES)
def test_a_server_that_pushes_datagrams_is_stopped(
    node: Node, pushed: Callable[[int, int], socket.socket], family: int
) -> None:
    node.load(keep=False)
    sock = pushed(family, socket.SOCK_DGRAM)
    assert comes(sock)
    lost = node.allow(allowed=False)
    assert SERVER[socket.AddressFamily(family)] in lost
    assert comes(sock), "answers alone pass unseen: this is what forgetting is for"
    assert node.forget(lost) == 1
    assert not comes(sock, QUIET_S)
    assert node.forget(lost) == 0
    assert not node.allow(allowed=True), "nothing is taken away"
    sock.send(b"go")
    assert comes(sock), "allowed again"


@pytest.mark.parametrize("family", FAMILIES)
def test_endless_replies_are_stopped_in_protocols_without_handshake(node: Node, family: socket.AddressFamily) -> None:
    node.load(keep=False)
    with contextlib.closing(EndlessReplies(("shop-web", "shop-db"), CLIENT[family], SERVER[family])) as answers:
        answers.ask()
        answers.start()
        assert answers.coming(20) == answers.kinds.keys()
        lost = node.allow(allowed=False)
        assert answers.coming(20) == answers.kinds.keys(), "answers alone pass unseen: this is what forgetting is for"
        assert node.forget(lost) == len(answers.kinds)
        assert not answers.coming(QUIET_S)
        assert node.forget(lost) == 0
        node.allow(allowed=True)
        answers.ask()
        assert answers.coming(20) == answers.kinds.keys(), "allowed again"


@pytest.mark.parametrize("family", FAMILIES)
def test_denied_download_stops_and_resumes_when_allowed(
    node: Node, pushed: Callable[[int, int], socket.socket], family: int
) -> None:
    node.load(keep=False)
    sock = pushed(family, socket.SOCK_STREAM)
    assert comes(sock)
    lost = node.allow(allowed=False)
    assert node.forget(lost) == 0, "TCP is let be"
    time.sleep(QUIET_S)
    assert not comes(sock, QUIET_S), "nothing is acknowledged, so nothing more is sent"
    node.allow(allowed=True)
    assert comes(sock), "it goes on where it was"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_established_connections_continue_and_new_ones_are_judged(
    node: Node, pushed: Callable[[int, int], socket.socket], family: int, kind: int
) -> None:
    node.load(keep=True)
    sock = pushed(family, kind)
    assert comes(sock)
    node.allow(allowed=False)
    sock.settimeout(20)
    for _ in range(3):
        sock.send(b"y")
        assert comes(sock)
    with in_pod("shop-web", family, socket.SOCK_STREAM) as late:
        late.settimeout(QUIET_S)
        with pytest.raises(TimeoutError):
            late.connect((SERVER[socket.AddressFamily(family)], PORT))


@pytest.mark.parametrize("family", FAMILIES)
def test_foreign_and_allowed_flows_are_kept(
    node: Node, pushed: Callable[[int, int], socket.socket], family: int
) -> None:
    node.load(keep=False)
    sock = pushed(family, socket.SOCK_DGRAM)
    assert comes(sock)
    everything = {address for pod in node.compiler.pods.values() for address in pod.addresses}
    rest = {f"10.180.9.{number}" for number in range(9)}
    assert node.forget(everything) == 0
    assert comes(sock)
    node.allow(allowed=False)
    assert node.forget(rest) == 0
    assert comes(sock)
    assert node.forget(everything) == 1, "found among many addresses"
    assert not comes(sock, QUIET_S)
