"""The plugin ``firewall`` with firewalld: which sources of which zone it adds, looks for and removes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from podwire.cni import protocol
from podwire.cni.chain.firewall import FirewallPlugin
from podwire.errors import CniError

RESULT = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "br1"}, {"name": "eth0", "sandbox": "/run/netns/a"}],
    "ips": [{"address": "10.9.1.2/24", "interface": 1}, {"address": "fd00:9::2/64", "interface": 1}],
}
BOTH = {("trusted", "10.9.1.2/32"), ("trusted", "fd00:9::2/128")}


class Zones:
    """Zones of a firewalld in memory; as in firewalld, a source is in one zone."""

    def __init__(self, *, running: bool = True) -> None:
        self.running = running
        self.sources: set[tuple[str, str]] = set()

    def runs(self) -> bool:
        return self.running

    def add(self, zone: str, source: str) -> None:
        assert source not in {other for name, other in self.sources if name != zone}
        self.sources.add((zone, source))

    def remove(self, zone: str, source: str) -> None:
        self.sources.discard((zone, source))

    def has(self, zone: str, source: str) -> bool:
        return (zone, source) in self.sources


class Filter:
    """An empty table that keeps the lines of changes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def read(self, family: str, *, nftables: bool) -> Mapping[str, list[str]]:
        return {}

    def change(self, family: str, lines: Sequence[str], *, nftables: bool) -> None:
        self.lines += lines

    def is_bridge(self, name: str) -> bool:
        return name == "br1"


class Facts:
    """Facts in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def fact(self, name: str) -> bytes:
        return self.held.get(name, b"")

    def facts(self, beginning: str) -> Mapping[str, bytes]:
        return {name: body for name, body in self.held.items() if name.startswith(beginning)}

    def remember(self, name: str, body: bytes) -> None:
        self.held[name] = body
        if not body:
            del self.held[name]


class Node:
    """A plugin on a node."""

    def __init__(self, *, running: bool = True) -> None:
        self.zones, self.filter, self.facts = Zones(running=running), Filter(), Facts()
        self.plugin = FirewallPlugin(self.filter, self.zones, self.facts)

    def call(self, command: str, container: str = "a", **conf: Any) -> bytes:
        environment = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": "/run/netns/a",
            "CNI_IFNAME": "eth0",
        }
        document = {"cniVersion": "1.0.0", "name": "n", "type": "firewall", "prevResult": RESULT, **conf}
        return self.plugin.handle(protocol.parse(environment, json.dumps(document).encode()), "")


@pytest.mark.parametrize("backend", ["", "firewalld"])
def test_addresses_become_sources_of_a_zone(backend: str) -> None:
    node = Node()
    assert json.loads(node.call("ADD", backend=backend))["ips"] == RESULT["ips"]
    assert (node.zones.sources, node.filter.lines) == (BOTH, [])
    node.call("CHECK", backend=backend)
    node.zones.sources.clear()
    with pytest.raises(CniError) as failure:
        node.call("CHECK", backend=backend)
    assert failure.value.details == "source 10.9.1.2/32 of zone trusted; source fd00:9::2/128 of zone trusted"
    node.call("ADD", backend=backend)
    node.call("DEL", backend=backend, prevResult=None)
    assert (node.zones.sources, node.facts.held) == (set(), {})


def test_zone_is_that_of_the_configuration() -> None:
    node = Node()
    node.call("ADD", backend="firewalld", firewalldZone="pods")
    assert {zone for zone, _ in node.zones.sources} == {"pods"}
    node.call("DEL", backend="firewalld", firewalldZone="other")
    assert node.zones.sources == set(), "the zone of ADD counts"


@pytest.mark.parametrize(("backend", "running"), [("", False), ("iptables", True), ("nftables", True)])
def test_iptables_are_used_elsewhere(backend: str, running: bool) -> None:
    node = Node(running=running)
    node.call("ADD", backend=backend)
    assert node.zones.sources == set()
    assert any("10.9.1.2/32" in line for line in node.filter.lines)


def test_ingress_policy_keeps_its_rules_beside_firewalld() -> None:
    node = Node()
    node.call("ADD", backend="firewalld", ingressPolicy="same-bridge")
    assert node.zones.sources == BOTH
    assert any("CNI-ISOLATION-STAGE-1" in line for line in node.filter.lines)
    assert not any("10.9.1.2" in line for line in node.filter.lines)


def test_late_delete_leaves_the_source_of_a_later_pod() -> None:
    node = Node()
    node.call("ADD", "a", backend="firewalld")
    node.call("ADD", "b", backend="firewalld")
    node.call("DEL", "a", backend="firewalld")
    assert node.zones.sources == BOTH
    node.call("DEL", "b", backend="firewalld")
    assert node.zones.sources == set()


def test_delete_succeeds_without_firewalld() -> None:
    node = Node()
    node.call("ADD", backend="firewalld")
    node.zones.running = False
    node.call("DEL", backend="firewalld")
    assert node.facts.held == {}
