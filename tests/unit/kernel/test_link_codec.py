"""Devices as rtnetlink messages and back."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import ProtocolError
from podwire.kernel import attributes, link_codec
from podwire.kernel.uapi import (
    IFF_UP,
    IFLA_IFALIAS,
    IFLA_IFNAME,
    IFLA_INFO_DATA,
    IFLA_LINK,
    IFLA_LINK_NETNSID,
    IFLA_LINKINFO,
    IFLA_MASTER,
    IFLA_NUM_RX_QUEUES,
    IFLA_NUM_TX_QUEUES,
    VETH_INFO_PEER,
)
from podwire.state.link import Link
from podwire.state.link_kinds import Geneve, IpTunnel, Vlan, Vxlan

INDEXES = {"eth0": 2, "br0": 3}

LINKS = [
    Link("br0", "bridge", 1500, mac="02:00:00:00:00:01"),
    Link("down0", "dummy", up=False, group=7),
    Link("vx", "vxlan", 1450, attributes=Vxlan(4096, 4789, "10.0.0.1", ttl=9, learning=True)),
    Link("vx6", "vxlan", attributes=Vxlan(1, local="fd00::1")),
    Link("ipip1", "ipip", 1480, attributes=IpTunnel("10.0.0.1", ttl=64)),
    Link("sit1", "sit", attributes=IpTunnel(remote="10.0.0.2")),
    Link("gnv1", "geneve", attributes=Geneve(external=True)),
    Link("gnv2", "geneve", attributes=Geneve(7, "fd00::2", 6082)),
    Link("mv", "macvlan", mode="passthru"),
    Link("iv", "ipvlan", mode="l3s"),
    Link("v7", "vlan", attributes=Vlan(7)),
]


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_an_encoded_link_decodes_to_itself(link: Link) -> None:
    assert link_codec.decode(link_codec.encode_add(link, INDEXES)).link == link


def test_relations_are_numbers() -> None:
    port = Link("p", "macvlan", master="br0", device="eth0", mode="bridge")
    read = link_codec.decode(link_codec.encode_add(port, INDEXES))
    assert (read.master, read.lower, read.lower_elsewhere) == (3, 2, False)
    tunnel = Link("vx", "vxlan", attributes=Vxlan(1, device="eth0"))
    assert link_codec.decode(link_codec.encode_add(tunnel, INDEXES)).lower == 2
    tagged = Link("v7", "vlan", attributes=Vlan(7, "eth0"))
    assert link_codec.decode(link_codec.encode_add(tagged, INDEXES)).lower == 2


def test_the_namespace_of_the_other_end_has_a_number() -> None:
    far = attributes.attribute(IFLA_LINK_NETNSID, struct.pack("=i", 7)) + attributes.u32(IFLA_LINK, 2)
    read = link_codec.decode(link_codec.header(9) + attributes.text(IFLA_IFNAME, "v") + far)
    assert (read.lower, read.lower_elsewhere, read.elsewhere) == (2, True, 7)
    here = link_codec.decode(link_codec.header(9) + attributes.text(IFLA_IFNAME, "v"))
    assert (here.lower_elsewhere, here.elsewhere) == (False, -1)


def test_an_unknown_relation_is_named() -> None:
    with pytest.raises(KeyError, match="br9"):
        link_codec.encode_add(Link("p", "dummy", master="br9"), INDEXES)
    with pytest.raises(ValueError, match="'wild' is not a mode of macvlan: private, vepa"):
        link_codec.encode_add(Link("p", "macvlan", mode="wild"), INDEXES)


def test_a_peer_is_never_created_up() -> None:
    body = link_codec.encode_add(Link("a", "veth", 1400, peer="b"), INDEXES, 5)
    info = attributes.parse(attributes.parse(body, 16)[IFLA_LINKINFO])
    peer = attributes.parse(info[IFLA_INFO_DATA])[VETH_INFO_PEER]
    read = link_codec.decode(peer)
    assert read.link == Link("b", mtu=1400, up=False)
    assert struct.unpack_from("=BxHiII", body)[3] == IFF_UP


def test_both_ends_of_a_pair_have_one_queue() -> None:
    body = link_codec.encode_add(Link("a", "veth", peer="b"), INDEXES)
    info = attributes.parse(attributes.parse(body, 16)[IFLA_LINKINFO])
    for end in (body, attributes.parse(info[IFLA_INFO_DATA])[VETH_INFO_PEER]):
        read = attributes.parse(end, 16)
        assert [attributes.number(read, kind) for kind in (IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES)] == [1, 1]


def test_settings_hold_what_is_asked_for_and_no_more() -> None:
    body = link_codec.encode_set(Link("eth0", alias="x y"), 2, INDEXES)
    assert attributes.parse(body, 16) == {IFLA_IFALIAS: b"x y"}
    body = link_codec.encode_set(Link("eth0", master="br0", up=False), 2, INDEXES)
    assert struct.unpack_from("=BxHiII", body)[2:] == (2, 0, IFF_UP)
    assert attributes.number(attributes.parse(body, 16), IFLA_MASTER) == 3


@given(st.binary(min_size=16, max_size=120))
def test_bytes_from_elsewhere_are_refused_or_read(data: bytes) -> None:
    with contextlib.suppress(ProtocolError, ValueError):
        assert str(link_codec.decode(data).link)
