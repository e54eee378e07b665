"""Cleaning up, coexistence, conntrack parameters, and connections to removed endpoints."""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import netns, sysctl
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.flows import UDP_AND_TCP, flow_cleaner
from podwire.proxy.leftovers import clear, clear_kube_proxy
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort
from podwire.proxy.sysctls import MAX, ConntrackSettings, apply, plan

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MARK = f"pwt-left-{os.getpid()}"
NODE = Path(f"/run/netns/{MARK}-node")
WEB = ResolvedPort(
    service="default/web",
    port_name="",
    protocol="tcp",
    family="ip",
    port=80,
    cluster_ip="10.96.0.10",
    has_endpoints=True,
    cluster_endpoints=(ResolvedEndpoint("10.0.1.1", 8080), ResolvedEndpoint("10.0.2.1", 8080)),
    serving=frozenset(("10.0.1.1:8080", "10.0.2.1:8080")),
)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def nft(*arguments: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", NODE.name, "nft", *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


def pod(number: int) -> Path:
    return Path(f"/run/netns/{MARK}-{number}")


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    """A node that is the client, and two pods behind it."""
    ip("netns", "add", NODE.name)
    ip("-n", NODE.name, "link", "set", "lo", "up")
    for number in (1, 2):
        name = pod(number).name
        ip("netns", "add", name)
        ip("-n", NODE.name, "link", "add", f"pod{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", NODE.name, "addr", "add", f"10.0.{number}.254/24", "dev", f"pod{number}")
        ip("-n", NODE.name, "link", "set", f"pod{number}", "up")
        ip("-n", name, "addr", "add", f"10.0.{number}.1/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", f"10.0.{number}.254")
    ip("-n", NODE.name, "route", "add", "10.96.0.0/16", "dev", "pod1")
    yield
    for path in (NODE, pod(1), pod(2)):
        ip("netns", "delete", path.name)


@pytest.fixture
def plane(world: None) -> Iterator[ServiceOwner]:
    service_owner = ServiceOwner(NftablesDataPlane(NodeFacts(name="n1"), NODE))
    yield service_owner
    service_owner.remove()
    service_owner.close()


def test_cleanup_removes_every_mode_and_kube_proxy_and_nothing_else(plane: ServiceOwner) -> None:
    plane.load({"default/web": (WEB,)})
    for table in ("ip kube-proxy", "ip6 kube-proxy", "inet kube-proxy", "ip foreign"):
        nft("add", "table", *table.split())
    result = clear(NODE)
    assert result == ("tables of kube-proxy", "rules of mode nftables")
    assert sorted(nft("list", "tables").splitlines()) == ["table inet kube-proxy", "table ip foreign"]
    assert clear(NODE) == ()
    for table in ("inet kube-proxy", "ip foreign"):
        nft("delete", "table", *table.split())


def test_cleanup_can_remove_the_tables_of_kube_proxy_alone(plane: ServiceOwner) -> None:
    plane.load({"default/web": (WEB,)})
    nft("add", "table", "ip6", "kube-proxy")
    assert clear_kube_proxy(NODE)
    assert not clear_kube_proxy(NODE)
    assert {line.split()[-1] for line in nft("list", "tables").splitlines()} == {"podwire-proxy"}


def test_conntrack_size_of_the_machine_stays_untouched_from_namespaces(world: None) -> None:
    before = sysctl.read(MAX)
    size = min(int(before) * 2, 1048576)
    nft("add", "table", "ip", "tracking", "{ chain c { type filter hook input priority 0; ct state new accept; } ; }")
    try:
        problems = apply(plan(ConntrackSettings(min=size, max_per_core=1), 1), str(NODE))
        assert sysctl.read("net/netfilter/nf_conntrack_tcp_timeout_established", NODE) == "86400"
        assert sysctl.read("net/netfilter/nf_conntrack_tcp_timeout_close_wait", NODE) == "3600"
        assert not apply(plan(ConntrackSettings(max_per_core=0), 1), str(NODE))
        assert sysctl.read(MAX) == before
        assert len([p for p in problems if "nf_conntrack_max" in p]) == (size > int(before)), problems
    finally:
        nft("delete", "table", "ip", "tracking")


def serve(number: int) -> socket.socket:
    with netns.inside(pod(number)):
        return socket.create_server((f"10.0.{number}.1", 8080))


@pytest.mark.parametrize("left", [1, 0])
def test_connection_to_a_removed_endpoint_is_reset_on_request(plane: ServiceOwner, left: int) -> None:
    plane.load({"default/web": (WEB,)})
    with serve(1) as item, serve(2) as two, netns.inside(NODE):
        client = socket.create_connection(("10.96.0.10", 80), 20)
        ready, _, _ = select.select((item, two), (), (), 20)
        peer, _ = ready[0].accept()
        used = 1 if ready[0] is item else 2
        with client, peer:
            client.sendall(b"a")
            assert peer.recv(1) == b"a"
            rest = tuple(e for e in WEB.cluster_endpoints if left and e.address != f"10.0.{used}.1")
            after = msgspec.structs.replace(
                WEB, cluster_endpoints=rest, has_endpoints=bool(rest), serving=frozenset(map(str, rest))
            )
            plane.update({"default/web": (after,)})
            assert flow_cleaner(lambda: (), NODE)((WEB,), (after,)) is None
            client.sendall(b"b")
            assert peer.recv(1) == b"b"
            forget = flow_cleaner(lambda: (), NODE, UDP_AND_TCP)((WEB,), (after,))
            assert forget is not None
            assert forget() == {"IPv4": 1, "IPv6": 0}
            with pytest.raises(ConnectionResetError):
                for _ in range(1000):
                    client.sendall(b"c")
                    time.sleep(0.02)


def test_the_cleanup_command_says_what_it_removed(plane: ServiceOwner) -> None:
    plane.load({"default/web": (WEB,)})

    def cleanup() -> str:
        arguments = ["ip", "netns", "exec", NODE.name, sys.executable, "-m", "podwire.cli.main", "proxy", "cleanup"]
        return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout

    assert cleanup() == "removed rules of mode nftables\n"
    assert nft("list", "tables") == ""
    assert cleanup() == "there is nothing to remove\n"
