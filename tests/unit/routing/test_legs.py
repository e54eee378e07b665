"""Which peers have legs, and the table of translated connections."""

from ipaddress import ip_address, ip_network

import pytest

from podwire.routing.legs import has_legs, leg_path, leg_table, legged_networks
from podwire.routing.nodes import LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.paths import PathState
from podwire.state.link import Link
from podwire.state.network import NetworkState
from podwire.state.route import Route

CIDRS = (ip_network("10.244.2.0/24"),)


@pytest.mark.parametrize(
    ("details", "expected"),
    [({"macvlan": {"legs": True}}, True), ({"macvlan": {"legs": "yes"}}, False), ({"macvlan": 1}, False), ({}, False)],
)
def test_a_peer_has_legs_when_it_announces_them(details: dict[str, object], expected: bool) -> None:
    peer = Peer(name="node-2", pod_cidrs=CIDRS, facts=RoutingFacts("macvlan", (), details))
    assert has_legs(peer, "macvlan") == expected
    assert legged_networks((peer, Peer(name="node-3")), "macvlan") == list(CIDRS) * expected
    assert not has_legs(peer, "ipvlan")


def test_the_table_masquerades_both_directions_of_translated_connections() -> None:
    text = str(leg_table("podwire-x", (ip_network("10.244.1.0/24"),), CIDRS))
    assert "ct status dnat ip saddr @own4 ip daddr @legs4 masquerade" in text
    assert "ct status dnat ip saddr @legs4 ip daddr @own4 masquerade" in text
    assert "10.244.2.0/24" in text and "ip6" not in text


def test_a_path_takes_the_leg_between_pods_with_legs() -> None:
    legs = RoutingFacts("macvlan", (), {"macvlan": {"legs": True}})
    bare = Peer(name="node-2", addresses=(ip_address("10.89.0.12"),), pod_cidrs=CIDRS)
    peer = Peer(name="node-2", addresses=bare.addresses, pod_cidrs=CIDRS, facts=legs)
    me = LocalNode(name="node-1", addresses=(), pod_cidrs=(), underlay=Underlay("eth0", 1500, ()), facts=legs)
    plain = Route(dst="10.244.2.0/24", via="10.89.0.12", link="eth0")
    there = ip_address("10.244.2.7")
    for link, problem in (
        (Link("eth0", mtu=1400), ()),
        (Link("eth0", mtu=1400, up=False), ("device eth0 is down, which carries the legs of pods",)),
        (Link("eth1"), ("no device eth0, which carries the legs of pods",)),
    ):
        state = PathState(network=NetworkState(links=(link,), routes=(plain,)))
        path = leg_path(me, peer, there, state, ("macvlan", "eth0"))
        assert (str(path.route), path.missing) == ("route 10.244.2.0/24 dev lan0", problem)
        assert path.mtu == (0 if problem else 1400)
    state = PathState(network=NetworkState(links=(Link("eth0", mtu=1400),), routes=(plain,)))
    assert leg_path(me, bare, there, state, ("macvlan", "eth0")).route == plain
