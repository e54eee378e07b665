"""Requests: framing and validation."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni import protocol
from podwire.errors import CniError

ENVIRONMENT = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/a",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_UID=u-1",
}
CONF = b'{"cniVersion": "1.1.0", "name": "podwire", "type": "podwire-cni"}'

VARIABLE = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]))


@given(
    st.dictionaries(
        st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=1, max_size=8).map("CNI_".__add__), VARIABLE, max_size=5
    ),
    st.binary(max_size=50),
)
def test_messages_survive_a_round_trip(environment: dict[str, str], stdin: bytes) -> None:
    assert protocol.split(protocol.join(environment, stdin)) == (environment, stdin)


@given(st.binary(max_size=60))
def test_no_message_does_more_than_fail(message: bytes) -> None:
    with contextlib.suppress(CniError):
        assert protocol.parse(*protocol.split(message)).command


def test_a_request() -> None:
    request = protocol.parse(ENVIRONMENT, CONF)
    assert request.key == protocol.AttachmentKey("podwire", "c1", "eth0")
    assert (request.namespace, request.pod, request.uid) == ("shop", "web-1", "u-1")
    assert request.pod_name == "shop/web-1"


@pytest.mark.parametrize(
    ("change", "conf", "code", "arguments"),
    [
        ({"CNI_COMMAND": ""}, CONF, 4, "CNI_COMMAND"),
        ({"CNI_COMMAND": "ADDD"}, CONF, 4, "ADDD"),
        (
            {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""},
            CONF,
            4,
            "[CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME]",
        ),
        ({"CNI_CONTAINERID": "../x"}, CONF, 4, "CNI_CONTAINERID"),
        ({"CNI_IFNAME": "a" * 16}, CONF, 4, "CNI_IFNAME"),
        ({"CNI_IFNAME": "a/b"}, CONF, 4, "CNI_IFNAME"),
        ({"CNI_IFNAME": ".."}, CONF, 4, "CNI_IFNAME"),
        ({"CNI_ARGS": "x"}, CONF, 4, "CNI_ARGS"),
        ({"CNI_ARGS": "K8S_POD_NAME=a;GATEWAY=10.0.0.1"}, CONF, 4, "GATEWAY"),
        (
            {},
            b'{"cniVersion": "1.1.0", "name": "x", "runtimeConfig": {"bandwidth": {"ingressRate": 8}}}',
            2,
            "bandwidth",
        ),
        (
            {},
            b'{"cniVersion": "1.1.0", "name": "x", "runtimeConfig": {"portMappings": [{"hostPort": "80"}]}}',
            6,
            "hostPort",
        ),
        ({}, b"{", 6, "JSON"),
        ({}, b'{"cniVersion": "1.1.0"}', 7, "name"),
        ({}, b'{"cniVersion": "1.1.0", "name": "-x"}', 7, "-x"),
        ({"CNI_COMMAND": "STATUS"}, b'{"cniVersion": "1.0.0", "name": "x"}', 1, "STATUS"),
        ({"CNI_COMMAND": "GC"}, b'{"cniVersion": "1.0.0", "name": "x"}', 1, "GC"),
        ({"CNI_COMMAND": "CHECK"}, b'{"cniVersion": "0.3.1", "name": "x"}', 1, "CHECK"),
    ],
)
def test_a_bad_request_has_its_code(change: dict[str, str], conf: bytes, code: int, arguments: str) -> None:
    with pytest.raises(CniError) as failure:
        protocol.parse(ENVIRONMENT | change, conf)
    assert failure.value.code == code
    assert arguments in str(failure.value)


def test_del_needs_no_namespace() -> None:
    assert protocol.parse(ENVIRONMENT | {"CNI_COMMAND": "DEL", "CNI_NETNS": ""}, CONF).netns == ""


@pytest.mark.parametrize("command", ["DEL", "GC"])
def test_del_and_gc_ignore_what_only_add_uses(command: str) -> None:
    conf = b"""{"cniVersion": "1.1.0", "name": "x", "mtu": 9, "dns": 3, "args": {"cni": []},
        "RuntimeConfig": {"bandwidth": 5, "portMappings": [{"hostPort": "80"}]}}"""
    request = protocol.parse(ENVIRONMENT | {"CNI_COMMAND": command, "CNI_ARGS": "x;Y=1"}, conf)
    assert request.command == command


def test_version_ignores_the_configuration() -> None:
    assert protocol.parse({"CNI_COMMAND": "VERSION"}, b"").conf.cni_version == "1.1.0"
    assert protocol.parse({"CNI_COMMAND": "VERSION"}, b'{"cniVersion": "0.4.0"}').conf.cni_version == "0.4.0"
