"""WireGuard between nodes: nothing leaves in clear, processes and keys outlive the agent, new keys lose no packet.

The kernel encrypts where it has WireGuard, else wireguard-go.
"""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.kernel.datagram_stream import MARKER, Stream, until
from tests.kernel.routing_nodes import SOURCE_REPLY_SERVER, Cluster, ClusterNode, inside, source_seen

from podwire.errors import Unsupported
from podwire.kernel import comparison, netns
from podwire.kernel.features import Features
from podwire.routing.machine import OWNER
from podwire.routing.settings import RoutingSettings, parse_settings
from podwire.state.share import parse, render


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    created = Cluster(tmp_path, 3)
    created.need("wireguard")
    yield created
    created.close()


def settings(generation: int = 0, engine: str = "auto") -> RoutingSettings:
    document = {"backend": "wireguard", "wireguard.keyGeneration": generation, "wireguard.engine": engine}
    return parse_settings(document, "test")


class Capture(threading.Thread):
    """Reads every frame on the network between the nodes; ``seen`` counts those with the marker in clear."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.seen = self.frames = 0
        with netns.inside(cluster.fabric):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        self._socket.settimeout(0.1)
        self._end = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._end.is_set():
            with suppress(TimeoutError):
                self.seen += MARKER in self._socket.recv(65536)
                self.frames += 1

    def end(self) -> None:
        self._end.set()
        self.join()
        self._socket.close()


def shown(node: ClusterNode, device: str = "podwire-wg") -> list[list[str]]:
    """What wg(8) says of a device: the lines of ``wg show DEVICE dump`` as words."""
    return [line.split("\t") for line in wg(node, "show", device, "dump").splitlines()]


def wg(node: ClusterNode, verb: str, device: str, *arguments: str) -> str:
    """Runs wg(8), which reaches a process in the mount namespace of the process."""
    pid = node.children().get(device)
    enter = ["nsenter", f"--mount=/proc/{pid}/ns/mnt"] if pid else []
    return inside(node.place, *enter, "wg", verb, device, *arguments)


def own_devices(node: ClusterNode) -> list[str]:
    """The WireGuard devices of a node."""
    links = json.loads(node.shows("ip", "-j", "link"))
    return sorted(link["ifname"] for link in links if link["ifname"].startswith("podwire-wg"))


def allowed(arguments: list[str]) -> set[str]:
    """The allowed addresses in a peer's line of wg(8)."""
    return set(arguments[3].split(","))


def settle(cluster: Cluster) -> None:
    """As ``Cluster.settle``, for the nodes that the API knows."""
    for _ in range(3):
        for node in cluster.all:
            if node.name in cluster.nodes:
                node.reconcile()


def test_no_packet_between_pods_leaves_in_clear(cluster: Cluster) -> None:
    first, _, joins = cluster.all
    del cluster.nodes[joins.name]
    cluster.configure(settings())
    settle(cluster)
    a, c = first.pod("a"), joins.pod("c")
    capture = Capture(cluster)
    there = Stream(a, c)
    until(lambda: there.sent + there.refused > 30)
    cluster.nodes[joins.name] = joins.object()
    joins.reconcile()
    back = Stream(c, a)
    for node in cluster.all:
        before = there.sent + there.refused
        node.reconcile()
        until(lambda observed=before: there.sent + there.refused > observed + 10)  # type: ignore[misc]
    settle(cluster)
    until(lambda: there.arrived and back.arrived)
    assert capture.seen == 0 and capture.frames
    cluster.configure(RoutingSettings(backend="vxlan"))
    settle(cluster)
    until(lambda: capture.seen)
    there.close()
    back.close()
    capture.end()


def attempt(*streams: Stream) -> None:
    """Waits until each stream has sent more datagrams, or tried to."""
    before = [stream.sent + stream.refused for stream in streams]
    until(lambda: all(x.sent + x.refused > observed + 20 for x, observed in zip(streams, before, strict=True)))


def arrive(*streams: Stream) -> None:
    """Waits until more datagrams of each stream have arrived."""
    before = [stream.arrived for stream in streams]
    until(lambda: all(x.arrived > observed for x, observed in zip(streams, before, strict=True)))


def kill(node: ClusterNode) -> None:
    """Kills the process of a node; the kernel's WireGuard has none."""
    for pid in node.children().values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_broken_device_lets_no_packet_out_in_clear(cluster: Cluster) -> None:
    cluster.configure(settings())
    cluster.settle()
    first, second, _ = cluster.all
    a, b = first.pod("a"), second.pod("b")
    capture, streams = Capture(cluster), [Stream(a, b), Stream(b, a)]
    arrive(*streams)
    for damage in ("link del podwire-wg", "link set podwire-wg down", "address flush dev podwire-wg"):
        for killed in (False, True):
            if killed:
                kill(first)
            first.shows("ip", *damage.split())
            attempt(*streams)
            assert capture.seen == 0, (damage, killed)
            settle(cluster)
            arrive(*streams)
    capture.end()
    for stream in streams:
        stream.close()
    assert capture.seen == 0 and capture.frames


def without(kind: str) -> Callable[[], None]:
    """The probe of a kernel that lacks a kind of device."""

    def probe() -> None:
        raise Unsupported(f"link {kind}")

    return probe


def test_without_the_program_packets_are_refused_until_it_is_there(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = cluster.all
    first.machine.close()
    first.start_agent()  # one that has not looked for the program yet
    for node in cluster.all:
        node.router.configure(settings())
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr("podwire.kernel.features.PROGRAMS_PATH", "/nowhere")
            patched.setattr("podwire.kernel.features._link", without)
            first.reconcile()
        for other in cluster.all[1:]:
            other.reconcile()
    a, b = first.pod("a"), second.pod("b")
    capture, streams = Capture(cluster), [Stream(a, b), Stream(b, a)]
    attempt(*streams)
    assert first.router.plan is not None and second.router.plan is not None
    assert first.router.plan.senders == {} and second.router.plan.senders == {"node-3": "wireguard"}
    assert (
        "the program wireguard-go is not installed (in Debian's package wireguard-go;" in first.router.backends.refused
    )
    assert first.children() == {} and "podwire" not in first.shows("ip", "link")
    assert capture.seen == 0 and [stream.arrived for stream in streams] == [0, 0]
    settle(cluster)
    arrive(*streams)
    assert first.router.backends.refused == "" and capture.seen == 0
    cluster.configure(RoutingSettings(backend="hostgw"))
    settle(cluster)
    until(lambda: capture.seen)
    capture.end()
    for stream in streams:
        stream.close()


def test_a_killed_process_comes_back_with_its_key_and_peers(cluster: Cluster) -> None:
    cluster.configure(settings(engine="process"))
    cluster.settle()
    first, second, _ = cluster.all
    a, b = first.pod("a"), second.pod("b")
    before, pid = shown(first), first.children()["podwire-wg"]
    kill(first)
    first.reconcile()
    assert first.children()["podwire-wg"] != pid
    assert [arguments[:2] for arguments in shown(first)[:1]] == [arguments[:2] for arguments in before[:1]]
    assert {arguments[0]: allowed(arguments) for arguments in shown(first)[1:]} == {
        arguments[0]: allowed(arguments) for arguments in before[1:]
    }
    settle(cluster)
    with b.running(SOURCE_REPLY_SERVER):
        assert source_seen(a.place, b.address) == a.address
    assert "mtu 1440 " in first.shows("ip", "link", "show", "podwire-wg")


def test_a_new_key_on_every_node_loses_no_packet(cluster: Cluster) -> None:
    cluster.configure(settings())
    cluster.settle()
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    old = {node.name: shown(node)[0][1] for node in cluster.all}
    streams = [Stream(pods[0], pods[1]), Stream(pods[1], pods[2]), Stream(pods[2], pods[0])]
    for node in cluster.all:
        node.router.configure(settings(1))
        for item in cluster.all:
            item.reconcile()
        before = min(stream.arrived for stream in streams)
        until(lambda observed=before: min(stream.arrived for stream in streams) > observed + 20)  # type: ignore[misc]

    def moved() -> bool:
        settle(cluster)
        return devices(cluster) == {"podwire-wg2"}

    until(moved)
    before = min(stream.arrived for stream in streams)
    until(lambda: min(stream.arrived for stream in streams) > before + 20)
    for node in cluster.all:  # A new agent does not wait for sessions, and ends the old process.
        node.machine.close()
        node.start_agent()
        node.router.configure(settings(1))
        node.reconcile()
    settle(cluster)
    arrive(*streams)
    lost = [stream.lost() for stream in streams]
    for node in cluster.all:
        assert own_devices(node) == ["podwire-wg2"] and set(node.children()) <= {"podwire-wg2"}
        assert shown(node, "podwire-wg2")[0][1] != old[node.name]
        assert sorted(file.name for file in (cluster.root / f"{node.name}-keys").iterdir()) == ["wireguard-1.key"]
    assert lost == [0, 0, 0]


def devices(cluster: Cluster) -> set[str]:
    """The devices of all nodes that lead to pods of other nodes."""
    routes = [
        line.split() for node in cluster.all for line in node.shows("ip", "route", "show", "proto", "113").splitlines()
    ]
    return {words[words.index("dev") + 1] for words in routes if "dev" in words}


def test_a_new_key_waits_for_sessions_before_packets_use_it(cluster: Cluster) -> None:
    cluster.configure(settings())
    cluster.settle()
    first, second, _ = cluster.all
    streams = [Stream(first.pod("a"), second.pod("b")), Stream(second.pod("c"), first.pod("d"))]
    arrive(*streams)
    for node in cluster.all:
        node.shows("iptables", "-w", "-A", "INPUT", "-p", "udp", "--dport", "51821", "-j", "DROP")
    cluster.configure(settings(1))
    settle(cluster)
    arrive(*streams)
    assert devices(cluster) == {"podwire-wg"}, "no session of the new key can begin"
    assert all(own_devices(node) == ["podwire-wg", "podwire-wg2"] for node in cluster.all)
    for node in cluster.all:
        node.shows("iptables", "-w", "-D", "INPUT", "-p", "udp", "--dport", "51821", "-j", "DROP")

    def moved() -> bool:
        settle(cluster)
        return devices(cluster) == {"podwire-wg2"}

    until(moved)
    arrive(*streams)
    assert [stream.lost() for stream in streams] == [0, 0]


def test_the_state_shows_peers_and_no_private_key(cluster: Cluster) -> None:
    cluster.configure(settings())
    cluster.settle()
    first, second, third = cluster.all
    text = "\n".join(render([first.router.applied.share(OWNER)]))
    assert "endpoint 10.89.0.12:51820 keepalive 25 allowed-ips 10.244.2.0/24" in text
    private = (cluster.root / "node-1-keys" / "wireguard-0.key").read_text().strip()
    assert private not in text and shown(first)[0][0] == private
    stated = parse(text.splitlines())
    assert [result for result in comparison.compare(stated, first.place) if "wireguard" in result.where] == []
    assert first.router.plan is not None and not first.machine.drifted(first.router.plan.program_values)
    wg(first, "set", "podwire-wg", "peer", shown(second)[0][1], "remove")
    values = first.router.plan.program_values
    until(lambda: first.machine.drifted(values))
    results = [result for result in comparison.compare(stated, first.place) if "wireguard" in result.where]
    assert [(item.sign, "10.244.2.0/24" in item.text) for item in results] == [("+", True)]
    del cluster.nodes[third.name]
    first.reconcile()
    assert [allowed(arguments) for arguments in shown(first)[1:]] == [{"10.244.2.0/24", "10.89.0.12/32"}]


def test_a_switch_away_leaves_no_process_and_no_device(cluster: Cluster) -> None:
    cluster.configure(settings())
    cluster.settle()
    cluster.configure(RoutingSettings(backend="vxlan"))
    cluster.settle()
    for node in cluster.all:
        assert node.children() == {}
        assert "podwire-wg" not in node.shows("ip", "link") + node.shows("ip", "route")
        assert "unreachable 10.244.0.0/16" not in node.shows("ip", "route")


def test_without_the_program_the_reason_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podwire.kernel.features.PROGRAMS_PATH", "/nowhere")
    monkeypatch.setattr("podwire.kernel.features._link", without)
    reason = "the program wireguard-go is not installed (in Debian's package wireguard-go; looked in /nowhere)"
    assert Features().lacks("wireguard-engine") == reason
