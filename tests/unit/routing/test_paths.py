"""Paths of packets to pods of a peer: through each backend's own plan, and where entries of it are missing."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from typing import Any

import pytest
from msgspec.structs import replace

from podwire.routing.backend import KeyHolder
from podwire.routing.nodes import ClusterView, Device, LocalNode, NodeKey, Peer, RoutingFacts, Underlay
from podwire.routing.paths import OuterHeader, PathExplainer, PathState, PeerPath, lookup
from podwire.routing.registry import BACKENDS
from podwire.routing.settings import RoutingSettings
from podwire.state.link import Link
from podwire.state.network import NetworkState, merge, parse
from podwire.state.ovs import OvsSwitch
from podwire.state.route import Route

KEYS = {"0": "A" * 43 + "=", "1": "B" * 43 + "="}
FACTS = {"generation": 0, "keys": {"0": KEYS["0"]}}
MAC = {"mac": "02:00:00:00:00:02"}
OVS = {"tunnel": "geneve", "port": 6082, "vni": 4096}
ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:0:0:1::/64")),
    underlay=Underlay(
        "eth0", 1500, (ip_interface("10.89.0.11/24"), ip_interface("fd89::11/64")), {"eth0": Device(1500)}
    ),
    facts=RoutingFacts("wireguard", (), {"wireguard": FACTS}),
    keys={"wireguard": {"0": NodeKey(KEYS["0"], "/key")}},
)
PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.89.0.12"), ip_address("fd89::12")),
    pod_cidrs=(ip_network("10.244.2.0/24"), ip_network("fd44:0:0:2::/64")),
    facts=RoutingFacts("wireguard", tuple(BACKENDS), {"wireguard": FACTS, "bridge": MAC, "vlan": MAC, "ovs": OVS}),
)
FOUR, SIX = ip_address("10.244.2.9"), ip_address("fd44:0:0:2::9")
OUTER: dict[str, Any] = {"source": "10.89.0.11", "destination": "10.89.0.12"}
TUNNELS = {
    "vxlan": OuterHeader(protocol="VXLAN", id=4096, port=8472, **OUTER),
    "geneve": OuterHeader(protocol="Geneve", id=4096, port=6081, **OUTER),
    "ipip": OuterHeader(protocol="IP in IP", **OUTER),
    "ovs": OuterHeader(protocol="Geneve", id=4096, port=6082, **OUTER),
    "udp": OuterHeader(protocol="UDP", port=8285, **OUTER),
    "wireguard": OuterHeader(protocol="WireGuard", port=51820, encrypted=True, **OUTER),
}
EXPLAINED = ("bgp", "bridge", "geneve", "hostgw", "ipip", "ovs", "udp", "vlan", "vxlan", "wireguard")


def explainer(name: str) -> PathExplainer:
    backend = RoutingSettings().load()[name]
    assert isinstance(backend, PathExplainer)
    return backend


def planned(name: str) -> PathState:
    """The backend's plan for the peer, and the devices and the default route of the node."""
    plan = RoutingSettings().load()[name].plan(ME, (PEER,), ClusterView((PEER,), PEER.pod_cidrs))
    around = parse("link eth0 mtu 1500 up\naddress 10.89.0.11/24 dev eth0\nroute default via 10.89.0.1 dev eth0\n")
    return PathState(network=merge((around, plan.network)), program_values=plan.program_values)


def path(name: str, address: IPv4Address | IPv6Address, state: PathState) -> PeerPath:
    return explainer(name).path(ME, PEER, address, state)


@pytest.mark.parametrize("address", [FOUR, SIX])
@pytest.mark.parametrize("name", EXPLAINED)
def test_a_backend_follows_its_own_plan(name: str, address: IPv4Address | IPv6Address) -> None:
    reported = path(name, address, planned(name))
    assert (reported.missing, reported.tunnel) == ((), TUNNELS.get(name))
    assert reported.mtu == 1500 - RoutingSettings().load()[name].overhead(ME)


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_path_without_the_route_is_interrupted(name: str) -> None:
    state = planned(name)
    routes = tuple(route for route in state.network.routes if not route.dst.startswith("10.244.2."))
    reported = path(name, FOUR, replace(state, network=replace(state.network, routes=routes)))
    assert reported.tunnel is None
    assert reported.missing[0].startswith("no route to 10.244.2.0/24")
    assert "default via 10.89.0.1 dev eth0" in reported.missing[0]


@pytest.mark.parametrize("name", ["vxlan", "geneve", "bridge", "vlan", "ovs"])
def test_a_path_without_the_neighbour_is_interrupted(name: str) -> None:
    state = planned(name)
    reported = path(name, FOUR, replace(state, network=replace(state.network, neighbours=())))
    assert reported.missing == (f"no neighbour entry for 10.244.2.1 on podwire-{name}",)


def test_a_tunnel_to_another_address_is_no_path() -> None:
    for name in ("vxlan", "geneve", "ipip", "ovs", "udp", "wireguard"):
        moved = replace(PEER, addresses=(ip_address("10.89.0.77"),))
        reported = explainer(name).path(ME, moved, FOUR, planned(name))
        assert reported.missing[0].endswith("leads to 10.89.0.12, and node-2 has 10.89.0.77"), name
    assert path("vxlan", FOUR, replace(planned("vxlan"), network=replace(planned("vxlan").network, fdb=()))).missing


@pytest.mark.parametrize(
    ("name", "device", "work"), [("wireguard", "podwire-wg", "encrypts"), ("udp", "podwire-udp", "carries")]
)
def test_a_path_without_its_process_or_peer_is_interrupted(name: str, device: str, work: str) -> None:
    state = planned(name)
    assert path(name, FOUR, replace(state, program_values=())).missing == (f"no process {work} packets of {device}",)
    stranger = replace(PEER, pod_cidrs=(ip_network("10.244.3.0/24"),))
    alone = RoutingSettings().load()[name].plan(ME, (), ClusterView((stranger,), PEER.pod_cidrs))
    reported = path(name, FOUR, replace(state, program_values=alone.program_values))
    assert reported.missing == (f"{device} has no peer for 10.244.2.9",)


def test_a_path_without_its_bridge_port_or_flow_is_interrupted() -> None:
    state = planned("ovs")
    (switch,) = state.program_values
    assert isinstance(switch, OvsSwitch)
    bridge, underlay = switch.bridges
    tunnel, gateway = (port.name for port in bridge.ports[::-1])
    for damaged, missing in (
        ((underlay,), "no ovs-vswitchd has the bridge podwire-ovs-br"),
        ((replace(bridge, flows=bridge.flows[:1]),), "no flow to 10.244.2.0/24 on podwire-ovs-br"),
        ((replace(bridge, ports=bridge.ports[:1]),), f"podwire-ovs-br has no port for {tunnel}"),
        ((replace(bridge, ports=bridge.ports[1:]),), "podwire-ovs-br has no port for the gateway"),
    ):
        told = path("ovs", FOUR, replace(state, program_values=(replace(switch, bridges=damaged),)))
        assert told.missing == (missing,), gateway
    assert path("ovs", FOUR, replace(state, program_values=())).missing[0].startswith("no ovs-vswitchd")


def test_plain_routes_lead_to_the_peer_itself() -> None:
    state = planned("hostgw")
    astray = parse("route 10.244.2.0/25 via 10.89.0.99 dev eth0")
    reported = path("hostgw", FOUR, replace(state, network=merge((state.network, astray))))
    assert reported.missing == ("the next hop of 10.244.2.0/25 via 10.89.0.99 dev eth0 is not node-2",)


def test_behind_a_router_bgp_needs_a_learned_route() -> None:
    far = replace(PEER, addresses=(ip_address("10.90.0.12"), ip_address("fd90::12")))
    state = PathState(network=parse("link eth0 up\nroute default via 10.89.0.1 dev eth0\n"))
    reported = explainer("bgp").path(ME, far, FOUR, state)
    assert reported.missing[0].endswith("BIRD has learned none")
    learned = parse("route 10.244.0.0/16 via 10.89.0.1 dev eth0 proto 12")
    assert not explainer("bgp").path(ME, far, FOUR, PathState(network=merge((state.network, learned)))).missing


def test_without_routing_a_default_route_is_enough() -> None:
    state = PathState(network=parse("link eth0 up\nroute default via 10.89.0.1 dev eth0\n"))
    assert not path("none", FOUR, state).missing
    assert path("none", FOUR, PathState(network=NetworkState())).missing == ("no route to 10.244.2.0/24",)


def test_routes_are_chosen_by_prefix_and_metric() -> None:
    state = parse(
        "link a up\nlink b up\naddress 192.0.2.1/24 dev a\n"
        "route default via 192.0.2.254 dev a\nroute 10.0.0.0/8 dev b metric 5\nroute 10.0.0.0/8 dev a metric 9\n"
        "route 10.1.0.0/16 type unreachable\nroute 10.0.0.0/8 dev a table 7\n"
        "route ::/0 via fd00::1 dev a\nroute fd01::/64 dev b metric 100\nroute fd01::/64 dev a\n"
    )
    expected = {"192.0.2.9": "a", "10.9.9.9": "b", "fd01::9": "b", "fd02::9": "a", "198.51.100.1": "a"}
    for text, link in expected.items():
        route = lookup(state, ip_address(text))
        assert route is not None and route.link == link, text
    refused = lookup(state, ip_address("10.1.2.3"))
    assert refused == Route(dst="10.1.0.0/16", kind="unreachable")
    assert lookup(NetworkState(), ip_address("10.1.2.3")) is None


def test_a_device_that_is_down_is_no_path() -> None:
    state = planned("vxlan")
    links = tuple(Link(name="podwire-vxlan", up=False) for _ in "1")
    reported = path("vxlan", FOUR, replace(state, network=replace(state.network, links=links)))
    assert reported.missing == ("device podwire-vxlan is down",)


def test_announced_keys_have_no_files() -> None:
    for name, backend in RoutingSettings().load().items():
        if isinstance(backend, KeyHolder):
            assert name == "wireguard"
            assert backend.announced_keys(ME) == {"0": NodeKey(KEYS["0"], "")}
            assert backend.announced_keys(replace(ME, facts=None)) == {}
