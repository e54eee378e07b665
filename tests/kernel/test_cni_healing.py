"""Removed parts of a pod's wiring are restored, and the desired state of the wiring can be read."""

import time
from collections.abc import Callable
from typing import Any

from tests.kernel.cni_node import NodeAgent, inside, ping

from podwire.cni import wiring
from podwire.cni.service import SWEEP_S
from podwire.cni.wiring import WiringFacts
from podwire.kernel import comparison, netns
from podwire.state import share
from podwire.state.drift import render


def eventually(check: Callable[[], Any]) -> None:
    """Waits until the check is true, for half of the sweep interval, so that no sweep can have repaired it."""
    deadline = time.monotonic() + SWEEP_S / 2
    while not check():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.01)


def test_removed_objects_of_a_pod_are_restored(make: Callable[..., NodeAgent]) -> None:
    node = make("10.244.1.0/24", "fd00:244:1::/64")
    four, six = node.add("web")
    other = node.add("db")[0]
    link = node.links()[0]
    inside(node.place, "ip", "route", "add", "203.0.113.0/24", "dev", node.device(link))
    place = node.pods / "db"
    assert ping(place, four) and ping(place, six)
    for command in (
        f"ip route del {four}",
        f"ip -6 route del {six}",
        f"ip route flush proto {wiring.ROUTE_PROTOCOL}",
        f"ip neigh flush all nud permanent dev {node.device(link)}",
        f"ip link set {link} down",
        f"ip link set {node.device(link)} down",
    ):
        done = inside(node.place, *command.split())
        assert done.returncode == 0, done.stderr
        eventually(lambda: ping(place, four) and ping(place, six))
    assert node.ping("web", other)
    assert "203.0.113.0/24" not in inside(node.place, "ip", "route").stdout, "went with the device, is not ours"

    # Sysctls are restored, too: those that the kernel does not report by the next check; foreign objects stay.
    device = node.device(link)

    def parameter(name: str) -> str:
        return inside(node.place, "sysctl", "-n", f"net/ipv4/conf/{device}/{name}").stdout.strip()

    inside(node.place, "ip", "route", "add", "203.0.113.0/24", "dev", device)
    inside(node.place, "sysctl", "-qw", f"net/ipv4/conf/{device}/rp_filter=0")
    eventually(lambda: parameter("rp_filter") == "1")
    inside(node.place, "sysctl", "-qw", f"net/ipv4/conf/{device}/send_redirects=1")
    assert node.within(node.service.repair.heal) == []
    assert parameter("send_redirects") == "0"
    assert "203.0.113.0/24" in inside(node.place, "ip", "route").stdout


def test_routes_survive_a_change_of_the_nodes_address(make: Callable[..., NodeAgent]) -> None:
    node = make()
    inside(node.place, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    node.within(lambda: node.service.set_node(WiringFacts(cidrs=node.cidrs, sources={4: "192.0.2.1"})))
    address = node.add("web")[0]

    def source() -> str:
        return inside(node.place, "ip", "route", "show", address).stdout

    assert "src 192.0.2.1" in source()
    inside(node.place, "ip", "address", "del", "192.0.2.1/32", "dev", "lo")
    assert source() == "", "the kernel takes the route along"
    time.sleep(0.3)
    inside(node.place, "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
    eventually(lambda: "src 192.0.2.1" in source())

    # pods that run follow a new source
    inside(node.place, "ip", "address", "add", "192.0.2.2/32", "dev", "lo")
    node.within(lambda: node.service.set_node(WiringFacts(cidrs=node.cidrs, sources={4: "192.0.2.2"})))
    eventually(lambda: "src 192.0.2.2" in source())


def test_desired_state_is_printed_and_compared(make: Callable[..., NodeAgent]) -> None:
    node = make()
    ports = {"runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}
    node.add("web", **ports)
    node.add("db")
    shares = node.within(lambda: list(node.service.shares()))
    assert share.parse(share.render(shares)) == shares
    assert [item.title for item in shares] == ["cni", "cni shop/web", "cni shop/db"]
    node.stop()

    def drift() -> list[str]:
        return list(render(comparison.compare(shares, node.place)))

    assert drift() == []
    inside(node.place, "ip", "link", "add", "foreign0", "type", "dummy")
    inside(node.place, "nft", "add", "table", "inet", "foreign")
    inside(node.place, "ip", "route", "add", "198.51.100.0/24", "dev", "lo", "proto", "static")
    assert drift() == []

    web = next(link for link in node.links() if link.startswith("web"))
    db = next(link for link in node.links() if link.startswith("db"))
    inside(node.place, "ip", "link", "del", web)
    inside(node.place, "ip", "route", "del", "10.244.1.3")
    inside(node.place, "nft", "flush", "map", "inet", "podwire-hostport", "any4")
    inside(node.pods / "db", "ip", "link", "set", "eth0", "mtu", "1400")
    result = drift()
    by = f"via 10.244.1.3 dev {node.device(db)} onlink" if node.link == "bridge" else f"dev {db}"
    assert f"+route 10.244.1.3/32 {by} proto 112" in result
    assert any(line.startswith(f"+link {web} ") for line in result)
    at = result.index("@@ cni: table inet podwire-hostport, map any4 @@")
    assert result[at + 1] == '+tcp . 8080 comment "shop/web" : 10.244.1.2 . 80'
    assert "@@ cni shop/web @@" in result, "the pod's end went with the node's"
    changed = result[result.index("@@ cni shop/db @@") + 1 :]
    assert [line[0] for line in changed] == ["-", "+"] and "mtu 1400" in changed[0] and "mtu 1500" in changed[1]
    netns.delete(node.pods / "db")
    assert "@@ cni shop/db (its namespace is gone) @@" in drift()
    node.start()
