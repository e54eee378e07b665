"""Which peers have legs, and the table of translated connections."""

from ipaddress import ip_network

import pytest

from podwire.routing.legs import has_legs, leg_table, legged_networks
from podwire.routing.nodes import Peer, RoutingFacts

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
