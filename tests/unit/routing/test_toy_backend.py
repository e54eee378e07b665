"""A backend that a test registers: its options, its announcement and its plan reach everybody who needs them."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace
from tests.fakes.qdisc_kind import Qdisc
from tests.fakes.toy_backend import DEVICE, GUARD, REGISTRY, ToyOptions, ToyPort

from podwire.errors import ConfigError
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.routing.nodes import LocalNode, Peer, RoutingFacts, Underlay, peer_of
from podwire.routing.plan import Plan, plan
from podwire.routing.settings import parse_settings
from podwire.state.network import parse
from podwire.state.nft import Table

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"),),
    pod_cidrs=(ip_network("10.244.0.0/24"),),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
    run_dir="/run/test",
)
TOY_FACTS = RoutingFacts("toy", ("hostgw", "toy"), {"toy": {"mac": "02:77:0a:59:00:0c"}})
PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.89.0.12"),),
    pod_cidrs=(ip_network("10.244.1.0/24"),),
    facts=TOY_FACTS,
)

STATE = """\
link podwire-toy address 02:77:0a:59:00:0b alias "podwire/routing toy" up type macvlan link eth0 mode bridge
route 10.244.0.0/24 type unreachable metric 4096
route 10.244.1.0/24 via 10.89.0.12 dev podwire-toy onlink
neighbour 10.89.0.12 lladdr 02:77:0a:59:00:0c dev podwire-toy
sysctl net/ipv4/conf/eth0/rp_filter = 2
sysctl net/ipv4/conf/podwire-toy/rp_filter = 2
sysctl net/ipv4/ip_forward = 1
"""


def planned(backend: str, peer: Peer = PEER) -> Plan:
    settings = parse_settings({"backend": backend, "toy.port": 4778}, "test", REGISTRY)
    return plan(ME, [peer], settings, settings.load(REGISTRY))


def test_options_stand_in_a_section_of_the_backend() -> None:
    settings = parse_settings({"toy": {"port": 5}, "vni": 9}, "test", REGISTRY)
    assert settings.options["toy"] == ToyOptions(toy=ToyPort(5))
    assert {5, 8472} <= set(settings.udp_ports(REGISTRY))
    assert parse_settings({"toy": {"port": 5}, "toy.port": 6}, "test", REGISTRY).fields()["toy"] == {"port": 6}
    with pytest.raises(ConfigError, match=r"^test: routing\.toy\.port: 0 is not in 1\.\.65535"):
        parse_settings({"toy.port": 0}, "test", REGISTRY)
    with pytest.raises(ConfigError, match=r"^test: routing\.toy: unknown field `part`; expected one of port"):
        parse_settings({"toy.part": 0}, "test", REGISTRY)


def test_plan_holds_device_guard_and_child_process() -> None:
    got = planned("toy")
    assert str(got.state) == STATE and parse(STATE) == got.state
    assert [value.name for value in got.values if isinstance(value, Table)] == ["podwire-masquerade", GUARD]
    assert "udp dport 4778" in str(got.values[1])
    (child,) = got.children
    assert child.files == {"/run/test/toy.txt": b"node-1 reaches node-2"}
    assert got.senders == {"node-2": "toy"}
    assert got.values[2:] == (Qdisc("eth0", 900),)


def test_announced_facts_reach_the_peers() -> None:
    facts = planned("toy").facts
    assert facts == replace(TOY_FACTS, details={"mtu": 1500, "toy": {"mac": "02:77:0a:59:00:0b"}})
    node = Node(metadata=ObjectMeta(name="node-1", annotations=facts.annotations()))
    assert peer_of(node).facts == facts


def test_another_backend_receives_until_peers_have_changed() -> None:
    lagging = planned("vxlan")
    assert lagging.senders == {"node-2": "hostgw"}
    assert lagging.state.link(DEVICE) and lagging.state.link("podwire-vxlan") and lagging.children
    changed = planned("vxlan", replace(PEER, facts=RoutingFacts("vxlan", ("hostgw", "vxlan"))))
    assert changed.state.link(DEVICE) is None and changed.children == ()
    assert [value.name for value in changed.values if isinstance(value, Table)] == [
        "podwire-masquerade",
        "podwire-routing",
    ]
