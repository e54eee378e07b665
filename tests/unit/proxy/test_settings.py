"""The proxy's section of the configuration, and the list of data planes."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from podwire.agent.config import overlay
from podwire.errors import ConfigError
from podwire.proxy.registry import DATAPLANES
from podwire.proxy.settings import ProxySettings, as_keys, parse_settings, paths


def test_defaults() -> None:
    assert parse_settings({}) == ProxySettings(mode="nftables", masquerade_bit=14, masquerade_all=False)


@pytest.mark.parametrize(
    ("document", "arguments"),
    [
        ({"mode": "magic"}, "mode: 'magic' is not a data plane; expected one of nftables"),
        ({"masqueradeBit": 31}, "masqueradeBit: 31 is not between 0 and 29"),
        ({"oomScoreAdj": -1001}, "oomScoreAdj: -1001 is not between -1000 and 1000"),
        ({"masqueradeBit": "x"}, "masqueradeBit: expected a whole number"),
        ({"nodePortAddresses": ["primary", "::/0"]}, "nodePortAddresses: primary must be the only entry"),
        ({"nodePortAddresses": ["10.0.0.1/8"]}, "nodePortAddresses: 10.0.0.1/8 has host bits set"),
        (
            {"detectLocalMode": "Guess"},
            "detectLocalMode: 'Guess' is not valid; expected one of BridgeInterface, ClusterCIDR, ",
        ),
        ({"detectLocalMode": "BridgeInterface"}, "detectLocal.bridgeInterface: '' is not a device name"),
        (
            {"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "a b"}},
            "detectLocal.interfaceNamePrefix: 'a b' is not a device name, which detectLocalMode InterfaceNamePrefix",
        ),
        ({"detectLocal": {"bridge": "a"}}, "detectLocal: unknown field `bridge`"),
        ({"healthzBindAddress": "10256"}, "healthzBindAddress: .*such as 0.0.0.0:10256"),
        ({"metricsBindAddress": ":1"}, "metricsBindAddress: ':1' is not"),
        ({"healthzBindAddress": "node:10256"}, "healthzBindAddress: 'node'"),
        ({"conntrack": {"min": -1}}, "conntrack.min: -1 is less than 0"),
        ({"conntrack.min": "x"}, "conntrack.min: expected a whole number"),
        ({"conntrack": {"udpTimeout": "soon"}}, "conntrack.udpTimeout: 'soon' is not a time, such as 24h0m0s"),
        ({"conntrack": 5}, "conntrack: expected an object"),
    ],
)
def test_a_wrong_setting_is_named(document: dict[str, Any], arguments: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: proxy.{arguments}"):
        parse_settings(document, "here")


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^here: proxy: unknown field `mod`; expected one of mode, "):
        parse_settings({"mod": "nftables"}, "here")


def test_times_are_written_as_kube_proxy_s_or_in_seconds() -> None:
    times = {
        "tcpEstablishedTimeout": "24h0m0s",
        "tcpCloseWaitTimeout": "1h",
        "udpTimeout": "90s",
        "udpStreamTimeout": 5,
    }
    result = parse_settings({"conntrack": times}).conntrack
    assert (result.tcp_established_timeout, result.tcp_close_wait_timeout) == (86400, 3600)
    assert (result.udp_timeout, result.udp_stream_timeout) == (90, 5)
    assert parse_settings({"conntrack.udpTimeout": "0"}).conntrack.udp_timeout == 0


def test_a_field_may_be_named_by_its_path() -> None:
    result = parse_settings(
        {"conntrack": {"min": 5, "maxPerCore": 1}, "conntrack.min": 6, "conntrack.udpTimeout": "1m"}
    )
    assert (result.conntrack.min, result.conntrack.max_per_core, result.conntrack.udp_timeout) == (6, 1, 60)


def test_settings_as_keys_are_read_back() -> None:
    assert as_keys(ProxySettings()) == {"proxy.mode": "nftables"}
    document = {
        "mode": "iptables",
        "healthzBindAddress": "[::]:80",
        "metricsBindAddress": "",
        "nodePortAddresses": ["10.0.0.0/8", "::/0"],
        "detectLocalMode": "BridgeInterface",
        "detectLocal": {"bridgeInterface": "cni0"},
        "conntrack": {"min": 0, "tcpBeLiberal": True},
    }
    settings = parse_settings(document)
    keys = as_keys(settings)
    assert keys["proxy.mode"] == "iptables"
    assert keys["proxy.conntrack.min"] == "0"
    assert overlay({}, keys, "here").proxy == settings
    assert as_keys(ProxySettings(), keys).keys() == keys.keys()
    assert overlay({}, as_keys(ProxySettings(), keys), "here", document).proxy == ProxySettings()


def test_how_pods_are_known() -> None:
    assert parse_settings({}).pod_interface == ""
    names = {"bridgeInterface": "cni0", "interfaceNamePrefix": "veth"}
    bridge = {"detectLocalMode": "BridgeInterface", "detectLocal": names}
    assert parse_settings(bridge).pod_interface == "cni0"
    assert parse_settings(bridge | {"detectLocalMode": "InterfaceNamePrefix"}).pod_interface == "veth*"
    assert parse_settings(bridge | {"detectLocalMode": "NodeCIDR"}).pod_interface == ""


def test_settings_become_facts_of_a_node() -> None:
    document = {"masqueradeBit": 3, "masqueradeAll": True, "allowExternalIPs": False, "nodePortAddresses": ["::/0"]}
    facts = parse_settings(document).facts("n1", ("10.0.0.0/8",), ("10.96.0.0/16",))
    assert (facts.name, facts.pod_cidrs, facts.service_cidrs) == ("n1", ("10.0.0.0/8",), ("10.96.0.0/16",))
    assert (facts.masquerade_mark, facts.masquerade_all, facts.external_ips) == (8, True, False)
    assert facts.node_port_ranges == ("::/0", "0.0.0.0/0")
    own = parse_settings({"detectLocalMode": "NodeCIDR"}).facts("n1", ("10.0.0.0/8",), ())
    assert (own.pod_cidrs, own.pod_cidrs_of_node) == ((), True)


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


def test_node_ports_on_loopback_are_a_setting_of_one_mode() -> None:
    assert parse_settings({}).facts("n1", (), ()).iptables.localhost_node_ports
    for document in ({"iptables": {"localhostNodePorts": False}}, {"iptables.localhostNodePorts": False}):
        assert not parse_settings(document).facts("n1", (), ()).iptables.localhost_node_ports


def test_ipvs_settings_are_parsed() -> None:
    document = {
        "mode": "ipvs",
        "fallback": "iptables",
        "ipvs": {"scheduler": "wlc", "strictARP": True, "excludeCIDRs": ["198.51.100.0/24"], "tcpTimeout": "15m0s"},
        "ipvs.udpTimeout": 30,
    }
    settings = parse_settings(document)
    reported = settings.facts("n1", (), ()).ipvs
    assert (settings.fallback, reported.scheduler, reported.strict_arp) == ("iptables", "wlc", True)
    assert (reported.exclude_cidrs, reported.tcp_timeout, reported.tcp_fin_timeout) == (("198.51.100.0/24",), 900, 0)
    assert reported.udp_timeout == 30
    assert as_keys(settings)["proxy.ipvs.scheduler"] == '"wlc"'


@pytest.mark.parametrize(
    ("document", "arguments"),
    [
        ({"fallback": "none"}, "proxy.fallback: 'none' is not a data plane"),
        ({"ipvs": {"scheduler": "Round Robin"}}, "proxy.ipvs.scheduler: 'Round Robin' is not the name of a scheduler"),
        ({"ipvs": {"excludeCIDRs": ["198.51.100.0"]}}, ""),
        ({"ipvs": {"excludeCIDRs": ["everything"]}}, "proxy.ipvs.excludeCIDRs: 'everything' does not appear to be"),
        ({"ipvs": {"tcpTimeout": -1}}, "proxy.ipvs.tcpTimeout: -1 is less than 0"),
        ({"ipvs": {"udpTimeout": "soon"}}, "proxy.ipvs.udpTimeout: 'soon' is not a time"),
        ({"ipvs": {"strictArp": True}}, "proxy.ipvs"),
    ],
)
def test_what_is_wrong_with_ipvs_is_named(document: dict[str, object], arguments: str) -> None:
    if not arguments:
        assert parse_settings(document).ipvs.exclude_cidrs == ("198.51.100.0",)
        return
    with pytest.raises(ConfigError, match=arguments):
        parse_settings(document)


def test_every_setting_is_on_a_page() -> None:
    docs = Path(__file__).parents[3] / "docs"
    text = "".join(page.read_text() for page in (docs / "services.md", *(docs / "dataplanes").glob("*.md")))
    missing = [path for path in sorted(paths()) if f"`{path}`" not in text and f"`proxy.{path}`" not in text]
    assert missing == []
