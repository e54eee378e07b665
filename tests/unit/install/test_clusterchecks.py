"""Each check of a cluster before podwire is installed in it."""

from typing import Any

import pytest
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.install.clusterchecks import ChartSettings, ClusterFacts, chart_settings, find

SOUND = ClusterFacts(
    version=(1, 36),
    daemonsets=("kube-system/podwire-agent", "default/fluentd"),
    nodes={"node-1": ("10.244.0.0/24", "fd44::/64")},
    kubernetes_ip="10.96.0.1",
    dns_ip="10.96.0.10",
)
ASKED = ChartSettings(
    parts=("cni", "routing", "policy", "proxy"),
    controllers=("policystatus",),
    cluster_cidrs=("10.244.0.0/16", "fd44::/48"),
    service_cidrs=("10.96.0.0/12",),
    dns_ip="10.96.0.10",
)


def test_a_sound_cluster_has_no_findings() -> None:
    assert find(SOUND, ASKED) == ()
    assert find(replace(SOUND, dns_ip=""), ASKED) == ()


@pytest.mark.parametrize(
    ("facts", "asked", "expected"),
    [
        ({"version": (1, 29)}, {}, "fault: API server: Kubernetes 1.29 is older than 1.30"),
        (
            {"daemonsets": ("kube-flannel/kube-flannel-ds",)},
            {},
            "fault: DaemonSet kube-flannel/kube-flannel-ds: Flannel",
        ),
        ({"daemonsets": ("kube-system/kube-proxy",)}, {}, "fault: DaemonSet kube-system/kube-proxy: kube-proxy runs"),
        ({"deployments": ("kube-system/coredns",)}, {}, "fault: Deployment kube-system/coredns: another DNS server"),
        ({"dns_ip": "10.96.0.53"}, {}, "fault: Service kube-system/kube-dns: has the address 10.96.0.53"),
        ({"nodes": {"node-1": ()}}, {}, "fault: Node node-1: has no pod range"),
        ({}, {"controllers": ("nodeipam",)}, "warning: controller.parts: every node has a pod range"),
        ({"nodes": {"n": ("10.0.0.0/24",)}}, {}, "fault: Node n: the pod range 10.0.0.0/24 is outside of clusterCIDRs"),
        ({"kubernetes_ip": "172.20.0.1"}, {}, "fault: serviceCIDRs: the Service kubernetes has 172.20.0.1, outside"),
        ({"dns_ip": ""}, {"dns_ip": "10.0.0.10"}, "fault: dns.clusterIP: 10.0.0.10 is outside of serviceCIDRs"),
    ],
)
def test_a_finding(facts: dict[str, Any], asked: dict[str, Any], expected: str) -> None:
    (finding,) = find(replace(SOUND, **facts), replace(ASKED, **asked))
    assert str(finding).startswith(expected), str(finding)


@pytest.mark.parametrize(
    ("facts", "asked"),
    [
        ({"daemonsets": ("kube-system/calico-node",)}, {"parts": ("proxy",)}),
        ({"daemonsets": ("kube-system/kube-proxy",)}, {"parts": ("cni", "routing")}),
        ({"deployments": ("kube-system/coredns",), "dns_ip": "10.96.0.53"}, {"dns_ip": ""}),
        ({"nodes": {"node-1": ()}}, {"controllers": ("nodeipam",)}),
        ({"nodes": {"node-1": ()}}, {"parts": ("policy",)}),
    ],
)
def test_a_part_of_podwire_fits_beside_others(facts: dict[str, Any], asked: dict[str, Any]) -> None:
    assert find(replace(SOUND, **facts), replace(ASKED, **asked)) == ()


def config_map(name: str, key: str, text: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": name}, "data": {key: text}}


def test_what_is_wanted_is_read_from_the_objects() -> None:
    agent = config_map("podwire-agent", "agent.yaml", "parts: [cni]\nclusterCIDRs: [10.1.0.0/16]\n")
    controller = config_map("podwire-controller", "controller.yaml", "controller: {parts: [nodeipam]}\n")
    service = {"kind": "Service", "metadata": {"name": "kube-dns"}, "spec": {"clusterIP": "10.96.0.10"}}
    expected = ChartSettings(
        parts=("cni",), controllers=("nodeipam",), cluster_cidrs=("10.1.0.0/16",), dns_ip="10.96.0.10"
    )
    assert chart_settings((agent, controller, service), "chart") == expected
    assert chart_settings((), "chart") == ChartSettings()


def test_a_broken_configuration_is_named() -> None:
    with pytest.raises(ConfigError, match=r"chart: ConfigMap podwire-agent\.data: expected YAML in agent\.yaml"):
        chart_settings((config_map("podwire-agent", "other", ""),), "chart")
