"""What is special about the backend macvlan: what takes the second interfaces of pods, and when there are none."""

from msgspec.structs import replace
from tests.unit.routing.backends.test_bridge import ME, peer

from podwire.routing.backends.macvlan.backend import MacvlanLegs, MacvlanOptions, MacvlanSection
from podwire.routing.nodes import ClusterView, Peer, RoutingFacts
from podwire.routing.plan import plan
from podwire.routing.settings import RoutingSettings
from podwire.state.nft import Table

TABLE = """\
table inet podwire-macvlan {
	comment "podwire routing"
	set legs4 {
		type ipv4_addr
		flags interval
		comment "pod CIDRs of nodes whose pods have legs"
		elements = { 10.244.2.0/23 }
	}

	set legs6 {
		type ipv6_addr
		flags interval
		comment "pod CIDRs of nodes whose pods have legs"
		elements = { fd44:0:0:2::/63 }
	}

	set own4 {
		type ipv4_addr
		flags interval
		comment "pod CIDRs of this node"
		elements = { 10.244.0.0/24 }
	}

	set own6 {
		type ipv6_addr
		flags interval
		comment "pod CIDRs of this node"
		elements = { fd44::/64 }
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ct status dnat ip saddr @own4 ip daddr @legs4 masquerade fully-random comment "answers pass this node"
		ct status dnat ip saddr @legs4 ip daddr @own4 masquerade fully-random comment "answers pass this node"
		ct status dnat ip6 saddr @own6 ip6 daddr @legs6 masquerade fully-random comment "answers pass this node"
		ct status dnat ip6 saddr @legs6 ip6 daddr @own6 masquerade fully-random comment "answers pass this node"
	}
}
"""


def legged(number: int, fact: object = True) -> Peer:
    facts = RoutingFacts("macvlan", ("macvlan",), {"macvlan": {"legs": fact}})
    return replace(peer(number), facts=facts)


def backend(uplink: str = "") -> MacvlanLegs:
    return MacvlanLegs(MacvlanOptions(macvlan=MacvlanSection(uplink=uplink)))


def test_legs_lead_to_the_peers_that_announce_legs() -> None:
    peers = (legged(2), legged(3), legged(4, "yes"), peer(5), replace(peer(6), facts=None))
    created = backend("eth1").plan(ME, [peers[0], *peers[2:]], ClusterView(peers))
    assert created.leg is not None and (created.leg.uplink, created.leg.mtu) == ("eth1", 9000)
    assert created.leg.networks == ("10.244.2.0/24", "fd44:0:0:2::/64")
    assert [str(route) for route in created.network.routes if "10.244.6." in route.dst] == [
        "route 10.244.6.0/24 via 10.89.0.16 dev eth0 src 10.89.0.11"
    ]
    assert backend().announce(ME) == {"macvlan": {"legs": True}}
    [table] = created.values
    assert isinstance(table, Table) and str(table.canonical()) == TABLE.rstrip()


def test_an_obstacle_leaves_plain_routes_and_is_named() -> None:
    for me, uplink, reason in (
        (replace(ME, leg_obstacle="policies are in force"), "", "policies are in force"),
        (ME, "eth3", "routing.macvlan.uplink: eth3 of node node-1 is a port of br9; use br9"),
    ):
        refused = backend(uplink)
        created = refused.plan(me, [legged(2)], ClusterView((legged(2),)))
        assert created.leg is None and not created.values and len(created.network.routes) == 2
        assert created.degraded == f"pods have no macvlan legs, and their nodes route: {reason}"
        assert refused.announce(me) == {} and refused.reaches(me, legged(2)) == ""


def test_legs_stay_while_a_peer_still_sends_to_them() -> None:
    settings = RoutingSettings(backend="hostgw")
    created = plan(ME, [legged(2)], settings, settings.load())
    assert created.leg is not None and created.leg.networks == () and created.degraded == ""
    assert plan(ME, [peer(2)], settings, settings.load()).leg is None
