"""The backend wireguard: a device per generation of keys, peers and routes, refusals before keys are known."""

from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.routing.backends.wireguard.backend import WireGuardOptions, WireGuardSection, WireGuardTunnel
from podwire.routing.nodes import ClusterView, LocalNode, NodeKey, Peer, RoutingFacts, Underlay
from podwire.routing.plan import plan
from podwire.routing.settings import RoutingSettings, parse_settings

OWN = [NodeKey("A" * 42 + "A=", "/keys/0.key"), NodeKey("B" * 42 + "A=", "/keys/1.key")]
THEIRS = ["C" * 42 + "A=", "D" * 42 + "A="]
ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
    run_dir="/run/test",
    keys={"wireguard": {"0": OWN[0]}},
)


def facts(generation: int, *generations: int) -> RoutingFacts:
    keys = {str(number): THEIRS[number % 2] for number in generations}
    return RoutingFacts("wireguard", ("wireguard",), {"wireguard": {"generation": generation, "keys": keys}})


PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.89.0.12"), ip_address("fd89::12")),
    pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:0:0:1::/64")),
    facts=facts(0, 0),
)
NETWORK = """\
link podwire-wg mtu 1440 alias "podwire/routing wireguard" up type tun
address 10.244.0.1/32 dev podwire-wg
address fd44::1/128 dev podwire-wg
route 10.244.1.0/24 dev podwire-wg src 10.244.0.1
route fd44:0:0:1::/64 dev podwire-wg src fd44::1
sysctl net/ipv4/conf/podwire-wg/rp_filter = 2
sysctl net/ipv6/conf/podwire-wg/accept_ra = 0
"""
DEVICE = f"""\
wireguard podwire-wg port 51820 key {OWN[0].public} private-key-file /keys/0.key \
control /run/test/podwire-wg/wireguard/podwire-wg.sock
wireguard-peer podwire-wg {THEIRS[0]} endpoint 10.89.0.12:51820 keepalive 25 \
allowed-ips 10.244.1.0/24,10.89.0.12/32,fd44:0:0:1::/64,fd89::12/128\
"""


def backend(**options: Any) -> WireGuardTunnel:
    return WireGuardTunnel(WireGuardOptions(wireguard=WireGuardSection(**options)))


def test_a_kernel_with_wireguard_needs_no_process() -> None:
    me = replace(ME, features=frozenset(["wireguard"]))
    created = backend().plan(me, [PEER], ClusterView((PEER,)))
    assert str(created.network) == NETWORK.replace("type tun", "type wireguard")
    (device,) = created.program_values
    assert str(device) == DEVICE.replace(" control /run/test/podwire-wg/wireguard/podwire-wg.sock", "")
    assert created.children == ()
    by_process = backend(engine="process").plan(me, [PEER], ClusterView((PEER,)))
    assert str(by_process.network) == NETWORK and len(by_process.children) == 1


def test_a_peer_is_a_route_and_a_line() -> None:
    created = backend().plan(ME, [PEER], ClusterView((PEER,)))
    assert str(created.network) == NETWORK
    assert [str(value) for value in created.program_values] == [DEVICE]
    assert created.tunnels == ("podwire-wg",) and created.values == ()
    assert [child.argv[-3:] for child in created.children] == [("wireguard-go", "/run/test/podwire-wg", "podwire-wg")]
    assert backend().announce(ME) == {"wireguard": {"generation": 0, "keys": {"0": OWN[0].public}}}


def test_ipv6_between_nodes_takes_twenty_bytes_more() -> None:
    created = backend(port=7000).plan(replace(ME, addresses=ME.addresses[::-1]), [PEER], ClusterView((PEER,)))
    assert created.network.links[0].mtu == 1420
    assert "port 7000 " in str(created.program_values[0]) and "endpoint [fd89::12]:7000" in str(
        created.program_values[0]
    )
    assert backend(port=7000).udp_ports == (), "pods may use WireGuard themselves"


def test_the_cluster_is_unreachable_where_no_peer_is() -> None:
    pods = (ip_network("10.244.0.0/16"), ip_network("fd44::/48"))
    created = backend().plan(ME, [], ClusterView((), (*pods, ME.pod_cidrs[0])))
    assert str(created.configured) == (
        "route 10.244.0.0/16 type unreachable metric 4096\nroute fd44::/48 type unreachable metric 4096\n"
    )


def test_refusals_are_for_nodes_with_the_backend_configured() -> None:
    backends = {
        name: item for name, item in RoutingSettings().load().items() if name in ("vxlan", "hostgw", "wireguard")
    }
    for configured in backends:
        created = plan(ME, [PEER], RoutingSettings(backend=configured), backends, (ip_network("10.244.0.0/16"),))
        refused = "route 10.244.0.0/16 type unreachable" in str(created.state)
        assert refused == (configured == "wireguard")
        assert created.facts.details["wireguard"]["keys"] == {"0": OWN[0].public}
        assert [str(value) for value in created.program_values] == [DEVICE]


@pytest.mark.parametrize(
    ("announced", "problem"),
    [
        (None, "node node-2 has announced no WireGuard key yet"),
        (RoutingFacts("vxlan", ("vxlan",)), "node node-2 has announced no WireGuard key yet"),
        (RoutingFacts("wireguard", (), {"wireguard": 7}), "node node-2 has announced no WireGuard key yet"),
        (facts(3, 3), "node node-2 has WireGuard keys of generation 3, this node has 0"),
    ],
)
def test_a_peer_without_a_usable_key_is_not_reached(announced: RoutingFacts | None, problem: str) -> None:
    peer = replace(PEER, facts=announced)
    assert backend().reaches(ME, peer) == problem
    assert backend().reaches(ME, replace(peer, addresses=PEER.addresses[1:])) == "node node-2 has no IPv4 address"


def test_damaged_keys_of_a_peer_are_passed_over() -> None:
    for keys in ({"0": "short"}, {"zero": THEIRS[0]}):
        details = {"wireguard": {"generation": 0, "keys": keys}}
        peer = replace(PEER, facts=RoutingFacts("wireguard", (), details))
        assert "no WireGuard key" in backend().reaches(ME, peer)
        assert backend().plan(ME, [], ClusterView((peer,))).program_values[0].peers == ()  # type: ignore[attr-defined]


def test_generations_in_use_are_the_own_and_that_of_peers() -> None:
    rest = [replace(PEER, facts=facts(1, 0, 1)), replace(PEER, facts=facts(2, 2)), replace(PEER, facts=None)]
    assert backend().key_names([PEER]) == ["0"]
    assert backend().key_names(rest) == ["0", "1"]
    assert backend(key_generation=1).key_names(rest) == ["1", "2"]


@pytest.mark.parametrize(
    ("own", "announced", "device"),
    [
        (0, facts(1, 0, 1), "podwire-wg"),
        (1, facts(0, 0), "podwire-wg"),
        (1, facts(0, 0, 1), "podwire-wg2"),
    ],
)
def test_packets_take_the_own_generation_once_the_peer_has_it(own: int, announced: RoutingFacts, device: str) -> None:
    me = replace(ME, keys={"wireguard": {"0": OWN[0], "1": OWN[1]}})
    peer = replace(PEER, facts=announced)
    created = backend(key_generation=own).plan(me, [peer], ClusterView((peer,)))
    assert {route.link for route in created.network.routes} == {device}
    assert [value.port for value in created.program_values] == [51820, 51821]  # type: ignore[attr-defined]
    assert created.tunnels == ("podwire-wg", "podwire-wg2")


def test_a_new_generation_waits_for_sessions_with_peers() -> None:
    me = replace(ME, keys={"wireguard": {"0": OWN[0], "1": OWN[1]}}, facts=facts(1, 0, 1))
    peer, created = replace(PEER, facts=facts(1, 0, 1)), backend(key_generation=1)
    steps = [
        (frozenset({THEIRS[0]}), "podwire-wg"),
        (frozenset(THEIRS), "podwire-wg2"),
        (frozenset[str](), "podwire-wg2"),
        (None, "podwire-wg2"),
    ]
    for sessions, device in steps:
        now = replace(me, sessions=sessions)
        assert {route.link for route in created.plan(now, [peer], ClusterView((peer,))).network.routes} == {device}
        assert created.has_session(now, peer) == (sessions is not None and bool(sessions))
        assert created.key_names([peer, now]) == (["0", "1"] if sessions is not None else ["1"]), sessions


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        (WireGuardSection(port=65535), "routing.wireguard.port: 65535 is not in 1..65534"),
        (WireGuardSection(keepalive=-1), "routing.wireguard.keepalive: -1 is not in 0..65535"),
        (WireGuardSection(key_generation=-1), "routing.wireguard.keyGeneration: -1 is not in"),
    ],
)
def test_numbers_out_of_range_are_refused(section: WireGuardSection, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        WireGuardOptions(wireguard=section).check("test")


def test_direct_routing_past_the_encryption_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"routing.directRouting: wireguard encrypts all packets"):
        parse_settings({"backend": "wireguard", "directRouting": True}, "test")
    assert parse_settings({"backend": "vxlan", "directRouting": True}, "test").direct_routing
