"""The backend bgp: who has sessions with whom, which routes podwire writes itself, and which options are refused."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace

from podwire.bgp.fields import community
from podwire.errors import ConfigError
from podwire.routing.backends.bgp.backend import BgpRouting
from podwire.routing.backends.bgp.objects import BgpObjects, ConfigurationValues, PeerValues
from podwire.routing.backends.bgp.options import BgpOptions
from podwire.routing.direct import behind_router
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.plan import plan
from podwire.routing.settings import RoutingSettings, parse_settings

SPEAKS = RoutingFacts("bgp", ("bgp", "hostgw"), {"bgp": {"asNumber": 64512}})
TUNNEL = RoutingFacts("vxlan", ("hostgw", "vxlan"))


def me(number: int = 1) -> LocalNode:
    return LocalNode(
        name=f"node-{number}",
        addresses=(ip_address(f"10.89.0.{10 + number}"), ip_address(f"fd89::{10 + number}")),
        pod_cidrs=(ip_network(f"10.244.{number}.0/24"),),
        underlay=Underlay("eth0", 1500, (ip_interface(f"10.89.0.{10 + number}/24"),)),
        run_dir="/run/test",
    )


def peer(number: int, facts: RoutingFacts | None = SPEAKS, segment: int = 0) -> Peer:
    return Peer(
        name=f"node-{number}",
        addresses=(ip_address(f"10.89.{segment}.{10 + number}"),),
        pod_cidrs=(ip_network(f"10.244.{number}.0/24"),),
        facts=facts,
    )


def backend(**section: object) -> BgpRouting:
    settings = parse_settings({"backend": "bgp", "bgp": section}, "test")
    created = settings.load()["bgp"]
    assert isinstance(created, BgpRouting)
    return created


def neighbours(text: bytes) -> list[str]:
    return [line.split()[1] for line in text.decode().splitlines() if line.startswith("  neighbor ")]


def conf(routing: BgpRouting, own: LocalNode, *peers: Peer) -> bytes:
    planned = routing.plan(own, peers, ClusterView(peers, (ip_network("10.244.0.0/16"),)))
    (bird,) = planned.children
    return bird.files["/run/test/bird.conf"]


def test_peers_of_the_same_subnet_get_routes_from_podwire() -> None:
    near, far = peer(2), peer(3, segment=1)
    planned = backend().plan(me(), [near, far], ClusterView((near, far), (ip_network("10.244.0.0/16"),)))
    assert [str(route) for route in planned.network.routes] == [
        "route 10.244.2.0/24 via 10.89.0.12 dev eth0 src 10.89.0.11"
    ]
    (bird,) = planned.children
    assert b"bgp_next_hop ~ [ 10.89.0.12 ]" in bird.files["/run/test/bird.conf"]
    assert bird.check == ("/usr/sbin/bird", "-p", "-c", "/run/test/bird.conf")
    assert bird.reload == ("/usr/sbin/birdcl", "-s", "/run/test/bird.ctl", "configure")


def test_the_kernel_state_on_one_segment_is_that_of_hostgw() -> None:
    """So that packets take the same way, and need the same time."""
    both = RoutingFacts("bgp", ("bgp", "hostgw"), {"bgp": {"asNumber": 64512}})
    peers, cidrs = (peer(2, both), peer(3, both)), (ip_network("10.244.0.0/16"),)
    plans = {}
    for name in ("bgp", "hostgw"):
        settings = RoutingSettings(backend=name)
        plans[name] = plan(me(), peers, settings, {name: settings.load()[name]}, cidrs)

    assert plans["bgp"].state == plans["hostgw"].state
    assert plans["bgp"].values == plans["hostgw"].values
    assert plans["bgp"].pod_mtus == plans["hostgw"].pod_mtus
    assert len(plans["bgp"].state.routes) == 3


def test_the_mesh_has_all_nodes_that_run_bgp() -> None:
    text = conf(backend(), me(), peer(2), peer(3, None), peer(4, TUNNEL))
    assert neighbours(text) == ["10.89.0.12", "10.89.0.13"]


def test_the_lower_address_opens_the_connection() -> None:
    text = conf(backend(), me(2), peer(1), peer(3))
    assert [part.count(b"passive on;") for part in text.split(b"protocol bgp ")[1:]] == [1, 0]


def test_a_peer_has_the_number_that_it_announces() -> None:
    facts = RoutingFacts("bgp", ("bgp",), {"bgp": {"asNumber": 65000}})
    assert b"neighbor 10.89.0.12 port 1179 as 65000;" in conf(backend(listenPort=1179), me(), peer(2, facts))


@pytest.mark.parametrize(
    ("own", "expected", "clients"),
    [(1, ["10.89.0.12", "10.89.0.13", "10.89.0.14"], 2), (3, ["10.89.0.11", "10.89.0.12"], 0)],
    ids=["reflector", "client"],
)
def test_reflectors_replace_the_mesh(own: int, expected: list[str], clients: int) -> None:
    routing = backend(mesh=False, reflectors={"nodes": ["node-1", "node-2"], "clusterID": "224.0.0.9"})
    text = conf(routing, me(own), *(peer(number) for number in (1, 2, 3, 4) if number != own))
    assert neighbours(text) == expected
    assert text.count(b"rr client; rr cluster id 224.0.0.9;") == clients


def test_labels_make_nodes_reflectors() -> None:
    routing = backend(mesh=False, reflectors={"labels": {"route-reflector": "true", "zone": "a"}})
    labels = {"route-reflector": "true", "zone": "a", "other": "x"}
    half = replace(peer(3), labels={"route-reflector": "true"})
    assert neighbours(conf(routing, me(), replace(peer(2), labels=labels), half)) == ["10.89.0.12"]
    text = conf(routing, replace(me(), labels=labels), peer(2), half)
    assert neighbours(text) == ["10.89.0.12", "10.89.0.13"] and text.count(b"rr client;") == 2


def test_external_peers_are_those_of_the_node() -> None:
    peers = [
        {"address": "10.89.0.1", "asNumber": 65001, "nodes": ["node-1"], "communities": ["64512:7", "1:2:3"]},
        {"address": "192.0.2.1", "asNumber": 65002, "accept": ["198.51.100.0/24"], "prepend": 1},
    ]
    text = conf(backend(peers=peers), me(1))
    assert neighbours(text) == ["10.89.0.1", "192.0.2.1"]
    assert b"bgp_community.add((64512, 7)); bgp_large_community.add((1, 2, 3));" in text
    assert text.count(b"  direct;") == 1 and text.count(b"  multihop;") == 1
    assert neighbours(conf(backend(peers=peers), me(2))) == ["192.0.2.1"]


def test_peers_behind_a_router_need_a_router_that_speaks_bgp() -> None:
    far, own = peer(2, segment=1), me()
    reason = "node node-2 (10.89.1.12) is not on a subnet of eth0"
    assert behind_router(own, far) == reason
    assert backend().reaches(own, far) == "", "whoever does not read BGPPeers cannot say that none names a router"
    informed, nobody = backend(), "neither routing.bgp.peers nor a BGPPeer names a router for node-1"
    informed.take_objects(BgpObjects())
    assert informed.reaches(own, far) == f"{reason}, and {nobody}"
    informed.take_objects(BgpObjects(peers=(PeerValues(name="tor", address=ip_address("10.89.0.1"), as_number=65001),)))
    assert informed.reaches(own, far) == ""
    with_router = backend(peers=[{"address": "10.89.0.1", "asNumber": 65001}])
    assert with_router.reaches(own, far) == ""
    assert with_router.reaches(own, peer(2, TUNNEL, segment=1)) == f"{reason} and does not run BGP yet"
    assert backend().reaches(own, peer(2, TUNNEL)) == ""


def test_peers_behind_a_router_need_the_routes_of_bird() -> None:
    far, near, routing = peer(2, segment=1), peer(3), backend(peers=[{"address": "10.89.0.1", "asNumber": 65001}])
    routing.take_objects(BgpObjects(default=ConfigurationValues(writes_pod_routes=False)))
    assert routing.reaches(me(), far).endswith(
        "programClusterRoutes of the BGPConfiguration keeps BIRD from writing routes to pods"
    )
    assert routing.reaches(me(), near) == ""
    assert b"net ~ [ 10.244.0.0/16+ ] then reject;" in conf(routing, me(), near, far)
    routing.take_objects(BgpObjects(default=ConfigurationValues(writes_pod_routes=True)))
    assert routing.reaches(me(), far) == ""


def test_nodes_without_ipv4_have_a_router_id() -> None:
    own = LocalNode(
        name="node-1",
        addresses=(ip_address("fd89::11"),),
        pod_cidrs=(ip_network("fd00:0:0:1::/64"),),
        underlay=Underlay("eth0", 1500, (ip_interface("fd89::11/64"),)),
        run_dir="/run/test",
    )
    assert conf(backend(), own) == conf(backend(), own)
    assert b"router id 0.0.0.0" not in conf(backend(), own)


def test_passwords_are_not_shown() -> None:
    document = {"bgp": {"password": "hush", "peers": [{"address": "10.0.0.1", "asNumber": 1, "password": "quiet"}]}}
    settings = parse_settings(document, "test")
    shown = settings.fields()["bgp"]
    assert (shown["password"], shown["peers"][0]["password"]) == ("(hidden)", "(hidden)")
    assert settings.options["bgp"] != RoutingSettings(options={"bgp": BgpOptions()}).options["bgp"]


PEER = {"address": "10.0.0.1", "asNumber": 65001}


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"asNumber": 0}, "asNumber: 0 is not in 1..4294967295"),
        ({"listenPort": 70000}, "listenPort: 70000 is not in 1..65535"),
        ({"restartTimeS": 4096}, "restartTimeS: 4096 is not in 1..4095"),
        ({"password": 'a"b'}, "password: expected printable characters without double quotes"),
        ({"password": "x" * 81}, "password: 81 bytes: expected 80 at most"),
        ({"reflectors": {"clusterID": "one"}}, "reflectors.clusterID: Expected 4 octets in 'one'; expected an IPv4 "),
        ({"peers": [{"address": "10.0.0.1"}]}, "peers[0]: object missing required field `asNumber`"),
        ({"peers": [{**PEER, "address": "ten"}]}, "peers[0].address: 'ten' does not appear to be an IPv4 or IPv6"),
        ({"peers": [PEER, PEER]}, "peers[1].address: 10.0.0.1 is also the address of routing.bgp.peers[0]"),
        ({"peers": [{**PEER, "accept": ["10.0.0.1/8"]}]}, "peers[0].accept[0]: 10.0.0.1/8 has host bits set"),
        ({"peers": [{**PEER, "communities": ["7"]}]}, "peers[0].communities[0]: '7': expected two numbers up to"),
        ({"peers": [{**PEER, "prepend": 21}]}, "peers[0].prepend: 21 is not in 0..20"),
        ({"logLevel": "loud"}, "logLevel: 'loud' is not valid; expected one of debug, error, info, warning"),
    ],
)
def test_wrong_options_are_refused_with_their_field(section: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_settings({"bgp": section}, "file")
    assert str(refused.value).startswith(f"file: routing.bgp.{problem}")


@pytest.mark.parametrize("text", ["", "1", "1:2:3:4", "65536:1", "a:1", "-1:1", "4294967296:1:1"])
def test_wrong_communities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected two numbers"):
        community(text)
    assert community("65535:0") == (65535, 0)
