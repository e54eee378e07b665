"""Plans made one after the other, with what was kept, are those that a plan from nothing gives."""

from ipaddress import ip_address, ip_interface, ip_network

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.routing.nodes import LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.plan import Planner, plan
from podwire.routing.settings import RoutingSettings

ME = LocalNode(
    name="node-0",
    addresses=(ip_address("10.89.0.1"), ip_address("fd89::1")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.1/24"), ip_interface("fd89::1/64"))),
)
BACKENDS = ("vxlan", "hostgw", "udp", "geneve", "ipip", "bridge", "wireguard", "bgp", "macvlan", "none")
FACTS = {
    name: RoutingFacts(name, ("hostgw", name), {name: {"mac": "02:00:00:00:00:02", "port": 6000, "legs": True}})
    for name in BACKENDS
}


Turns = list[tuple[tuple[Peer, ...], RoutingSettings]]


@st.composite
def peers(draw: st.DrawFn) -> tuple[Peer, ...]:
    """Up to seven nodes; two may have one address, no address, an address behind a router or the same pod CIDR."""
    numbers = draw(st.sets(st.integers(1, 7)))
    return tuple(draw(peer(number)) for number in sorted(numbers))


@st.composite
def peer(draw: st.DrawFn, number: int) -> Peer:
    subnet, host, cidr = draw(st.sampled_from([0, 0, 0, 9])), *draw(st.tuples(*2 * [st.sampled_from([0, 0, 0, 1])]))
    families = draw(st.sampled_from([(4,), (4,), (4, 6), ()]))
    texts = {4: (f"10.89.{subnet}.{number + host + 10}",), 6: (f"fd89::{subnet}:{number + host + 10}",)}
    cidrs = {4: f"10.244.{number + cidr}.0/24", 6: f"fd44:0:0:{number + cidr}::/64"}
    return Peer(
        name=f"node-{number}",
        addresses=tuple(ip_address(text) for family in families for text in texts[family]),
        pod_cidrs=tuple(ip_network(cidrs[family]) for family in draw(st.sampled_from([families, ()]))),
        facts=draw(st.sampled_from([None, *FACTS.values()])),
    )


@st.composite
def turns(draw: st.DrawFn) -> Turns:
    """Changes of the cluster: of a few peers, of all peers, of the settings."""
    sequence: Turns = []
    for _ in range(draw(st.integers(2, 5))):
        now, keeps_peers, keeps_settings = draw(peers()), draw(st.booleans()), draw(st.booleans())
        if sequence and keeps_peers:
            remaining = draw(st.sets(st.sampled_from([f"node-{number}" for number in range(1, 8)])))
            before = {item.name: item for item in sequence[-1][0] if item.name in remaining}
            now = tuple(sorted(({item.name: item for item in now} | before).values(), key=lambda item: item.name))
        configured = RoutingSettings(
            backend=draw(st.sampled_from(BACKENDS)),
            direct_routing=draw(st.booleans()),
            masquerade_rules=draw(st.sampled_from(["nftables", "iptables"])),
            non_masquerade_cidrs=draw(st.sampled_from([(), ("192.168.0.0/16",)])),
        )
        sequence.append((now, sequence[-1][1] if sequence and keeps_settings else configured))
    return sequence


@settings(max_examples=150)
@given(turns())
def test_a_plan_with_a_memory_equals_a_plan_from_nothing(sequence: Turns) -> None:
    planner, loaded = Planner({}), sequence[0][1].load()
    for at, (now, configured) in enumerate(sequence):
        if at and configured != sequence[at - 1][1]:
            loaded = configured.load()
        created = planner.plan(ME, now, configured, loaded, (), former={})
        fresh = plan(ME, now, configured, configured.load(), former={})
        for field in fresh.__struct_fields__:
            assert getattr(created, field) == getattr(fresh, field), field


def test_a_plan_that_fails_is_made_again() -> None:
    bad = Peer(name="node-1", addresses=ME.addresses[:1], pod_cidrs=(ip_network("10.244.1.0/24"),))
    refused = msgspec.structs.replace(bad, facts=RoutingFacts("vxlan", ("vxlan",), {"mac": "not a MAC"}))
    configured = RoutingSettings(backend="vxlan")
    planner, loaded = Planner({}), configured.load()
    for _ in range(2):
        with pytest.raises(ValueError, match="hardware address"):
            planner.plan(ME, (refused,), configured, loaded, (), former=None)
    created = planner.plan(ME, (bad,), configured, loaded, (), former=None)
    assert created.state == plan(ME, (bad,), configured, configured.load()).state
