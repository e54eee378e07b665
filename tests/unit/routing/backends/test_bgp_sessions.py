"""Which sessions follow from BGPPeers in the forms that Calico's documentation and tests have."""

from ipaddress import ip_network
from typing import Any

import msgspec
import pytest
from tests.unit.routing.backends.test_bgp_objects import PASSWORD, TOR, block, conf, me, neighbours, node, peer_values

from podwire.bgp.configuration import RouteRule
from podwire.errors import ConfigError
from podwire.routing.backends.bgp.objects import REFLECTOR, BgpObjects, ConfigurationValues, PeerValues
from podwire.routing.backends.bgp.options import BgpSection

Json = dict[str, Any]

NO_MESH = ConfigurationValues(mesh=False)


def named(name: str, spec: Json) -> PeerValues:
    return msgspec.structs.replace(peer_values(spec), name=name)


def without_mesh(*peers: PeerValues) -> BgpObjects:
    return BgpObjects(default=NO_MESH, peers=peers)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"node": "node-2"}, ["10.89.0.12"]),
        ({"nodeSelector": "rack == 'r1'"}, ["10.89.0.13"]),
        ({}, ["10.89.0.12", "10.89.0.13"]),
        ({"peerIP": "10.89.0.11:179"}, ["10.89.0.12", "10.89.0.13"]),
        ({"reversePeering": "Manual"}, []),
        ({"asNumber": 64600}, []),
        ({"peerIP": "10.89.0.11:1179"}, []),
    ],
)
def test_address_of_a_node_gives_it_sessions_back(spec: Json, expected: list[str]) -> None:
    objects = without_mesh(peer_values({"peerIP": "10.89.0.11", "asNumber": 64512, **spec}))
    text = conf(objects, me(), node(2), node(3, labels={"rack": "r1"}))
    assert neighbours(text) == expected


def test_reflector_by_its_address_has_clients() -> None:
    objects = without_mesh(peer_values({"peerIP": "10.89.0.11", "asNumber": 64512}))
    text = conf(objects, me(annotations={REFLECTOR: "244.0.0.1"}), node(2))
    assert "rr client; rr cluster id 244.0.0.1;" in block(text, "node_10_89_0_12")


def test_own_number_of_a_session_makes_clients() -> None:
    peer = peer_values({"peerIP": "10.89.0.1", "asNumber": 64600, "localASNumber": 64600})
    text = conf(without_mesh(peer), me(annotations={REFLECTOR: "244.0.0.1"}))
    assert "rr client; rr cluster id 244.0.0.1;" in block(text, "peer_10_89_0_1")


def test_session_back_expects_the_number_of_the_session() -> None:
    objects = without_mesh(
        peer_values({"node": "node-2", "peerIP": "10.89.0.11", "asNumber": 64512, "localASNumber": 64700})
    )
    text = conf(objects, me(), node(2))
    assert "neighbor 10.89.0.12 port 179 as 64700;" in text and "port 179 as 64512;" in text


def test_described_session_decides_over_a_session_back() -> None:
    own = named("a", {"node": "node-1", "peerSelector": "has(rr)", "nextHopMode": "Self"})
    back = named("b", {"node": "node-2", "peerSelector": "has(edge)"})
    text = conf(without_mesh(own, back), me(labels={"edge": ""}), node(2, labels={"rr": ""}))
    assert neighbours(text) == ["10.89.0.12"] and "next hop self;" in text


def test_peer_of_all_nodes_decides_over_peers_of_some() -> None:
    everywhere = named("a", {**TOR, "asNumber": 64601})
    text = conf(without_mesh(everywhere, named("z", {**TOR, "node": "node-1"})), me())
    assert "neighbor 10.89.0.1 port 179 as 64601;" in text and "as 64600;" not in text


@pytest.mark.parametrize(("number", "is_kept"), [(64600, True), (64512, False)])
def test_original_next_hop_is_kept_to_other_systems(number: int, *, is_kept: bool) -> None:
    text = conf(without_mesh(peer_values({**TOR, "asNumber": number, "keepOriginalNextHop": True})), me())
    assert ("next hop keep;" in text) is is_kept
    always = conf(without_mesh(peer_values({**TOR, "asNumber": number, "nextHopMode": "Keep"})), me())
    assert "next hop keep;" in always


def test_sessions_of_peers_have_several_paths() -> None:
    objects = without_mesh(peer_values(TOR))
    assert "add paths on;" not in conf(objects, me())
    assert "add paths on;" in conf(objects, me(), section=BgpSection(add_paths=True))


def test_number_of_a_session_needs_an_address() -> None:
    with pytest.raises(ConfigError, match=r"spec\.localASNumber: cannot be set"):
        peer_values({"peerSelector": "all()", "localASNumber": 64700})


def test_own_number_of_a_session_decides_its_type() -> None:
    values = msgspec.structs.replace(
        peer_values({**TOR, "localASNumber": 64600}),
        imports=(RouteRule(version=4, accept=False, peer_type="iBGP", network=ip_network("192.0.2.0/24")),),
    )
    text = conf(BgpObjects(peers=(values,)), me())
    assert "local 10.89.0.11 port 179 as 64600;" in text and "net ~ [ 192.0.2.0/24+ ] then reject;" in text


def test_peer_at_the_address_of_a_node_replaces_the_mesh() -> None:
    objects = BgpObjects(peers=(peer_values({"peerIP": "10.89.0.12", "password": PASSWORD}),))
    text = conf(objects, me(), node(2))
    assert neighbours(text) == ["10.89.0.12"] and '  password "s3cret";' in text
    assert "as 64512;" in block(text, "peer_10_89_0_12")
