"""Every Service setting of ``podwire up --config``: at the start, changed under traffic, and changed back."""

import urllib.error
import urllib.request
from pathlib import Path

from tests.e2e.clusters import done, flows, in_node, own_name, running, server, up
from tests.e2e.driver import Cluster, eventually

NAME = own_name("settings")
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  type: NodePort
  selector: {tier: web}
  ports: [{port: 80}]
"""
FIRST = """
nodes: 2
proxy:
  masqueradeBit: 5
  nodePortAddresses: [198.51.100.0/24]
  healthzBindAddress: 0.0.0.0:20256
  metricsBindAddress: 127.0.0.1:20249
  conntrack: {udpTimeout: 45s, udpStreamTimeout: 200}
"""
SECOND = """
nodes: 2
proxy:
  masqueradeBit: 6
  masqueradeAll: true
  metricsBindAddress: ""
  resetConnections: true
  conntrack: {udpTimeout: 1m10s}
"""


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def metrics(cluster: Cluster, port: int) -> bool:
    return "200" in in_node(
        cluster, "node-1", "sh", "-c", f"curl -so /dev/null -w '%{{http_code}}' 127.0.0.1:{port}/metrics || true"
    )


def udp_timeout(cluster: Cluster) -> str:
    return in_node(cluster, "node-1", "cat", "/proc/sys/net/netfilter/nf_conntrack_udp_timeout").strip()


def marks(cluster: Cluster) -> set[str]:
    """The masquerade marks in the tables of node-1."""
    table = in_node(cluster, "node-1", "nft", "list", "table", "ip", "podwire-proxy")
    return {word for line in table.splitlines() if "masquerade" in line or "mark set" in line for word in line.split()
            if word.startswith("0x0000")}  # fmt: skip


def test_settings_change_on_a_running_cluster(tmp_path: Path) -> None:
    first, second, usual = (tmp_path / f"{name}.yaml" for name in ("first", "second", "usual"))
    first.write_text(FIRST)
    second.write_text(SECOND)
    usual.write_text("nodes: 2\n")
    manifest = server("one", "node-1", "tier: web") + server("two", "node-2", "tier: web") + SERVICE
    with running(NAME, "--config", str(first), stdin=manifest) as cluster:
        service = cluster.get("service", "both")["spec"]
        address = next(
            a["address"] for a in cluster.get("node", "node-1")["status"]["addresses"] if a["type"] == "InternalIP"
        )
        node_port = f"http://{address}:{service['ports'][0]['nodePort']}/"
        eventually(lambda: metrics(cluster, 20249))
        eventually(lambda: answers(f"http://{address}:20256/healthz"))
        eventually(lambda: marks(cluster) == {"0x00000020"})
        assert udp_timeout(cluster) == "45"
        assert not metrics(cluster, 10249)
        assert not answers(f"http://{address}:10256/healthz")
        assert not answers(node_port)
        with flows(cluster, [("one", "two"), ("one", service["clusterIP"])]) as running_flows:
            up(NAME, "--config", str(second))
            eventually(lambda: answers(node_port))
            eventually(lambda: marks(cluster) == {"0x00000040"})
            eventually(lambda: answers(f"http://{address}:10256/healthz"))
            eventually(lambda: not metrics(cluster, 20249))
            assert udp_timeout(cluster) == "70"
            assert not metrics(cluster, 10249)
            assert not answers(f"http://{address}:20256/healthz")
            up(NAME, "--config", str(usual))
            eventually(lambda: marks(cluster) == {"0x00004000"})
            eventually(lambda: metrics(cluster, 10249))
            assert answers(node_port)
            assert done("state", "--name", NAME, "node-1", "--part", "proxy", "--diff") == ""
            for flow in running_flows:
                flow.go_on()
        assert [flow.problems for flow in running_flows] == [[], []]
