from pathlib import Path
from typing import Any

import pytest

from podwire.agent.config import overlay
from podwire.dns.config import parse_config as parse_dns
from podwire.errors import ConfigError
from podwire.local.addons.ensure import files_of, manifests, network_config
from podwire.local.config import (
    ClusterConfig,
    ImageMapping,
    RoutingSection,
    check_change,
    parse_config,
    read_config,
    recall_config,
    remember_config,
)
from podwire.local.topology import Topology
from podwire.policy.settings import PolicySettings
from podwire.proxy.settings import ProxySettings
from podwire.proxy.sysctls import ConntrackSettings


def test_an_empty_file_is_all_defaults() -> None:
    assert parse_config("", "c.yaml") == ClusterConfig()


def test_file_without_shape_keeps_it_and_resets_settings() -> None:
    running = ClusterConfig(
        nodes=2, segments=2, pod_cidrs=("10.1.0.0/16",), api_port=6443, proxy=ProxySettings(mode="iptables")
    )
    remaining = parse_config("policy: {established: keep}\n", "c.yaml", running)
    assert (remaining.nodes, remaining.segments, remaining.pod_cidrs, remaining.api_port) == (
        2,
        2,
        ("10.1.0.0/16",),
        6443,
    )
    assert (remaining.policy.established, remaining.proxy.mode) == ("keep", ClusterConfig().proxy.mode)
    assert parse_config("nodes: 4\n", "c.yaml", running).nodes == 4


def test_fields_are_read() -> None:
    config = parse_config("nodes: 5\nrouting: {backend: hostgw}\npodCIDRs: [10.1.0.0/16, 'fd01::/48']\n", "c.yaml")
    assert (config.nodes, config.routing.backend, config.pod_cidrs) == (5, "hostgw", ("10.1.0.0/16", "fd01::/48"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: many", "c.yaml: nodes: expected a whole number, got a text"),
        ("nodez: 3", "c.yaml: unknown field `nodez`; expected one of nodes, segments, podCIDRs, "),
        ("logLevel: loud", "c.yaml: logLevel: 'loud' is not valid; expected one of debug, error, info, warning"),
        (
            "policy: {established: never}",
            "c.yaml: policy.established: 'never' is not valid; expected one of keep, strict",
        ),
        ("nodes: [", "c.yaml:1: not YAML"),
        ("nodes: 0", "c.yaml: nodes: 0: expected 1 to 240"),
        ("segments: 9", "c.yaml: segments: 9: expected 1 to 8"),
        ("apiPort: 70000", "c.yaml: apiPort: 70000: expected 0 to 65535"),
        ("podCIDRs: [10.0.0.1/8]", "c.yaml: podCIDRs[0]: 10.0.0.1/8 has host bits set"),
        ("podCIDRs: []", "c.yaml: podCIDRs: expected one network, or one of each family"),
        ("serviceCIDRs: [10.1.0.0/16, 10.2.0.0/16]", "c.yaml: serviceCIDRs: expected one network"),
        ("routing: {backend: 3}", "c.yaml: routing.backend: expected a text, got a whole number"),
        ("images: [{command: [a]}]", "c.yaml: images[0]: expected exactly one of name and prefix"),
        ("images: [{name: a, prefix: b, command: [a]}]", "c.yaml: images[0]: expected exactly one"),
        ("images: [{name: a}]", "c.yaml: images[0].command: expected a command"),
        ("capacity: {cpu: many}", "c.yaml: capacity.cpu: "),
        ("routing: {backend: pigeon}", "c.yaml: routing.backend: 'pigeon' is not a routing backend; expected one of "),
        ("router: {daemon: frr}", "c.yaml: router.daemon: 1 segment has no router; expected 2 segments or more"),
        ("segments: 2\nrouter: {daemon: quagga}", "c.yaml: router.daemon: "),
        ("segments: 2\nrouting: {backend: hostgw}", "c.yaml: routing.backend: hostgw reaches no node behind a router"),
        ("proxy: {mode: pigeon}", "c.yaml: proxy.mode: 'pigeon' is not a data plane; expected one of nftables"),
        ("proxy: {masqueradeBit: 30}", "c.yaml: proxy.masqueradeBit: 30 is not between 0 and 29"),
        ("proxy: {masquerade: true}", "c.yaml: proxy: unknown field `masquerade`"),
        ("proxy: {conntrack: {min: many}}", "c.yaml: proxy.conntrack.min: expected a whole number, got a text"),
        ("proxy: {conntrack: {udpTimeout: soon}}", "c.yaml: proxy.conntrack.udpTimeout: 'soon' is not a time"),
        ("proxy: {nodePortAddresses: [all]}", "c.yaml: proxy.nodePortAddresses: 'all' does not appear to be"),
        ("serviceCIDRs: [10.96.0.0/28]", "c.yaml: serviceCIDRs[0]: 10.96.0.0/28: expected at least 32 addresses"),
        ("serviceCIDRs: ['fd96::/112']", "c.yaml: serviceCIDRs[0]: fd96::/112: there are no pods of that family"),
        (
            "podCIDRs: [10.244.0.0/30]",
            "podCIDRs[0]: 10.244.0.0/30: expected a /24 for each node",
        ),
        ("podCIDRs: [10.244.0.0/23]", "c.yaml: podCIDRs[0]: 10.244.0.0/23: expected room for 3 nodes with a /24 each"),
        ("podCIDRs: ['fd44::/16', 10.244.0.0/16]", "c.yaml: podCIDRs[0]: fd44::/16: expected room for 3 nodes"),
        ("podCIDRs: [10.96.0.0/12]", "c.yaml: serviceCIDRs[0]: 10.96.0.0/16 overlaps podCIDRs[0] (10.96.0.0/12)"),
        ("serviceCIDRs: [10.89.8.0/24]", "c.yaml: serviceCIDRs[0]: 10.89.8.0/24 overlaps the fabric (10.89.0.0/16)"),
        ("- 1", "expected an object, got a list"),
    ],
)
def test_invalid_cluster_configuration_is_an_error_with_its_field(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "c.yaml")
    assert message in str(caught.value)


def test_next_up_knows_how_the_cluster_was_made(tmp_path: Path) -> None:
    topology = Topology(name="demo", index=0, segment_count=1, run=str(tmp_path), state=str(tmp_path))
    assert recall_config(topology) is None
    settings = ProxySettings(conntrack=ConntrackSettings(min=0), node_port_addresses=("10.0.0.0/8",))
    config = ClusterConfig(nodes=5, routing=RoutingSection(backend="hostgw"), proxy=settings)
    remember_config(topology, config)
    assert recall_config(topology) == config


@pytest.mark.parametrize(
    ("expected", "output"),
    [
        ({"pod_cidrs": ("10.1.0.0/16",)}, "podCIDRs: cannot change while the cluster exists (10.244.0.0/16 now"),
        ({"service_cidrs": ("10.1.0.0/16",)}, "serviceCIDRs: cannot change"),
        ({"segments": 2}, "segments: cannot change while the cluster exists (1 now, not 2), because every node"),
        ({"api_port": 6443}, "apiPort: cannot change"),
        (
            {"images": (ImageMapping(name="a", command=("b",)),)},
            "images: cannot change while the cluster exists, because",
        ),
        ({"log_level": "debug"}, "logLevel: cannot change while the cluster exists (info now, not debug)"),
    ],
)
def test_what_an_existing_cluster_cannot_change_is_refused(expected: dict[str, Any], output: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_change(ClusterConfig(), ClusterConfig(**expected), "c.yaml")
    assert str(refused.value).startswith(f"c.yaml: {output}")
    assert str(refused.value).endswith("or run `podwire down` first, which deletes the cluster")


def test_nodes_backend_and_modes_of_an_existing_cluster_change() -> None:
    cluster_config = ClusterConfig(
        nodes=7, routing=RoutingSection(backend="hostgw"), proxy=ProxySettings(mode="iptables")
    )
    check_change(ClusterConfig(), cluster_config, "c.yaml")
    assert cluster_config != ClusterConfig()


def test_fixed_settings_that_a_file_leaves_out_stay() -> None:
    known = ClusterConfig(images=(ImageMapping(name="a", command=("b",)),), log_level="debug", api_port=6443)
    result = parse_config("proxy: {mode: iptables}", "c.yaml", known)
    assert (result.images, result.log_level, result.api_port) == (known.images, "debug", 6443)
    check_change(known, result, "c.yaml")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nonexistent/c\.yaml: cannot be read"):
        read_config("/nonexistent/c.yaml")


def test_policy_settings_round_trip_through_cluster_settings() -> None:
    result = parse_config("policy: {established: keep, encapsulation: allow}", "c.yaml")
    data = network_config(result, None)["data"]
    assert {key: data[key] for key in data if key.startswith("policy.")} == {
        "policy.established": "keep",
        "policy.encapsulation": "allow",
    }
    assert overlay({}, data, "settings").policy == result.policy
    back = network_config(ClusterConfig(), result)["data"]
    assert overlay({}, back, "settings", None, result.policy).policy == PolicySettings()
    with pytest.raises(ConfigError, match=r"^c\.yaml: policy\.established: "):
        parse_config("policy: {established: always}", "c.yaml")


def test_node_local_dns_listens_at_the_address_of_the_service() -> None:
    config = parse_config("dns: {nodeLocal: true}", "c.yaml")
    objects = manifests(files_of(config), "10.97.0.10", 2)
    assert {m.kind for m in objects if m.body["metadata"]["name"].startswith("podwire-dns")} >= {
        "Deployment",
        "DaemonSet",
    }
    settings = next(m for m in objects if m.kind == "ConfigMap" and m.body["metadata"]["name"] == "podwire-dns-node")
    parsed = parse_dns(settings.body["data"]["config.yaml"], "c.yaml")
    assert parsed.node_local
    assert parsed.listen == ("10.97.0.10",)
    assert "dnsnode.yaml" not in files_of(ClusterConfig())
