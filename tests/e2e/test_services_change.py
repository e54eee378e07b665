"""Services that kubectl changes, and Services with handwritten endpoints: real packets and DNS names."""

import json
import socket
import urllib.request
from typing import Any

import pytest
from tests.e2e.clusters import netns_of
from tests.e2e.driver import Cluster, deployment, eventually, shell_pod

from podwire.kernel import netns

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: %s, labels: {%s}}\nspec: {%s}\n"
PIECE = """
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, labels: {kubernetes.io/service-name: hand}}
addressType: IPv4
ports: [%s]
endpoints: [%s]
"""


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The addresses of two servers on ports 80 and 81, by name; a pod ``client`` exists too."""
    two = deployment("web", replicas=2).replace("[{containerPort: 80}]", "[{containerPort: 80}, {containerPort: 81}]")
    cluster.apply(two + "---" + shell_pod("client", "sleep 600"), "-n", namespace)
    cluster.rolled_out("web", namespace=namespace)
    cluster.ready("client", namespace=namespace)
    result = cluster.get("pods", "-l", "app=web", "-n", namespace)["items"]
    return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in result}


class Client:
    """The pod ``client``."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.place = netns_of(cluster, "client", namespace)

    def ask(self, address: str, port: int = 80) -> str:
        """The pod and port that answer, or ``refused``, or ``dropped``."""
        with netns.inside(self.place):
            sock = socket.socket()
        with sock:
            sock.settimeout(1)
            try:
                sock.connect((address, port))
                sock.settimeout(20)
                sock.sendall(b"podwire-probe\n")
                output = json.loads(sock.makefile().readline())
            except ConnectionRefusedError:
                return "refused"
            except (OSError, ValueError):
                return "dropped"
        return f"{output['pod']}:{output['port']}"

    def names(self, name: str) -> list[str]:
        """Addresses of a name, sorted."""
        arguments = ["kubectl", "exec", "client", "-n", self.namespace, "--", "getent", "ahostsv4", name]
        return sorted({line.split()[0] for line in self.cluster.run(arguments).stdout.splitlines()})


def spec_of(cluster: Cluster, namespace: str, name: str = "web") -> dict[str, Any]:
    result: dict[str, Any] = cluster.get("service", name, "-n", namespace)["spec"]
    return result


def test_a_service_changes_its_type_and_everyone_follows(
    cluster: Cluster, namespace: str, pods: dict[str, str]
) -> None:
    client = Client(cluster, namespace)
    node = cluster.get("node", "node-1")["status"]["addresses"][0]["address"]

    def answers(port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{node}:{port}/", timeout=2) as answer:
                return str(json.load(answer)["pod"]) in pods
        except OSError:
            return False

    def served(address: str) -> bool:
        return client.ask(address).partition(":")[0] in pods

    plain = "selector: {app: web}, ports: [{name: http, port: 80}]"
    cluster.apply(SERVICE % ("web", "", plain), "-n", namespace)
    address = spec_of(cluster, namespace)["clusterIP"]
    eventually(lambda: served(address))
    cluster.apply(SERVICE % ("web", "", f"type: NodePort, {plain}"), "-n", namespace)
    port = spec_of(cluster, namespace)["ports"][0]["nodePort"]
    eventually(lambda: answers(port))
    cluster.apply(SERVICE % ("web", "", f"type: ClusterIP, {plain}"), "-n", namespace)
    eventually(lambda: not answers(port))
    assert served(address)
    # Another proxy's, for the time being.
    cluster.apply(SERVICE % ("web", "service.kubernetes.io/service-proxy-name: mine", plain), "-n", namespace)
    eventually(lambda: client.ask(address) == "dropped")
    cluster.apply(SERVICE % ("web", "", plain), "-n", namespace)
    eventually(lambda: served(address))
    # An alias of a Service elsewhere, and back.
    cluster.apply(SERVICE % ("real", "", plain), "-n", namespace)
    real = spec_of(cluster, namespace, "real")["clusterIP"]
    alias = f'[{{"op": "replace", "path": "/spec", "value": {{"type": "ExternalName", "externalName": \
"real.{namespace}.svc.cluster.local"}}}}]'
    cluster.kubectl("patch", "service", "web", "-n", namespace, "--type=json", "-p", alias)
    eventually(lambda: client.names("web") == [real])
    eventually(lambda: client.ask(address) == "dropped")
    assert served(real)
    back = '{"spec": {"type": "ClusterIP", "externalName": null, "selector": {"app": "web"}, "ports": [{"port": 80}]}}'
    cluster.kubectl("patch", "service", "web", "-n", namespace, "-p", back)
    again = spec_of(cluster, namespace)["clusterIP"]
    eventually(lambda: served(again))
    eventually(lambda: client.names("web") == [again])
    # Made again: another address, and the old one is nobody's.
    cluster.kubectl("delete", "service", "web", "-n", namespace)
    eventually(lambda: client.names("web") == [])
    cluster.apply(SERVICE % ("web", "", f"clusterIP: {address}, {plain}"), "-n", namespace)
    eventually(lambda: served(address))
    if again != address:
        assert client.ask(again) == "dropped"


def test_ports_come_and_go_and_a_service_without_pods_refuses(
    cluster: Cluster, namespace: str, pods: dict[str, str]
) -> None:
    client = Client(cluster, namespace)
    for name in ("web", "other"):
        cluster.apply(SERVICE % (name, "", "selector: {app: web}, ports: [{name: a, port: 80}]"), "-n", namespace)
    address, other = (spec_of(cluster, namespace, name)["clusterIP"] for name in ("web", "other"))
    eventually(lambda: client.ask(address).endswith(":80"))
    assert client.ask(address, 81) == "refused"
    more = "selector: {app: web}, ports: [{name: a, port: 80}, {name: b, port: 81}]"
    cluster.apply(SERVICE % ("web", "", more), "-n", namespace)
    eventually(lambda: client.ask(address, 81).endswith(":81"))
    fewer = "selector: {app: web}, ports: [{name: b, port: 81, targetPort: 80}]"
    cluster.apply(SERVICE % ("web", "", fewer), "-n", namespace)
    eventually(lambda: client.ask(address, 81).endswith(":80"))
    assert client.ask(address) == "refused"
    cluster.apply(SERVICE % ("web", "", "selector: {app: nobody}, ports: [{name: b, port: 81}]"), "-n", namespace)
    eventually(lambda: client.ask(address, 81) == "refused")
    assert client.ask(other).endswith(":80")


@pytest.mark.parametrize("kind", ["ClusterIP", "headless"])
def test_slices_by_hand_with_several_ports(cluster: Cluster, namespace: str, pods: dict[str, str], kind: str) -> None:
    """A port has another number in each slice; a port of only one slice is served by that slice."""
    client = Client(cluster, namespace)
    (item, first), (two, second) = sorted(pods.items())
    address = "clusterIP: None, " if kind == "headless" else ""
    ports = "ports: [{name: a, port: 8000}, {name: b, port: 8001}]"
    cluster.apply(
        SERVICE % ("hand", "", f"{address}{ports}")
        + PIECE % ("hand-1", "{name: a, port: 80}", f"{{addresses: [{first}]}}")
        + PIECE
        % ("hand-2", "{name: a, port: 81}, {name: b, port: 80}", f"{{addresses: [{second}], hostname: second}}"),
        "-n",
        namespace,
    )
    if kind == "headless":
        eventually(lambda: client.names("hand") == sorted((first, second)))
        eventually(lambda: client.names("second.hand") == [second])
        cluster.kubectl("delete", "endpointslice", "hand-1", "-n", namespace)
        eventually(lambda: client.names("hand") == [second])
        return
    own = spec_of(cluster, namespace, "hand")["clusterIP"]
    eventually(lambda: client.ask(own, 8001) == f"{two}:80")
    eventually(lambda: {client.ask(own, 8000) for _ in range(24)} == {f"{item}:80", f"{two}:81"})
    assert client.names("hand") == [own]
    cluster.kubectl("delete", "endpointslice", "hand-2", "-n", namespace)
    eventually(lambda: client.ask(own, 8001) == "refused")
    assert {client.ask(own, 8000) for _ in range(8)} == {f"{item}:80"}
    remaining = cluster.get("endpointslices", "-l", "kubernetes.io/service-name=hand", "-n", namespace)["items"]
    assert [piece["metadata"]["name"] for piece in remaining] == ["hand-1"]


def test_an_external_name_is_an_alias_without_rules(cluster: Cluster, namespace: str, pods: dict[str, str]) -> None:
    client = Client(cluster, namespace)
    cluster.apply(SERVICE % ("real", "", "selector: {app: web}, ports: [{port: 80}]"), "-n", namespace)
    target = f"real.{namespace}.svc.cluster.local"
    cluster.apply(SERVICE % ("alias", "", f"type: ExternalName, externalName: {target}"), "-n", namespace)
    real = spec_of(cluster, namespace, "real")["clusterIP"]
    eventually(lambda: client.names("alias") == [real])
    eventually(lambda: client.ask(real).endswith(":80"))
    row = cluster.kubectl("get", "service", "alias", "-n", namespace, "--no-headers").split()
    assert row[1:4] == ["ExternalName", "<none>", target]
    assert cluster.get("endpointslices", "-l", "kubernetes.io/service-name=alias", "-n", namespace)["items"] == []


BY_HAND = "type: LoadBalancer, loadBalancerClass: example.com/hand, selector: {app: web}, ports: [{port: 80}]"


def test_a_load_balancer_waits_for_whoever_gives_addresses(
    cluster: Cluster, namespace: str, pods: dict[str, str]
) -> None:
    """podwire does not change the Service; every node serves an address in its status."""
    client = Client(cluster, namespace)
    cluster.apply(SERVICE % ("web", "", BY_HAND), "-n", namespace)
    assert cluster.kubectl("get", "service", "web", "-n", namespace, "--no-headers").split()[3] == "<pending>"
    status = '{"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.99"}]}}}'
    cluster.kubectl("patch", "service", "web", "-n", namespace, "--subresource=status", "-p", status)
    eventually(lambda: client.ask("203.0.113.99").endswith(":80"))
    meta = cluster.get("service", "web", "-n", namespace)["metadata"]
    assert "finalizers" not in meta
    assert "podwire.io/load-balancer" not in meta.get("annotations", {})
    cluster.kubectl("patch", "service", "web", "-n", namespace, "-p", '{"spec": {"type": "ClusterIP"}}')
    eventually(lambda: client.ask("203.0.113.99") == "dropped")
