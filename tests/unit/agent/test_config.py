"""The agent's configuration and the cluster's settings over it."""

from pathlib import Path

import pytest

from podwire.agent.config import load, overlay, parse
from podwire.errors import ConfigError
from podwire.policy.settings import PolicySettings
from podwire.routing.settings import parse_settings

EXAMPLE = """
nodeName: node-1
parts: [cni, routing]
kubeconfig: /run/podwire/agent.kubeconfig
runDir: /run/podwire/nodes/node-1
stateDir: /var/lib/podwire/nodes/node-1
clusterCIDRs: [10.244.0.0/16]
serviceCIDRs: [10.96.0.0/16]
routing: {backend: vxlan, directRouting: true}
health: {port: 10256}
"""


def test_example(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(EXAMPLE)
    config = load(path)
    assert config.parts == ("cni", "routing")
    assert str(config.socket) == "/run/podwire/nodes/node-1/cni.sock"
    assert str(config.database) == "/var/lib/podwire/nodes/node-1/ipam.db"
    assert config.routing_settings == parse_settings({"backend": "vxlan", "directRouting": True}, "")
    assert [str(n) for n in config.networks] == ["10.244.0.0/16"]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("- a", "object"),
        ("nodeName: 5", "nodeName"),
        ("nodeName: a\nparts: [cni, dns]", r"parts\[1\]: 'dns' is not a part"),
        (
            "nodeName: a\npolicy: {bridgeNetfilter: load}",
            r"policy.bridgeNetfilter: 'load' is not valid; expected one of check, set",
        ),
        ("nodeName: a\nclusterCIDRs: [10.0.0.1/8]", r"clusterCIDRs\[0\]: 10.0.0.1/8 has host bits set"),
        ("nodeName: a\nrouting: {backend: pigeon}", "routing.backend: 'pigeon'"),
        ("nodeName: a\nrouting: {mtu: 100}", "routing.mtu: 100 is not in"),
        ("nodeName: a\nrouting: {vni: 0}", "routing.vni"),
        ("nodeName: a\nrouting: {mtuu: 100}", "mtuu"),
        ("nodeName: a\nhealth: {port: x}", "health.port"),
        (
            "nodeName: a\nlogLevel: loud",
            r"agent.yaml: logLevel: 'loud' is not valid; expected one of debug, error, info, warning$",
        ),
        ("nodeName: a\nsettings: x", "settings"),
        ("nodeName: a\nproxy: {mode: magic}", "agent.yaml: proxy.mode: 'magic' is not a data plane"),
        (
            f"nodeName: a\nrunDir: /{'r' * 98}",
            f"agent.yaml: runDir: the socket's path /{'r' * 98}/agent.sock has 110 bytes; expected at most 107$",
        ),
        (f"nodeName: a\ncni: {{socket: /{'r' * 107}}}", "cni.socket: the socket's path /r+ has 108 bytes"),
        ("a: [", "not YAML"),
    ],
)
def test_invalid_configuration_is_an_error_with_its_field(text: str, arguments: str) -> None:
    with pytest.raises(ConfigError, match=arguments):
        parse(text, "agent.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"agent\.yaml: No such file"):
        load(tmp_path / "agent.yaml")


def test_settings_of_the_cluster_win() -> None:
    options = overlay({"mtu": 1400}, {"routing.backend": "hostgw", "proxy.mode": "nftables"}, "podwire-config")
    assert (options.routing.backend, options.routing.mtu) == ("hostgw", 1400)
    ports = {"routing.directRouting": "true", "routing.port": "4789"}
    routing = overlay({}, ports, "x").routing
    assert routing.direct_routing and 4789 in routing.udp_ports()


def test_cluster_settings_win_over_the_proxy_section() -> None:
    file = {"masqueradeAll": True, "mode": "iptables", "conntrack": {"min": 7, "maxPerCore": 1}}
    keys = {"proxy.mode": "nftables", "proxy.conntrack.min": "9", "proxy.nodePortAddresses": "[10.0.0.0/8]"}
    result = overlay({}, keys, "podwire-config", file).proxy
    assert (result.mode, result.masquerade_all, result.node_port_addresses) == ("nftables", True, ("10.0.0.0/8",))
    assert (result.conntrack.min, result.conntrack.max_per_core) == (9, 1)
    assert overlay({}, {}, "podwire-config", file).proxy.mode == "iptables"


def test_cluster_settings_win_over_the_policy_section() -> None:
    file = parse("{nodeName: n1, policy: {ownNodeEgress: false, established: keep}}", "agent.yaml").policy
    result = overlay({}, {"policy.established": "strict", "policy.encapsulation": "allow"}, "x", None, file)
    assert result.policy == PolicySettings(own_node_egress=False, encapsulation="allow")
    with pytest.raises(
        ConfigError, match=r"^x: policy\.established: 'always' is not valid; expected one of keep, strict"
    ):
        overlay({}, {"policy.established": "always"}, "x")


@pytest.mark.parametrize(
    "data",
    [
        {"routing.backend": "pigeon"},
        {"routing.backend": ""},
        {"routing.port": "many"},
        {"routing.nothing": "1"},
    ],
)
def test_wrong_settings_of_the_cluster_are_refused(data: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^settings: routing"):
        overlay({}, data, "settings")


@pytest.mark.parametrize(
    ("data", "arguments"),
    [
        ({"routing.backend": "a: ["}, "settings: routing.backend: not YAML: "),
        (
            {"proxy.mode": "telepathy"},
            "settings: proxy.mode: 'telepathy' is not a data plane; expected one of nftables",
        ),
        ({"proxy.masqueradeBit": "40"}, "settings: proxy.masqueradeBit: 40 is not between 0 and 29"),
        ({"proxy.conntrack.min": "many"}, "settings: proxy.conntrack.min: expected a whole number"),
        ({"proxy.masquerade": "true"}, "settings: proxy: unknown field `masquerade`"),
        ({"routnig.backend": "vxlan"}, "settings: routnig.backend: is not a setting"),
    ],
)
def test_a_key_that_is_wrong_is_named(data: dict[str, str], arguments: str) -> None:
    with pytest.raises(ConfigError, match=f"^{arguments}"):
        overlay({}, data, "settings")


NETWORKED = """\
nodeName: node-1
clusterCIDRs: [10.244.0.0/16]
serviceCIDRs: [10.96.0.0/12]
routing:
  vlan:
    networks:
    - {name: blue, id: 101, cidrs: [CIDR]}
"""


@pytest.mark.parametrize(
    ("cidr", "problem"),
    [
        ("10.244.128.0/17", "10.244.128.0/17 overlaps with clusterCIDRs, 10.244.0.0/16"),
        ("10.100.0.0/16", "10.100.0.0/16 overlaps with serviceCIDRs, 10.96.0.0/12"),
    ],
)
def test_ranges_of_pod_networks_overlap_with_no_other_range(cidr: str, problem: str) -> None:
    with pytest.raises(ConfigError) as failure:
        parse(NETWORKED.replace("CIDR]", f"{cidr}]"), "agent.yaml")
    assert str(failure.value) == f"agent.yaml: routing.vlan.networks[0].cidrs[0]: {problem}"
    config = parse(NETWORKED.replace("CIDR]", "10.245.0.0/16]"), "agent.yaml")
    data = {"routing.vlan.networks": f"[{{name: blue, id: 101, cidrs: [{cidr}]}}]"}
    with pytest.raises(ConfigError) as failure:
        overlay(config.routing, data, "ConfigMap", reserved=config.reserved)
    assert str(failure.value) == f"ConfigMap: routing.vlan.networks[0].cidrs[0]: {problem}"
    assert overlay(config.routing, {}, "ConfigMap", reserved=config.reserved).routing.pod_networks.networks
