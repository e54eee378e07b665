"""Failed requests of a local cluster's gateway: engines are replaced by a rollout, gateways killed with SIGKILL.

The gateway serves an Ingress with two pods behind it, on two nodes. A rollout replaces the pods of the gateway, and
with them their engines; a kill ends the processes that feed the engines, on all nodes at once.
"""

import os
import signal
from pathlib import Path

from bench.machine import resident_mb
from bench.table import Row
from bench.wrk import Client, failed_row, pauses_of
from tests.e2e.clusters import own_name, running
from tests.e2e.driver import Cluster, deployment, eventually
from tests.e2e.web_clients import gateway_processes, gateways_rolled_out, status_of

_HOST = "web.example"
_RATE, _CONNECTIONS = 200, 16
_SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
"""


def _ingress(name: str, host: str) -> str:
    path = "{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}"
    return f"""
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: {name}}}
spec: {{rules: [{{host: {host}, http: {{paths: [{path}]}}}}]}}
"""


def replacements(folder: Path, rollouts: int, kills: int) -> list[Row]:
    """The rows of both, and the memory of a gateway."""
    settings = folder / "cluster.yaml"
    settings.write_text("{nodes: 2, gateway: true}", encoding="utf-8")
    manifests = deployment("web", replicas=2) + _SERVICE + _ingress("web", _HOST)
    with running(own_name("bench-gateway"), "--config", str(settings), stdin=manifests) as cluster:
        cluster.rolled_out("web")
        gateways_rolled_out(cluster)
        node, port = _node_port(cluster)
        eventually(lambda: status_of(node, port, _HOST) == 200)
        client = Client(f"http://{node}:{port}/", _HOST, _CONNECTIONS, pauses_of(folder, _RATE, _CONNECTIONS))
        rolled = client.ask_during(lambda: _roll(cluster, rollouts))
        killed = client.ask_during(lambda: _kill(cluster, kills))
        memory = tuple(resident_mb(pid)[1] for pid in gateway_processes(cluster))
    return [
        failed_row(f"pods of the gateway with their engines are replaced {rollouts} times", rolled, aim=0),
        failed_row(f"all gateways are killed {kills} times", killed, aim=0),
        Row("memory of a gateway, shared pages in shares", "MB", memory),
    ]


def _node_port(cluster: Cluster) -> tuple[str, int]:
    """The address of a node and the port there that leads to the gateway."""
    addresses = cluster.get("nodes")["items"][0]["status"]["addresses"]
    node = next(str(entry["address"]) for entry in addresses if entry["type"] == "InternalIP")
    ports = cluster.get("service", "podwire-gateway", "-n", "kube-system")["spec"]["ports"]
    return node, next(int(port["nodePort"]) for port in ports if port["name"] == "http")


def _roll(cluster: Cluster, times: int) -> None:
    for _ in range(times):
        cluster.kubectl("-n", "kube-system", "rollout", "restart", "daemonset/podwire-gateway")
        gateways_rolled_out(cluster)


def _kill(cluster: Cluster, times: int) -> None:
    """Kills the processes, makes a change that only their successors can serve, and waits until that is served."""
    node, port = _node_port(cluster)
    for number in range(times):
        for pid in gateway_processes(cluster):
            os.kill(pid, signal.SIGKILL)
        host = f"new-{number}.example"
        cluster.apply(_ingress(f"new-{number}", host))
        eventually(lambda host=host: status_of(node, port, host) == 200)
