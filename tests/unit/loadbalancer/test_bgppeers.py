"""BGPPeers, BGPAdvertisements, Communities and BFDProfiles as values, and refusals with the field."""

import base64
from typing import Any

import msgspec
import pytest

from podwire.bgp.configuration import BfdTimes
from podwire.errors import ConfigError
from podwire.loadbalancer.bgppeers import (
    PasswordSecrets,
    Vocabulary,
    read_advertisement,
    read_communities,
    read_each,
    read_peer,
    read_profile,
)
from podwire.model.metallb import BfdProfile, BgpAdvertisement, MetalLbCommunity, MetalLbPeer
from podwire.model.secret import PASSWORD_TYPE, Secret


def find(name: str) -> Secret | None:
    if name == "hidden":
        raise ConfigError("Secret kube-system/hidden", "", "is not readable")
    return SECRETS.get(name)


def basic(password: str, kind: str = PASSWORD_TYPE) -> Secret:
    return Secret(type=kind, data={"password": base64.b64encode(password.encode()).decode()})


SECRETS = {
    "tor": basic("s3cret"),
    "opaque": basic("s3cret", "Opaque"),
    "empty": Secret(type=PASSWORD_TYPE, data={"username": "eA=="}),
    "quoted": basic('a"b'),
}
NAMES = Vocabulary(
    {"no-export": (65535, 65281)}, {"fast": BfdTimes(receive_ms=100)}, PasswordSecrets("kube-system", find)
)
PEER = {"myASN": 64512, "peerASN": 64600, "peerAddress": "10.89.0.1"}


def parsed(kind: type[Any], **spec: Any) -> Any:
    return msgspec.convert({"metadata": {"name": "x"}, "spec": spec}, kind)


def test_a_peer_has_the_fields_of_metallb() -> None:
    peer = read_peer(
        parsed(
            MetalLbPeer,
            **PEER,
            peerPort=1179,
            holdTime="30s",
            keepaliveTime="10s",
            connectTime="5s",
            sourceAddress="10.89.0.11",
            routerID="10.0.0.1",
            bfdProfile="fast",
            enableGracefulRestart=True,
            ebgpMultiHop=True,
            password="secret",
            nodeSelectors=[{"matchLabels": {"rack": "a"}}],
        ),
        NAMES,
    )
    assert (peer.port, peer.hold_s, peer.keepalive_s, peer.connect_retry_s) == (1179, 30, 10, 5)
    assert (str(peer.source), peer.router_id, peer.bfd) == ("10.89.0.11", "10.0.0.1", BfdTimes(receive_ms=100))
    assert (peer.keeps_routes, peer.is_far, peer.password) == (True, True, "secret")


def test_a_peer_may_have_both_families() -> None:
    assert read_peer(parsed(MetalLbPeer, **PEER, dualStackAddressFamily=True), NAMES).families == {4, 6}
    assert read_peer(parsed(MetalLbPeer, **PEER, disableMP=True), NAMES).families == {4}


def test_a_peer_may_be_known_by_its_device_alone() -> None:
    peer = read_peer(parsed(MetalLbPeer, **PEER | {"peerAddress": "", "interface": "eth1"}), NAMES)
    session = peer.session({}, ())
    assert session is not None
    assert (session.interface, session.waits, session.local_port) == ("eth1", True, 179)
    assert peer.families == {4, 6}


@pytest.mark.parametrize("namespace", ["", "kube-system"])
def test_a_password_comes_from_a_secret(namespace: str) -> None:
    item = parsed(MetalLbPeer, **PEER, passwordSecret={"name": "tor", "namespace": namespace})
    assert read_peer(item, NAMES).password == "s3cret"
    assert read_peer(item, Vocabulary()).password == "", "explanations read no Secrets"


@pytest.mark.parametrize(("dynamic", "want"), [("internal", 64512), ("external", 0)])
def test_the_number_of_a_peer_may_be_dynamic(dynamic: str, want: int) -> None:
    assert read_peer(parsed(MetalLbPeer, **PEER | {"peerASN": 0, "dynamicASN": dynamic}), NAMES).peer_as == want


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"peerAddress": "x"}, "BGPPeer x: spec.peerAddress: 'x': expected an address"),
        ({"interface": "eth1"}, "spec.peerAddress: has no meaning with interface"),
        ({"peerAddress": "", "interface": "a/b"}, "spec.interface: 'a/b': expected the name of a device"),
        ({"peerAddress": "", "interface": "eth1", "vrf": "red"}, "spec.vrf: has no meaning with interface"),
        ({"peerAddress": "", "interface": "eth1", "peerPort": 1179}, "spec.peerPort: has no meaning with interface"),
        ({"vrf": "a/b"}, "spec.vrf: 'a/b': expected the name of a device"),
        (
            {"password": "a", "passwordSecret": {"name": "tor"}},
            "spec.passwordSecret: expected either password or passwordSecret",
        ),
        (
            {"passwordSecret": {"name": "tor", "namespace": "shop"}},
            "spec.passwordSecret.namespace: shop: expected kube-system, or nothing",
        ),
        ({"passwordSecret": {"name": "none"}}, "spec.passwordSecret: there is no Secret kube-system/none"),
        (
            {"passwordSecret": {"name": "opaque"}},
            "Secret kube-system/opaque has the type Opaque: expected kubernetes.io/basic-auth",
        ),
        ({"passwordSecret": {"name": "empty"}}, "Secret kube-system/empty has no text at the key password"),
        ({"passwordSecret": {"name": "quoted"}}, "Secret kube-system/quoted: key password: expected printable"),
        ({"passwordSecret": {"name": "hidden"}}, "spec.passwordSecret: Secret kube-system/hidden: is not readable"),
        (
            {"dualStackAddressFamily": True, "disableMP": True},
            "spec.disableMP: true contradicts dualStackAddressFamily",
        ),
        ({"myASN": 0}, "spec.myASN: 0: expected 1 to 4294967295"),
        ({"peerASN": 0}, "spec.peerASN: expected either peerASN or dynamicASN"),
        ({"dynamicASN": "internal"}, "spec.peerASN: expected either"),
        ({"peerASN": 0, "dynamicASN": "any"}, "spec.dynamicASN: 'any': expected internal or external"),
        ({"peerASN": 64512, "ebgpMultiHop": True}, "spec.ebgpMultiHop"),
        ({"peerASN": 0, "dynamicASN": "internal", "ebgpMultiHop": True}, "spec.ebgpMultiHop: is for a router with an"),
        ({"connectTime": "0s"}, "spec.connectTime: 0: expected 1 to 65535"),
        ({"sourceAddress": "fd89::1"}, "spec.sourceAddress: 'fd89::1': expected an IPv4 address"),
        ({"routerID": "fd89::1"}, "spec.routerID"),
        ({"bfdProfile": "none"}, "spec.bfdProfile: there is no valid BFDProfile none"),
        ({"holdTime": "1s"}, "spec.holdTime: 1: expected 3 to 65535"),
        ({"holdTime": "soon"}, "spec.holdTime: 'soon': expected a duration"),
        ({"keepaliveTime": "2m"}, "spec.keepaliveTime: 120 s: expected 1 s to holdTime, 90 s"),
        ({"password": 'a"b'}, "spec.password: expected printable characters"),
    ],
)
def test_refusals_of_peers_name_the_field(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_peer(parsed(MetalLbPeer, **PEER | spec), NAMES)


def test_advertisements_know_communities_by_name_and_value() -> None:
    scope = read_advertisement(
        parsed(BgpAdvertisement, communities=["no-export", "64512:7", "large:64512:1:8"], localPref=9, peers=["tor"]),
        NAMES,
    )
    assert scope.communities == ((65535, 65281), (64512, 7), (64512, 1, 8))
    assert (dict(scope.lengths), scope.local_pref, sorted(scope.peers)) == ({4: 32, 6: 128}, 9, ["tor"])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"communities": ["gold"]},
            r"communities\[0\]: 'gold': expected two numbers .* or the name in a Community",
        ),
        ({"aggregationLength": 33}, "spec.aggregationLength: 33: expected 1 to 32"),
        ({"aggregationLengthV6": 0}, "spec.aggregationLengthV6: 0: expected 1 to 128"),
    ],
)
def test_refusals_of_advertisements_name_the_field(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_advertisement(parsed(BgpAdvertisement, **spec), NAMES)


def test_communities_and_profiles_are_read() -> None:
    item = parsed(MetalLbCommunity, communities=[{"name": "a", "value": "1:2"}, {"name": "b", "value": "large:1:2:3"}])
    assert read_communities(item) == {"a": (1, 2), "b": (1, 2, 3)}
    profile = parsed(BfdProfile, receiveInterval=50, transmitInterval=60, detectMultiplier=4, passiveMode=True)
    assert read_profile(profile) == BfdTimes(receive_ms=50, transmit_ms=60, multiplier=4, passive=True)
    for spec, message in (
        ({"echoMode": True}, "spec.echoMode"),
        ({"minimumTtl": 3}, "spec.minimumTtl"),
        ({"receiveInterval": 5}, "spec.receiveInterval: 5: expected 10 to 60000"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_profile(parsed(BfdProfile, **spec))
    with pytest.raises(ConfigError, match=r"communities\[0\].value: 'x'"):
        read_communities(parsed(MetalLbCommunity, communities=[{"name": "a", "value": "x"}]))


def test_wrong_objects_keep_their_last_good_form() -> None:
    good, wrong = parsed(BfdProfile), parsed(BfdProfile, echoMode=True)
    values, problems = read_each([good], {}, read_profile)
    assert values == {"x": BfdTimes()} and not problems
    again, problems = read_each([wrong], values, read_profile)
    assert again == values and "spec.echoMode" in problems["x"]
