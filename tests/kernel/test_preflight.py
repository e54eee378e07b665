"""``podwire preflight`` reads a real node: devices, routes, tables, ports and directories."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.agent_cluster import inside

from podwire.kernel import netns
from podwire.kernel.features import Features

PODWIRE = str(Path(sys.executable).parent / "podwire")
SETUP = (
    "ip link set lo up",
    "ip link add eth0 type bridge",
    "ip link set eth0 up",
    "ip address add 192.0.2.5/24 dev eth0",
    "ip route add default via 192.0.2.1",
)


def preflight(place: Path, folder: Path, document: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    file = folder / "agent.yaml"
    file.write_text(json.dumps(document))
    command = ["nsenter", f"--net={place}", PODWIRE, "preflight", "--config", str(file), "-o", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "net.d").mkdir()
    return {
        "nodeName": "node-1",
        "runDir": str(tmp_path / "run"),
        "stateDir": str(tmp_path / "state"),
        "clusterCIDRs": ["10.244.0.0/16"],
        "serviceCIDRs": ["10.96.0.0/16"],
        "cni": {"confDir": str(tmp_path / "net.d"), "binDir": str(tmp_path / "bin")},
        "health": {"port": 9440},
        "dns": {"nodeLocal": True},
    }


def test_preflight_names_what_a_node_has_wrong(tmp_path: Path, document: dict[str, Any]) -> None:
    place = tmp_path / "node"
    netns.create(place)
    try:
        for command in SETUP:
            inside(place, *command.split())
        sound = preflight(place, tmp_path, document)
        subjects = {finding["subject"] for finding in json.loads(sound.stdout)} - {"container runtime"}
        assert (sound.returncode, subjects) == (0, {"MTU"}), sound.stderr
        for command in (
            "ip link add flannel.1 type bridge",
            "ip route add 10.244.7.0/24 via 192.0.2.9",
            "ip address add 10.96.0.77/30 dev flannel.1",
            "nft add table ip kube-proxy",
            "iptables -P FORWARD DROP",
            "iptables -P INPUT DROP",
            "iptables -A INPUT -p udp --dport 53 -j ACCEPT",
        ):
            inside(place, *command.split())
        (tmp_path / "net.d/05-other.conflist").touch()
        with netns.inside(place):
            taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with taken:
            taken.bind(("", 8472))
            wrong = preflight(place, tmp_path, document)
        assert wrong.returncode == 1, wrong.stderr
        faults = {finding["subject"] for finding in json.loads(wrong.stdout) if finding["level"] == "fault"}
        expected = {"parts", str(tmp_path / "net.d"), "clusterCIDRs 10.244.0.0/16", "serviceCIDRs 10.96.0.0/16"}
        assert faults == expected | {"udp 8472"}
        assert {"flannel.1"} <= {finding["subject"] for finding in json.loads(wrong.stdout)}
        closed = [finding["text"] for finding in json.loads(wrong.stdout) if finding["subject"] == "firewall"]
        assert [text.partition(" (")[0] for text in closed] == ["iptables' chain INPUT"] * 2 + [
            "iptables' chain FORWARD"
        ]
        assert "to tcp port 53, which the node's own DNS server (dns.nodeLocal) needs" in closed[0]
        assert "of other nodes to udp port 8472, which routing.backend vxlan needs" in closed[1]
    finally:
        netns.delete(place)


def test_a_kernel_without_the_backends_device_is_named(tmp_path: Path, document: dict[str, Any]) -> None:
    place = tmp_path / "node"
    netns.create(place)
    try:
        answer = preflight(place, tmp_path, document | {"routing": {"backend": "ipip"}})
        lacks = [f["text"] for f in json.loads(answer.stdout) if f["subject"] == "routing.backend ipip"]
        missing = Features().lacks("ipip")
        assert lacks == ([missing] if missing else [])
    finally:
        netns.delete(place)
