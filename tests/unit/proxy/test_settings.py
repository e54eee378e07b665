"""The proxy's section of the configuration, and the list of data planes."""

import importlib
from typing import Any

import pytest

from podwire.errors import ConfigError
from podwire.proxy.registry import DATAPLANES
from podwire.proxy.settings import ProxySettings, parse_settings


def test_defaults() -> None:
    assert parse_settings({}) == ProxySettings(mode="nftables", masquerade_bit=14, masquerade_all=False)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"mode": "magic"}, "unknown data plane 'magic': expected nftables"),
        ({"masqueradeBit": 31}, "not between 0 and 29"),
        ({"masqueradeBit": "x"}, "masqueradeBit"),
        ({"mod": "nftables"}, "mod"),
        ({"nodePortAddresses": ["primary", "::/0"]}, "nodePortAddresses: primary stands alone"),
        ({"detectLocalMode": "Guess"}, "detectLocalMode"),
        ({"detectLocalMode": "BridgeInterface"}, "detectLocalInterface: '' is not a device name"),
        ({"detectLocalMode": "InterfaceNamePrefix", "detectLocalInterface": "a b"}, "InterfaceNamePrefix needs"),
        ({"healthzBindAddress": "10256"}, "healthzBindAddress: .*such as 0.0.0.0:10256"),
        ({"metricsBindAddress": ":1"}, "metricsBindAddress: ':1' is not"),
        ({"healthzBindAddress": "node:10256"}, "healthzBindAddress: 'node'"),
    ],
)
def test_a_wrong_setting_is_named(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_settings(document)


def test_how_pods_are_known() -> None:
    assert parse_settings({}).pod_interface == ""
    bridge = {"detectLocalMode": "BridgeInterface", "detectLocalInterface": "cni0"}
    assert parse_settings(bridge).pod_interface == "cni0"
    assert parse_settings(bridge | {"detectLocalMode": "InterfaceNamePrefix"}).pod_interface == "cni0*"
    assert parse_settings(bridge | {"detectLocalMode": "NodeCIDR"}).pod_interface == ""


def test_where_node_ports_answer() -> None:
    assert parse_settings({}).node_port_ranges == ()
    assert parse_settings({"nodePortAddresses": ["10.0.0.0/8"]}).node_port_ranges == ("10.0.0.0/8", "::/0")


def test_where_health_is_answered() -> None:
    assert parse_settings({}).healthz == ("0.0.0.0", 10256)
    assert parse_settings({"healthzBindAddress": "[::]:80"}).healthz == ("::", 80)
    assert parse_settings({"healthzBindAddress": ""}).healthz is None
    assert parse_settings({}).metrics == ("127.0.0.1", 10249)
    assert parse_settings({"metricsBindAddress": ""}).metrics is None


@pytest.mark.parametrize("name", DATAPLANES)
def test_every_data_plane_is_there_under_its_name(name: str) -> None:
    module, _, attribute = DATAPLANES[name].partition(":")
    assert getattr(importlib.import_module(module), attribute).name == name
