"""Services without a selector, deletion with a Service, and health checks of load balancers."""

import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.e2e.clusters import in_node, topology
from tests.e2e.driver import Cluster, deployment, eventually

from podwire.kernel import netns

_BY_HAND = """
apiVersion: v1
kind: Service
metadata: {name: hand}
spec: {type: NodePort, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: hand, labels: {team: a}}
subsets: [{addresses: [{ip: %s}], ports: [{name: http, port: 80}]}]
"""
_SLICES = """
apiVersion: v1
kind: Service
metadata: {name: sliced}
spec: {type: NodePort, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sliced-a, labels: {kubernetes.io/service-name: sliced}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [%s]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sliced-b, labels: {kubernetes.io/service-name: sliced}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [%s]}]
"""
_LOCAL = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80}]}
"""


def _pods(cluster: Cluster, namespace: str, replicas: int) -> list[dict[str, Any]]:
    cluster.apply(deployment("web", replicas=replicas), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    result = json.loads(cluster.kubectl("get", "pods", "-l", "app=web", "-n", namespace, "-o", "json"))
    items: list[dict[str, Any]] = result["items"]
    return items


def _nodes(cluster: Cluster) -> dict[str, str]:
    result = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    return {n["metadata"]["name"]: n["status"]["addresses"][0]["address"] for n in result}


def _get(url: str) -> tuple[int, dict[str, Any]]:
    """Status and body; status 0 without an answer. A health check port that closes answers 404 in plain text."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as failure:
        with failure:
            return failure.code, {} if failure.code == 404 else json.loads(failure.read())
    except OSError:
        return 0, {}


def _field(cluster: Cluster, namespace: str, service: str, path: str) -> str:
    return cluster.kubectl("get", "service", service, "-n", namespace, "-o", f"jsonpath={{.spec.{path}}}")


def _names(cluster: Cluster, namespace: str, *arguments: str) -> list[str]:
    return cluster.kubectl("get", *arguments, "-n", namespace, "-o", "name").split()


def test_handwritten_endpoints_are_mirrored_served_and_removed_with_their_service(
    cluster: Cluster, namespace: str
) -> None:
    item, two = _pods(cluster, namespace, 2)
    node = next(iter(_nodes(cluster).values()))
    slices = ("endpointslices", "-l", "kubernetes.io/service-name=hand,team=a")
    cluster.apply(_BY_HAND % item["status"]["podIP"], "-n", namespace)
    port = _field(cluster, namespace, "hand", "ports[0].nodePort")

    def answered() -> str:
        return str(_get(f"http://{node}:{port}/")[1].get("pod", ""))

    eventually(lambda: answered() == item["metadata"]["name"])
    assert len(_names(cluster, namespace, *slices)) == 1
    cluster.apply(_BY_HAND % two["status"]["podIP"], "-n", namespace)
    eventually(lambda: answered() == two["metadata"]["name"])
    assert len(_names(cluster, namespace, *slices)) == 1
    cluster.kubectl("delete", "service", "hand", "-n", namespace)
    eventually(lambda: not _names(cluster, namespace, *slices))
    eventually(lambda: "endpoints/hand" not in _names(cluster, namespace, "endpoints"))


def test_slices_by_hand_are_all_served(cluster: Cluster, namespace: str) -> None:
    pods = _pods(cluster, namespace, 2)
    node = next(iter(_nodes(cluster).values()))
    cluster.apply(_SLICES % tuple(pod["status"]["podIP"] for pod in pods), "-n", namespace)
    port = _field(cluster, namespace, "sliced", "ports[0].nodePort")
    eventually(lambda: _get(f"http://{node}:{port}/")[0] == 200)
    observed = {_get(f"http://{node}:{port}/")[1].get("pod") for _ in range(24)}
    assert observed == {pod["metadata"]["name"] for pod in pods}
    assert sorted(_names(cluster, namespace, "endpointslices", "-l", "kubernetes.io/service-name=sliced")) == [
        "endpointslice.discovery.k8s.io/sliced-a",
        "endpointslice.discovery.k8s.io/sliced-b",
    ]


def test_the_endpoints_of_a_service_go_with_it(cluster: Cluster, namespace: str) -> None:
    _pods(cluster, namespace, 1)
    cluster.apply(_LOCAL.replace("LoadBalancer, externalTrafficPolicy: Local", "ClusterIP"), "-n", namespace)
    eventually(lambda: "endpoints/web" in _names(cluster, namespace, "endpoints"))
    cluster.kubectl("delete", "service", "web", "-n", namespace)
    eventually(lambda: "endpoints/web" not in _names(cluster, namespace, "endpoints"))


def test_nodes_tell_a_load_balancer_whether_they_have_an_endpoint(cluster: Cluster, namespace: str) -> None:
    (pod,) = _pods(cluster, namespace, 1)
    cluster.apply(_LOCAL, "-n", namespace)
    port = _field(cluster, namespace, "web", "healthCheckNodePort")
    nodes = _nodes(cluster)

    def told() -> dict[str, int]:
        return {name: _get(f"http://{address}:{port}/")[0] for name, address in nodes.items()}

    expected = {name: 200 if name == pod["spec"]["nodeName"] else 503 for name in nodes}
    eventually(lambda: told() == expected)
    cluster.kubectl("scale", "deployment/web", "--replicas=0", "-n", namespace)
    eventually(lambda: set(told().values()) == {503})
    change = '{"spec": {"externalTrafficPolicy": "Cluster"}}'
    cluster.kubectl("patch", "service", "web", "-n", namespace, "-p", change)
    eventually(lambda: set(told().values()) == {0})
    assert {_get(f"http://{address}:10256/healthz")[0] for address in nodes.values()} == {200}


def test_dashboards_for_kube_proxy_find_its_metrics(cluster: Cluster) -> None:
    def asked(path: str) -> str:
        return in_node(cluster, "node-1", "curl", "-sf", f"http://127.0.0.1:10249{path}")

    assert asked("/proxyMode") == "nftables"
    assert asked("/healthz") == "ok"
    assert json.loads(asked("/configz"))["kubeproxy.config.k8s.io"]["nodePortAddresses"] == ["primary"]
    events = cluster.get("events", "-A", "--field-selector", "involvedObject.kind=Node,reason=Starting")["items"]
    assert "Services are programmed, mode nftables" in {event["message"] for event in events}
    page = asked("/metrics")
    assert 'kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="+Inf"}' in page
    assert "# TYPE kubeproxy_network_programming_duration_seconds histogram" in page
    assert 'kubeproxy_sync_proxy_rules_service_changes_pending{ip_family="IPv6"} 0.0' in page
    assert "kubeproxy_iptables_ct_state_invalid_dropped_packets_total 0.0" in page


def test_occupied_health_check_port_is_a_service_event(cluster: Cluster, namespace: str) -> None:
    node, address = next(iter(_nodes(cluster).items()))
    with netns.inside(Path(topology(cluster).netns(node))):
        used = socket.create_server((address, 32555))
    fixed = _LOCAL.replace("type: LoadBalancer", "type: LoadBalancer, healthCheckNodePort: 32555")

    def told() -> str:
        result = cluster.get("events", "-n", namespace)["items"]
        expected = [e for e in result if e["reason"] == "FailedToStartServiceHealthcheck"]
        return str(expected[0]["message"]) if expected else ""

    with used:
        cluster.apply(fixed, "-n", namespace)
        assert eventually(told) == f"node port 32555 on {address}: Address already in use"
    eventually(lambda: _get(f"http://{address}:32555/")[0] == 503)
