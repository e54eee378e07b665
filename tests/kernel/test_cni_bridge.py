"""The bridge of pods: other programs, changes of the setting, frames with a wrong source, and its removal."""

import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.agent_cluster import eventually
from tests.kernel.cni_node import NodeAgent, inside, ping

from podwire.cluster.podbridge import ALIAS, BRIDGE
from podwire.cni.bridgeguard import FAMILY, TABLE
from podwire.cni.wiring import HOST_MAC, NODE_OWNER, WiringFacts
from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink

BOTH = ("10.244.1.0/24", "fd00:1::/64")


@pytest.fixture
def pod_link() -> str:
    return "bridge"


def device(node: NodeAgent) -> dict[str, Any]:
    """The bridge as ip(8) shows it; empty when there is none."""
    shown = inside(node.place, "ip", "-j", "-d", "address", "show", "dev", BRIDGE).stdout
    links = json.loads(shown) if shown else []  # An empty list: it went while ip(8) read it.
    return dict(links[0]) if links else {}


def test_bridge_has_the_gateways_before_the_first_pod(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    eventually(lambda: len(device(node)["addr_info"]) == 2)
    shown = device(node)
    assert (shown["address"], shown["ifalias"], shown["mtu"]) == (HOST_MAC, ALIAS, 1500)
    assert [entry["local"] for entry in shown["addr_info"]] == ["10.244.1.1", "fd00:1::1"], "no link-local address"
    node.add("web")
    assert node.ping("web", "10.244.1.1") and node.ping("web", "fd00:1::1")
    assert device(node)["address"] == HOST_MAC, "a port does not change it"


def test_deleted_bridge_comes_back_with_its_ports(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    node.add("client")
    addresses = node.add("web")
    for _ in range(2):
        assert inside(node.place, "ip", "link", "delete", BRIDGE).returncode == 0
        eventually(lambda: all(ping(node.pods / "client", address) for address in addresses))
    assert node.call("CHECK", "web") == (0, {})
    node.add("new")
    assert all(ping(node.pods / "new", address, patience_s=10) for address in addresses)


@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_pod_whose_device_is_gone_leaves_nothing(make: Callable[..., NodeAgent], command: str) -> None:
    node = make(*BOTH)
    node.add("web")
    other = node.add("other")
    (link,) = [name for name in node.links() if name.startswith("web-")]
    inside(node.place, "ip", "link", "delete", link)
    more: dict[str, Any] = {"cni.dev/valid-attachments": [{"containerID": "c-other", "ifname": "eth0"}]}
    assert node.call(command, "web", **(more if command == "GC" else {})) == (0, {})
    assert node.routes() == [other[0]]
    assert sorted(node.neighbours()) == sorted(other)


def test_device_of_another_program_is_not_touched(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.stop()
    inside(node.place, "ip", "link", "delete", BRIDGE)
    inside(node.place, "ip", "link", "add", BRIDGE, "type", "bridge")
    before = inside(node.place, "ip", "-d", "link", "show", BRIDGE).stdout
    node.start()
    node.pod("web")
    status, error = node.call("ADD", "web")
    assert (status, error["code"]) == (1, 999)
    assert f"link {BRIDGE}" in error["details"] and "another program has this device" in error["details"]
    assert node.within(node.service.repair.heal)[0].startswith(f"add link {BRIDGE}")
    assert inside(node.place, "ip", "-d", "link", "show", BRIDGE).stdout == before
    assert (node.links(), node.service.leases.held) == ([], {})
    inside(node.place, "ip", "link", "delete", BRIDGE)
    assert node.call("ADD", "web")[0] == 0


def test_pods_with_own_devices_heal_beside_a_foreign_bridge(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.stop()
    inside(node.place, "ip", "link", "delete", BRIDGE)
    node.link = "routed"
    node.start()
    (address,) = node.add("routed")
    node.stop()
    inside(node.place, "ip", "link", "add", BRIDGE, "type", "bridge")
    node.link = "bridge"
    node.start()
    inside(node.place, "ip", "route", "delete", address)
    eventually(lambda: node.routes() == [address])
    inside(node.place, "ip", "link", "delete", BRIDGE)


def test_running_pods_stay_as_they_were_wired(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    bridged = node.add("bridged")
    node.stop()
    node.link = "routed"
    node.start()
    routed = node.add("routed")
    assert "master" not in inside(node.place, "ip", "link", "show", node.links()[-1]).stdout
    for source, targets in (("bridged", routed), ("routed", bridged)):
        assert all(node.ping(source, address) for address in targets)
    assert [node.call("CHECK", name) for name in ("bridged", "routed")] == [(0, {}), (0, {})]
    assert node.call("DEL", "bridged") == (0, {})
    eventually(lambda: not device(node))
    node.stop()
    node.link = "bridge"
    node.start()
    third = node.add("third")
    assert all(node.ping("routed", address) for address in third)


def test_running_pods_keep_their_gateway_with_another_range(make: Callable[..., NodeAgent]) -> None:
    node = make()
    old = node.add("old")[0]
    node.within(lambda: node.service.set_node(WiringFacts(cidrs=("10.244.9.0/24",))))
    new = node.add("new")[0]
    assert new == "10.244.9.2"
    assert node.ping("old", new) and node.ping("new", old)
    eventually(lambda: [entry["local"] for entry in device(node)["addr_info"]] == ["10.244.1.1", "10.244.9.1"])
    assert node.call("CHECK", "old") == (0, {})


def test_frames_with_a_foreign_hardware_address_are_dropped(make: Callable[..., NodeAgent]) -> None:
    node = make()
    node.add("web")
    place = node.pods / "web"
    assert node.ping("web", "10.244.1.1")
    inside(place, "ip", "link", "add", "link", "eth0", "name", "spoof", "type", "macvlan", "mode", "bridge")
    inside(place, "ip", "link", "set", "spoof", "address", "02:00:00:00:00:99", "up")
    inside(place, "ip", "route", "replace", "10.244.1.1/32", "dev", "spoof", "src", "10.244.1.2")
    inside(place, "ip", "neigh", "replace", "10.244.1.1", "lladdr", HOST_MAC, "dev", "spoof", "nud", "permanent")
    assert not ping(place, "10.244.1.1")
    assert "02:00:00:00:00:99" not in inside(node.place, "bridge", "fdb", "show", "br", BRIDGE).stdout
    (link,) = node.links()
    node.stop()
    inside(node.place, "bridge", "link", "set", "dev", link, "locked", "off")
    assert ping(place, "10.244.1.1", patience_s=10), "a port that is not locked forwards the same frames"
    node.start()


def test_removal_by_the_mark_takes_the_bridge_away(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    inside(node.place, "ip", "link", "add", "br9", "type", "bridge")
    node.add("web")
    assert node.call("DEL", "web") == (0, {})
    node.stop()
    with Netlink(node.place) as netlink:
        network.remove(netlink, NODE_OWNER).check()
    assert not device(node)
    assert "br9" in inside(node.place, "ip", "link").stdout
    node.start()


PORT, LIMIT_S = 9000, 20.0
_ARP, _ARP_REQUEST = 0x0806, 1


class Datagrams:
    """A pod that hears datagrams and ARP, and one that sends them with sources of its choice."""

    def __init__(self, listener: Path, sender: Path) -> None:
        self.sender = sender
        with netns.inside(listener):
            self._v4 = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._v6 = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            self._arp = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ARP))
        self._v6.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        for item in (self._v4, self._v6, self._arp):
            item.settimeout(LIMIT_S)
        self._v4.bind(("0.0.0.0", PORT))
        self._v6.bind(("::", PORT))

    def send(self, source: str, target: str) -> None:
        with netns.inside(self.sender):
            item = socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET, socket.SOCK_DGRAM)
        with item:
            item.bind((source, 0))
            item.sendto(b"x", (target, PORT))

    def announce(self, address: str) -> None:
        """Sends an ARP announcement of an address from the sender's own hardware address."""
        with netns.inside(self.sender):
            item = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ARP))
        packed = socket.inet_aton(address)
        with item:
            item.bind(("eth0", _ARP))
            mac = item.getsockname()[4]
            body = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, _ARP_REQUEST, mac, packed, bytes(6), packed)
            item.sendto(body, ("eth0", _ARP, 0, 0, b"\xff" * 6))

    def heard_until(self, last: str) -> list[str]:
        """The sources of the datagrams that arrive, up to the first from ``last``."""
        item, sources = self._v6 if ":" in last else self._v4, [""]
        while sources[-1] != last:
            sources.append(item.recvfrom(64)[1][0])
        return sources[1:]

    def announced_until(self, last: str) -> list[str]:
        """The addresses that ARP announces, up to ``last``."""
        addresses = [""]
        while addresses[-1] != last:
            addresses.append(socket.inet_ntoa(self._arp.recv(64)[14:18]))
        return addresses[1:]

    def close(self) -> None:
        for item in (self._v4, self._v6, self._arp):
            item.close()


def guarded(node: NodeAgent) -> str:
    """The source guard as nft(8) shows it; empty when there is none."""
    return inside(node.place, "nft", "list", "table", FAMILY, TABLE).stdout


def test_pods_send_from_their_own_addresses_alone(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    web, target, sender = node.add("web"), node.add("target"), node.add("sender")
    for address in web:
        inside(node.pods / "sender", "ip", "address", "add", address, "dev", "eth0", *(["nodad"] * (":" in address)))
    wire = Datagrams(node.pods / "target", node.pods / "sender")
    for stolen, own, listener in zip(web, sender, target, strict=True):
        wire.send(stolen, listener)
        wire.send(own, listener)
        assert wire.heard_until(own) == [own]
    wire.announce(web[0])
    wire.announce(sender[0])
    assert wire.announced_until(sender[0]) == [sender[0]]
    node.stop()
    for stolen, own, listener in zip(web, sender, target, strict=True):
        wire.send(stolen, listener)
        wire.send(own, listener)
        assert wire.heard_until(own) == [own], "the guard does not need the agent"
    inside(node.place, "nft", "delete", "table", FAMILY, TABLE)
    for stolen, listener in zip(web, target, strict=True):
        wire.send(stolen, listener)
        assert wire.heard_until(stolen) == [stolen], "without the guard nothing else stops them"
    wire.announce(web[0])
    assert wire.announced_until(web[0]) == [web[0]]
    wire.close()
    node.start()
    assert web[0] in guarded(node), "a new agent restores the guard"


def test_source_guard_comes_back_and_goes_with_the_last_pod(make: Callable[..., NodeAgent]) -> None:
    node = make(*BOTH)
    assert not guarded(node)
    web, other = node.add("web"), node.add("other")
    assert all(address in guarded(node) for address in (*web, *other))
    assert node.call("CHECK", "web") == (0, {})
    inside(node.place, "nft", "flush", "set", FAMILY, TABLE, "own4")
    eventually(lambda: all(address in guarded(node) for address in (*web, *other)))
    inside(node.place, "nft", "delete", "table", FAMILY, TABLE)
    eventually(lambda: web[0] in guarded(node))
    assert node.call("DEL", "web") == (0, {})
    assert web[0] not in guarded(node) and other[0] in guarded(node)
    assert node.call("DEL", "other") == (0, {})
    assert not guarded(node)
