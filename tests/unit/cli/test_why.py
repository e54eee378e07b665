"""``podwire why`` on files: no cluster, no root."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from podwire.cli.main import root
from podwire.errors import ConfigError

MANIFESTS = """
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: z1}}
status: {addresses: [{type: InternalIP, address: 192.168.7.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-2}
status: {addresses: [{type: InternalIP, address: 192.168.7.2}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, clusterIP: 10.96.0.80, externalTrafficPolicy: Local, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.244.0.5], nodeName: node-1, hints: {forZones: [{name: z1}]}}
- {addresses: [10.244.1.5], nodeName: node-2, hints: {forZones: [{name: z2}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {podIP: 10.244.0.9, podIPs: [{ip: 10.244.0.9}], phase: Running}
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "all.yaml").write_text(MANIFESTS)
    return str(tmp_path)


def asked(folder: str, *words: str) -> dict[str, Any]:
    found = CliRunner().invoke(root, ["why", "-f", folder, *words, "-o", "json"], catch_exceptions=False)
    assert found.exit_code == 0
    return dict(json.loads(found.output))


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_rules_of_each_mode(folder: str, mode: str) -> None:
    said = asked(folder, "client", "svc/web", "--mode", mode)
    (hop,) = said["hops"]
    assert (hop["node"], hop["mode"], hop["state"], hop["outcome"]) == ("node-1", mode, "planned", "forwarded")
    assert [(e["address"], e["used"], e["reason"], e["probability"]) for e in hop["endpoints"]] == [
        ("10.244.0.5", True, "HintedForZone", 1.0),
        ("10.244.1.5", False, "HintedForOtherZone", 0.0),
    ]
    assert any("10.96.0.80" in text for step in hop["steps"] for text in (step["rule"], *step.get("elements", ())))


def test_each_node_decides_for_itself(folder: str) -> None:
    for node, endpoint in (("node-1", "10.244.0.5"), ("node-2", "10.244.1.5")):
        said = asked(folder, "external", f"node/{node}", "30080")
        (hop,) = said["hops"]
        assert hop["node"] == node
        assert [e["address"] for e in hop["endpoints"] if e["used"]] == [endpoint]
        assert hop["snat"] == {
            "reason": "ExternalTrafficPolicyLocal",
            "message": "externalTrafficPolicy is Local: the client's address is kept",
            "masqueraded": False,
        }


def test_the_example_of_the_page() -> None:
    root_folder = Path(__file__).parents[3]
    line = next(line for line in (root_folder / "docs/why.md").read_text().splitlines() if "podwire why -f" in line)
    words = line.split()[3:]
    said = asked(str(root_folder / words[0]), *words[1:])
    assert (said["outcome"], len(said["hops"][0]["endpoints"])) == ("forwarded", 3)


def test_text(folder: str) -> None:
    found = CliRunner().invoke(root, ["why", "-f", folder, "client", "10.96.0.99:80"], catch_exceptions=False)
    lines = found.output.splitlines()
    assert lines[0] == "Pod default/client (10.244.0.9) on node-1 -> Address (10.96.0.99:80) TCP"
    assert lines[2:4] == [
        "outcome   DROPPED: 10.96.0.99 is in the Service range, and no Service has it",
        "decided   on node-1, by the nftables rules it should have",
    ]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("client", "svc/none"), "TO: 'svc/none'"),
        (("nobody", "svc/web"), "FROM: 'nobody'"),
        (("client", "svc/web", "x y"), "PORT"),
        (("client", "svc/web", "80/ICMP"), "PORT"),
    ],
)
def test_wrong_words(folder: str, words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        CliRunner().invoke(root, ["why", "-f", folder, *words], catch_exceptions=False)


def test_a_mode_is_for_plans_alone() -> None:
    with pytest.raises(ConfigError, match="--mode"):
        CliRunner().invoke(root, ["why", "a", "b", "--mode", "iptables"], catch_exceptions=False)
