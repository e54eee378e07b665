"""A backend that a test registers carries packets, runs its child process, guards its port, and leaves nothing."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes import qdisc_kind
from tests.fakes.toy_backend import DEVICE, GUARD, REGISTRY
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, ClusterNode, inside, source_seen
from tests.kernel.routing_programs import Nodes, kill_programs, run, until

from podwire.kernel import netns
from podwire.kernel.kinds import KERNEL_KINDS
from podwire.routing.machine import OWNER
from podwire.routing.settings import RoutingSettings, parse_settings
from podwire.state.kinds import KINDS

PORT = 4779


def settings(backend: str) -> RoutingSettings:
    return parse_settings({"backend": backend, "toy.port": PORT}, "test", REGISTRY)


def answer(place: Path, address: str, wait_s: float = 0.2) -> bytes:
    """What the child process of a node says to a sender in a namespace; empty when nothing answers."""
    with netns.inside(place):
        asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with asking:
        asking.settimeout(wait_s)
        try:
            asking.sendto(b"?", (address, PORT))
            return asking.recv(1000)
        except OSError:
            return b""


def traces(node: ClusterNode) -> list[str]:
    """What there is of the toy backend on a node."""
    results = [
        word for word in (DEVICE, GUARD) if word in node.shows("ip", "link") + node.shows("nft", "list", "tables")
    ]
    results += [str(file) for file in Path(node.router.own.run_dir).rglob("*") if file.is_file()]
    results += [line for line in node.shows("tc", "qdisc", "show").splitlines() if qdisc_kind.HANDLE in line]
    sockets = node.shows("ss", "-Hlun")
    return results + [line for line in sockets.splitlines() if f":{PORT} " in line]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setitem(KINDS, "qdisc", qdisc_kind.KIND)
    monkeypatch.setitem(KERNEL_KINDS, "qdisc", qdisc_kind.KERNEL_KIND)
    created = Cluster(tmp_path, 2, registry=REGISTRY)
    yield created
    kill_programs(tmp_path)
    created.close()


def test_switching_to_the_backend_and_back_leaves_nothing(cluster: Cluster) -> None:
    async def body(cluster: Cluster, nodes: Nodes) -> None:
        first, second = cluster.all
        await nodes.use(settings("vxlan"))
        a, b = first.pod("a"), second.pod("b")
        for other in ("vxlan", "hostgw"):
            await nodes.use(settings("toy"))
            with b.running(SOURCE_REPLY_SERVER):
                assert source_seen(a.place, b.address) == a.address
            assert f"dev {DEVICE}" in first.shows("ip", "route", "get", b.address)
            assert "podwire-vxlan" not in first.shows("ip", "link")
            assert "qdisc pfifo 7113: root" in first.shows("tc", "qdisc", "show", "dev", "eth0")
            assert "qdisc dev eth0 pfifo limit 900" in str(first.router.applied.share(OWNER))
            await until(lambda: answer(first.place, second.ip) == b"node-2 reaches node-1")
            assert answer(cluster.fabric, second.ip) == b"", "the sender is no node"
            await nodes.use(settings(other))
            assert [traces(node) for node in cluster.all] == [[], []]
            with b.running(SOURCE_REPLY_SERVER):
                assert source_seen(a.place, b.address) == a.address

    run(cluster, body)


def test_the_child_process_outlives_the_agent_and_is_adopted(cluster: Cluster) -> None:
    node = cluster.all[0]
    sockets: list[str] = []

    async def first(_cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings("toy"))
        await until(lambda: answer(node.place, node.ip))
        sockets.append(node.shows("ss", "-Hlunp", "sport", f"= :{PORT}"))

    async def second(_cluster: Cluster, nodes: Nodes) -> None:
        await nodes.use(settings("toy"))
        await until(lambda: node.name in nodes.adopted)
        assert node.shows("ss", "-Hlunp", "sport", f"= :{PORT}") == sockets[0]
        inside(node.place, "nft", "delete", "table", "inet", GUARD)
        await nodes.use(settings("toy"))
        assert GUARD in node.shows("nft", "list", "tables"), "a guard that is removed comes back"

    run(cluster, first, second)
