"""Flannel's configuration: what it becomes, and what is refused with the path of the field."""

import json
from typing import Any

import pytest

from podwire.errors import ConfigError
from podwire.routing.flannel.netconf import FlannelConf, parse_conf
from podwire.routing.settings import parse_settings

KUBE_FLANNEL = '{"Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": {"Type": "vxlan"}}'
VXLAN = {"backend": "vxlan", "vni": 1, "port": 8472, "directRouting": False}


def conf(backend: Any = None, **fields: Any) -> str:
    return json.dumps({"Network": "10.244.0.0/16", "Backend": backend or {"Type": "vxlan"}} | fields)


def test_the_usual_file_is_vxlan_with_identifier_1() -> None:
    parsed = parse_conf(KUBE_FLANNEL, "net-conf.json")
    assert parsed == FlannelConf(("10.244.0.0/16",), VXLAN)
    assert parse_settings(parsed.routing, "net-conf.json").fields()["vni"] == 1


def test_keys_are_read_in_any_case() -> None:
    text = '{"network": "10.244.0.0/16", "backend": {"type": "vxlan", "directrouting": true, "Vni": 9, "PORT": 4789}}'
    expected = {"backend": "vxlan", "vni": 9, "port": 4789, "directRouting": True}
    assert parse_conf(text, "net-conf.json").routing == expected


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ({"Type": "host-gw"}, {"backend": "hostgw"}),
        ({"Type": "ipip", "DirectRouting": True}, {"backend": "ipip", "directRouting": True}),
        ({"Type": "alloc"}, {"backend": "none"}),
        ({"Type": "vxlan", "GBP": False, "Port": 0, "MTU": 9000}, VXLAN | {"mtu": 8950}),
    ],
)
def test_backends_that_both_have(backend: dict[str, Any], expected: dict[str, Any]) -> None:
    routing = parse_conf(conf(backend), "net-conf.json").routing
    assert routing == expected
    parse_settings(routing, "net-conf.json")


def test_both_families() -> None:
    six = {"EnableIPv6": True, "IPv6Network": "fd44::/48"}
    assert parse_conf(conf(**six), "f").networks == ("10.244.0.0/16", "fd44::/48")
    alone = parse_conf(conf({"Type": "vxlan", "MTU": 1500}, EnableIPv4=False, Network="", **six), "f")
    assert (alone.networks, alone.routing["mtu"]) == (("fd44::/48",), 1430)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "f: not JSON"),
        ("[]", "f: expected an object, not list"),
        ('{"Backend": {"Type": "vxlan"}}', "f: Network: is missing; expected an IPv4 network"),
        (conf(Network="10.244.0.1/16"), "f: Network: 10.244.0.1/16 has host bits set"),
        (conf(Network="fd44::/48"), "f: Network: fd44::/48 is not an IPv4 network"),
        (conf(Network=7), "f: Network: expected a text, not 7"),
        (conf(network="10.0.0.0/8"), "f: network: is the same field as Network"),
        (conf(EnableIPv4=False), "f: Network: EnableIPv4 is not true"),
        (conf(EnableIPv4=False, Network=""), "f: EnableIPv4: neither IPv4 nor IPv6 is enabled"),
        (conf(EnableIPv6="yes"), "f: EnableIPv6: expected true or false, not 'yes'"),
        (conf(IPv6Network="fd44::/48"), "f: IPv6Network: EnableIPv6 is not true"),
        (conf(SubnetLen=25), "f: SubnetLen: the node CIDRs come from the Nodes"),
        (conf(SubnetMin="10.244.9.0"), "f: SubnetMin: the node CIDRs come from the Nodes"),
        (conf(Colour="red"), "f: Colour: is not a field of net-conf.json that podwire knows"),
        ('{"Network": "10.244.0.0/16"}', "f: Backend: is missing, and Flannel then uses udp"),
        (conf("vxlan"), "f: Backend: expected an object, not str"),
        (conf({"Type": "udp"}), "f: Backend.Type: 'udp' cannot be taken over; expected one of alloc, host-gw"),
        (conf({"Type": "vxlan", "GBP": True}), "f: Backend.GBP: podwire sends no group policy"),
        (conf({"Type": "vxlan", "Learning": True}), "f: Backend.Learning: podwire has an entry for each node"),
        (conf({"Type": "vxlan", "MacPrefix": "0E-2A"}), "f: Backend.MacPrefix: the hardware address"),
        (conf({"Type": "vxlan", "VNI": "1"}), "f: Backend.VNI: expected a number, not '1'"),
        (conf({"Type": "vxlan", "VNI": True}), "f: Backend.VNI: expected a number, not True"),
        (conf({"Type": "host-gw", "Port": 1}), "f: Backend.Port: is not a field of net-conf.json that podwire knows"),
    ],
)
def test_unsupported_settings_of_net_conf_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_conf(text, "f")
    assert str(refused.value).startswith(problem)
