"""Each check of a node before podwire runs there."""

from typing import Any

import pytest
from msgspec.structs import replace

from podwire.install.preflight import PreflightFacts, find

SOUND = PreflightFacts(
    parts=("cni", "routing", "policy", "proxy"),
    backend="vxlan",
    conf_dir="/etc/cni/net.d",
    conflists=("10-podwire.conflist", "87-podman.conflist"),
    runtimes=("/run/containerd/containerd.sock",),
    devices=("lo", "eth0"),
    cluster_cidrs=("10.244.0.0/16", "fd00::/48"),
    service_cidrs=("10.96.0.0/12",),
    routes=(("192.0.2.0/24", "eth0"), ("fe80::/64", "eth0")),
    mtu=1500,
)


def test_a_sound_node_has_no_findings() -> None:
    assert find(SOUND) == ()


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ({"lacks": {"routing.backend vxlan": "the kernel has no vxlan"}}, "fault", "vxlan: the kernel has no vxlan"),
        ({"conf_dir": ""}, "fault", "cni.confDir: nothing is installed for the container runtime"),
        ({"runtimes": ()}, "warning", "container runtime: no socket of containerd or CRI-O"),
        ({"conflists": ("05-cilium.conflist",)}, "fault", "/etc/cni/net.d: the runtime would use 05-cilium.conflist"),
        ({"devices": ("flannel.1",)}, "warning", "flannel.1: a device of Flannel"),
        ({"devices": ("cali12ab",)}, "warning", "cali12ab: a device of Calico"),
        ({"kube_proxy": "iptables"}, "fault", "parts: kube-proxy has rules in iptables"),
        ({"parts": ("cni",)}, "warning", "parts: no rules of kube-proxy"),
        (
            {"service_cidrs": ("10.244.128.0/17",)},
            "fault",
            "clusterCIDRs 10.244.0.0/16: overlaps serviceCIDRs 10.244",
        ),
        ({"routes": (("10.96.7.0/24", "eth1"),)}, "fault", "10.96.0.0/12: overlaps the route to 10.96.7.0/24 by eth1"),
        ({"routes": (("fd00::/64", "eth1"),)}, "fault", "clusterCIDRs fd00::/48: overlaps the route to fd00::/64 by"),
        ({"mtu": 1300, "overhead": 50}, "fault", "MTU: pods would get 1250 bytes: 1300 of the uplink without 50 of"),
        ({"overhead": 50}, "note", "MTU: pods get 1450 bytes"),
        (
            {"forward_drops": ("chain f of table ip t drops: open it",)},
            "warning",
            "firewall: chain f of table ip t drops",
        ),
        (
            {"input_drops": ("chain i of table ip t drops: open it",)},
            "warning",
            "firewall: chain i of table ip t drops",
        ),
        ({"forward_opened": ("FORWARD (nft, ip)",)}, "note", "firewall: iptables' chain FORWARD (nft, ip) refuses"),
        ({"ports": {"udp 8472": "routing.backend vxlan"}}, "fault", "udp 8472: another program has it, and routing"),
    ],
)
def test_each_fault_is_named_with_what_to_do(change: dict[str, Any], level: str, text: str) -> None:
    (finding,) = find(replace(SOUND, **change))
    assert finding.level == level and finding.action
    assert text in str(finding)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": ("policy",), "kube_proxy": "nftables", "conf_dir": "", "devices": ("cni0",)},
        {"parts": ("proxy",), "runtimes": (), "conflists": ("05-x.conf",), "mtu": 1200},
        {"routes": (("::/0", "eth0"),), "cluster_cidrs": ()},
        {"parts": ("policy",), "kube_proxy": "nftables", "forward_drops": ("x: y",), "forward_opened": ("z",)},
    ],
)
def test_checks_of_other_parts_are_left_out(change: dict[str, Any]) -> None:
    assert find(replace(SOUND, **change)) == ()


def test_faults_come_first() -> None:
    facts = replace(SOUND, overhead=50, devices=("cni0",), kube_proxy="nftables")
    assert [finding.level for finding in find(facts)] == ["fault", "warning", "note"]
