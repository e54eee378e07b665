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


def asked(folder: str, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(root, ["why", "-f", folder, *arguments, "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 0
    return dict(json.loads(result.output))


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_rules_of_each_mode(folder: str, mode: str) -> None:
    output = asked(folder, "client", "svc/web", "--mode", mode)
    (hop,) = output["hops"]
    assert (hop["node"], hop["mode"], hop["state"], hop["outcome"]) == ("node-1", mode, "planned", "forwarded")
    assert [(e["address"], e["used"], e["reason"], e["probability"]) for e in hop["endpoints"]] == [
        ("10.244.0.5", True, "HintedForZone", 1.0),
        ("10.244.1.5", False, "HintedForOtherZone", 0.0),
    ]
    assert any("10.96.0.80" in text for step in hop["steps"] for text in (step["rule"], *step.get("elements", ())))


def test_each_node_decides_for_itself(folder: str) -> None:
    for node, endpoint in (("node-1", "10.244.0.5"), ("node-2", "10.244.1.5")):
        output = asked(folder, "external", f"node/{node}", "30080")
        (hop,) = output["hops"]
        assert hop["node"] == node
        assert [e["address"] for e in hop["endpoints"] if e["used"]] == [endpoint]
        assert hop["snat"] == {
            "reason": "ExternalTrafficPolicyLocal",
            "message": "externalTrafficPolicy is Local: the client's address is kept",
            "masqueraded": False,
        }


def test_the_example_of_the_page() -> None:
    root_folder = Path(__file__).parents[3]
    lines = (root_folder / "docs/why.md").read_text().splitlines()
    line = next(line for line in lines if "podwire why -f examples" in line)
    arguments = line.split()[3:]
    output = asked(str(root_folder / arguments[0]), *arguments[1:])
    assert (output["outcome"], len(output["hops"][0]["endpoints"])) == ("forwarded", 3)


def test_text(folder: str) -> None:
    result = CliRunner().invoke(root, ["why", "-f", folder, "client", "10.96.0.99:80"], catch_exceptions=False)
    lines = result.output.splitlines()
    assert lines[0] == "Pod default/client (10.244.0.9) on node-1 -> Address (10.96.0.99:80) TCP"
    assert lines[2:4] == [
        "outcome   DROPPED: 10.96.0.99 is in the Service range, and no Service has it",
        "decided   on node-1, by the nftables rules it should have",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("client", "svc/none"), "TO: 'svc/none'"),
        (("nobody", "svc/web"), "FROM: 'nobody'"),
        (("client", "svc/web", "x y"), "PORT"),
        (("client", "svc/web", "80/ICMP"), "PORT"),
    ],
)
def test_wrong_words(folder: str, arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        CliRunner().invoke(root, ["why", "-f", folder, *arguments], catch_exceptions=False)


def test_a_mode_is_for_plans_alone() -> None:
    with pytest.raises(ConfigError, match="--mode"):
        CliRunner().invoke(root, ["why", "a", "b", "--mode", "iptables"], catch_exceptions=False)


GUARDED = """
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, labels: {app: web}}
spec: {nodeName: node-1, containers: [{name: c, image: i}]}
status: {podIP: 10.244.0.5, podIPs: [{ip: 10.244.0.5}], phase: Running, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-2, labels: {app: web, tier: back}}
spec: {nodeName: node-2, containers: [{name: c, image: i}]}
status: {podIP: 10.244.1.5, podIPs: [{ip: 10.244.1.5}], phase: Running, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Service
metadata: {name: names}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: back}
spec:
  podSelector: {matchLabels: {tier: back}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: api}}}]
"""


@pytest.fixture
def guarded(tmp_path: Path) -> str:
    (tmp_path / "all.yaml").write_text(MANIFESTS + GUARDED)
    return str(tmp_path)


def test_policies_for_each_endpoint(guarded: str) -> None:
    result = asked(guarded, "client", "svc/names")
    assert [(item["pod"], item["outcome"], item["probability"]) for item in result["policies"]] == [
        ("default/web-1", "allowed", 0.5),
        ("default/web-2", "dropped", 0.5),
    ]
    assert result["outcome"] == "untouched"


def test_policies_drop_from_files(guarded: str) -> None:
    result = asked(guarded, "client", "pod/web-2", "8080")
    assert result["outcome"] == "dropped"
    (policy,) = result["policies"]
    line = (MANIFESTS + GUARDED)[: (MANIFESTS + GUARDED).index("  - from: [{podSelector")].count("\n") + 1
    assert policy["message"] == (
        f"default/client -> default/web-2 TCP 8080: dropped at ingress: isolated by default/back "
        f"({guarded}/all.yaml:{line - 2}); nearest rule default/back ingress[0] ({guarded}/all.yaml:{line}): "
        "podSelector app=api, the pod has no label app"
    )
    assert [(node["node"], node["state"], node["outcome"]) for node in policy["nodes"]] == [
        ("node-1", "planned", "allowed"),
        ("node-2", "planned", "dropped"),
    ]


@pytest.mark.parametrize(
    ("arguments", "outcome", "ingress"),
    [
        (("client", "pod/web-1", "8080"), "allowed", "NotSelected"),
        (("client", "192.0.2.9", "443"), "allowed", "NoPod"),
        (("client", "node/node-2", "10250"), "allowed", "NoPod"),
        (("node/node-2", "pod/web-2", "80"), "allowed", "OwnNode"),
        (("node/node-1", "pod/web-2", "80"), "dropped", "Isolated"),
        (("external", "pod/web-2", "80"), "dropped", "Isolated"),
        (("external", "10.244.1.5", "80/UDP"), "dropped", "Isolated"),
        (("external", "10.244.1.5", "ICMP"), "dropped", "Isolated"),
        (("web-2", "pod/web-2", "80"), "allowed", "Itself"),
    ],
)
def test_policies_for_every_kind_of_ends(guarded: str, arguments: tuple[str, ...], outcome: str, ingress: str) -> None:
    (policy,) = asked(guarded, *arguments)["policies"]
    assert (policy["outcome"], policy["ingress"]["reason"]) == (outcome, ingress)


def test_pods_in_the_network_of_a_node(tmp_path: Path) -> None:
    hosted = GUARDED.replace("{nodeName: node-1, ", "{nodeName: node-1, hostNetwork: true, ")
    (tmp_path / "all.yaml").write_text(MANIFESTS + hosted.replace("10.244.0.5", "192.168.7.1"))
    result = asked(str(tmp_path), "web-1", "pod/web-2", "80")
    assert result["policies"][0]["egress"]["reason"] == "NoPod"
    assert "pod default/web-1 uses the network of node-1; policies treat it as that node" in result["notes"]


def test_policies_as_text(guarded: str) -> None:
    result = CliRunner().invoke(root, ["why", "-f", guarded, "client", "pod/web-2", "8080"], catch_exceptions=False)
    assert "outcome   DROPPED at ingress on node-2: isolated by default/back" in result.output
    assert "enforced  DROPPED on node-2, by the nftables rules it should have" in result.output
