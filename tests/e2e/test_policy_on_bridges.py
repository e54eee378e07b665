"""A cluster whose pods are wired by the plugin ``bridge`` with podwire-cni chained; agents run without the part cni."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.e2e.clusters import address_of, done, in_node, netns_of, own_name, running, server, topology
from tests.e2e.driver import Cluster, eventually

from podwire.kernel import netns

_PATIENCE_S = 20.0
"""For a connection that must be made; it is made at once, but not by a machine that has much else to do."""
PLUGINS = Path("/usr/lib/cni")
NODES = ("node-1", "node-2")
POLICIES = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: quiet}
spec: {podSelector: {matchLabels: {app: busy}}, policyTypes: [Egress]}
"""
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: other}
spec: {selector: {app: other}, ports: [{port: 8080, targetPort: 80}]}
"""
BUSY = """
import socket, time
until, tries, reached = time.monotonic() + 1, 0, 0
while tries < 30 or time.monotonic() < until:
    tries += 1
    sock = socket.socket()
    sock.settimeout(0.02)
    reached += not sock.connect_ex(("%s", 80))
    sock.close()
print("tries", tries, "reached", reached, flush=True)
"""

pytestmark = pytest.mark.skipif(not (PLUGINS / "bridge").exists(), reason="needs containernetworking-plugins")


def conflist(cidrs: list[str]) -> dict[str, Any]:
    """The plugin list of one node; pods that podwire wired before keep their addresses."""
    pools = []
    for cidr in cidrs:
        network = ip_network(cidr)
        last = network.network_address + 199
        pools.append([{"subnet": cidr, "rangeStart": str(last - 99), "rangeEnd": str(last), "gateway": str(last + 1)}])
    paths = [{"dst": "::/0" if ":" in cidr else "0.0.0.0/0"} for cidr in cidrs]
    ipam = {"type": "host-local", "ranges": pools, "routes": paths}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "other", "plugins": [bridge, {"type": "podwire-cni", "policy": True}]}


def change_over(cluster: Cluster, node: str) -> None:
    """Switches a node to other plugins; pods that already run stay."""
    run = Path(topology(cluster).node_run(node))
    document = yaml.load((run / "agent.yaml").read_text(), Loader=yaml.CSafeLoader)
    (run / "agent.yaml").write_text(yaml.safe_dump(document | {"parts": ["routing", "policy", "proxy"]}))
    for name in ("bridge", "host-local"):
        (run / "cni/bin" / name).symlink_to(PLUGINS / name)
    conf = conflist(cluster.get("node", node)["spec"]["podCIDRs"])
    conf["plugins"][0]["ipam"]["dataDir"] = str(run / "ipam")
    (run / "cni/net.d/05-other.conflist").write_text(json.dumps(conf))
    os.kill(pid_of(cluster, f"agent-{node}"), signal.SIGKILL)


def pid_of(cluster: Cluster, process: str) -> int:
    record = json.loads((Path(topology(cluster).run) / "processes" / f"{process}.json").read_text())
    return int(record["pid"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running(own_name("bridges"), "--nodes", "2", stdin=server("old", "node-1")) as created:
        created.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s")
        before = {node: pid_of(created, f"agent-{node}") for node in NODES}
        for node in NODES:
            change_over(created, node)
        eventually(lambda: all(pid_of(created, f"agent-{node}") != before[node] for node in NODES))
        created.apply(POLICIES)
        created.apply(server("db", "node-1") + server("web", "node-1") + server("other", "node-2") + SERVICE)
        created.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=90s")
        yield created


def reaches(cluster: Cluster, source: str, address: str, port: int = 80, seconds: float = _PATIENCE_S) -> bool:
    """Whether a pod connects within so many seconds."""
    with netns.inside(netns_of(cluster, source)):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with sock:
        sock.settimeout(seconds)
        return sock.connect_ex((address, port)) == 0


def test_pods_of_a_bridge_are_held_to_policies(cluster: Cluster) -> None:
    assert "master cni0" in in_node(cluster, "node-1", "ip", "link")
    db, web, other = (address_of(cluster, name) for name in ("db", "web", "other"))
    for source, open_one in (("web", other), ("other", web), ("old", other)):
        assert not reaches(cluster, source, db, seconds=0.3)
        assert reaches(cluster, source, open_one)
    service = cluster.get("service", "other")["spec"]["clusterIP"]
    eventually(lambda: reaches(cluster, "web", service, 8080, seconds=1))
    assert reaches(cluster, "db", service, 8080), "isolated for what comes in alone"
    cluster.kubectl("delete", "networkpolicy", "deny")
    for source in ("web", "other"):
        eventually(lambda source=source: reaches(cluster, source, db, seconds=0.3))


def test_why_follows_the_table_of_bridges(cluster: Cluster) -> None:
    cluster.apply(POLICIES)
    db = address_of(cluster, "db")
    eventually(lambda: not reaches(cluster, "web", db))
    reported = why_answer(cluster, "web", "db")
    (node,) = reported["nodes"]
    assert (reported["outcome"], node["outcome"], "drifted" in node) == ("dropped", "dropped", False)
    tables = [step["where"] for step in node["steps"]]
    assert tables[0] == "prerouting: bridge podwire-policy prerouting"
    assert tables[-1].startswith("forward: ip podwire-policy ")
    passes = why_answer(cluster, "web", "other")
    assert [(item["node"], item["outcome"]) for item in passes["nodes"]] == [
        ("node-1", "allowed"),
        ("node-2", "allowed"),
    ]
    assert "bridge" in passes["nodes"][0]["steps"][0]["where"]


def why_answer(cluster: Cluster, source: str, target: str) -> dict[str, Any]:
    """The answer of ``podwire why`` for a connection between two pods."""
    arguments = (f"default/{source}", f"default/{target}", "80")
    return dict(json.loads(done("why", *arguments, "--name", cluster.name, "-o", "json"))["policies"][0])


def output_of_busy_pod(cluster: Cluster, target: str) -> list[str]:
    """The words that a new pod ``busy`` on the first node prints after it has tried to reach the pod ``target``."""
    script = json.dumps(BUSY % address_of(cluster, target))
    cluster.apply(f"""
apiVersion: v1
kind: Pod
metadata: {{name: busy, labels: {{app: busy}}}}
spec:
  nodeName: node-1
  restartPolicy: Never
  containers:
    - {{name: main, image: busybox, command: [python3, -c, {script}]}}
""")
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/busy", "--timeout=90s")
    return cluster.kubectl("logs", "busy").split()


def test_bridge_pod_is_isolated_from_its_first_instruction(cluster: Cluster) -> None:
    fields = output_of_busy_pod(cluster, "web")
    assert fields[3] == "0", fields


def test_nothing_in_the_kernel_is_otherwise_than_it_should_be(cluster: Cluster) -> None:
    for node in NODES:
        assert "own4" in in_node(cluster, node, "nft", "list", "table", "bridge", "podwire-policy")
        annotations = cluster.get("node", node)["metadata"].get("annotations", {})
        assert not annotations.get("podwire.io/fallback"), annotations
