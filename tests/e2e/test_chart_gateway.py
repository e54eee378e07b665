"""The gateway of the chart: four ways in, addresses of clients, rights, rollouts without a lost request."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e import chart_rights
from tests.e2e.clusters import own_name, running
from tests.e2e.driver import Cluster, deployment, eventually
from tests.e2e.helm import Helm
from tests.e2e.web_clients import clients_of, gateways_rolled_out, status_of

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "deploy/helm/podwire")
NAMESPACE = "kube-system"
HOST = "web.example"
WAIT = ("--wait", "--timeout", "120s")
UNUSED = (
    "gateway: * events",
    "gateway: patch services",
    "gateway: list listenersets.*",
    "gateway: watch listenersets.*",
    "gateway: patch listenersets/status.*",
    *(f"gateway: patch {kind}/status.*" for kind in ("backendtlspolicies", "grpcroutes")),
    *(f"gateway: * {kind}*.gateway.networking.k8s.io" for kind in ("tcproutes", "tlsroutes", "udproutes")),
    *(f"gateway: * {kind}.gateway.networking.k8s.io" for kind in ("backendtlspolicies", "grpcroutes")),
)
"""Rights for what does not happen here: warnings, Gateways whose ports change, kinds that the cluster does not have."""
FRONT = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front}
spec: {gatewayClassName: podwire, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec: {parentRefs: [{name: front}], rules: [{backendRefs: [{name: web, port: 80}]}]}
"""


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The audit log of what service accounts do in the cluster."""
    return tmp_path_factory.mktemp("audit") / "log"


@pytest.fixture(scope="module")
def cluster(audit: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes with a network; the image of the chart's gateway is this podwire."""
    file = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    document = {
        "nodes": 2,
        "images": [{"name": "podwire-gateway", "command": [str(Path(sys.executable).parent / "podwire")]}],
        "audit": {"file": str(audit), "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}]},
    }
    file.write_text(json.dumps(document))
    definitions = (ROOT / "src/podwire/local/addons/gatewayapi.yaml").read_text()
    with running(own_name("chart-gateway"), "--config", str(file), stdin=deployment("web", replicas=2)) as created:
        created.apply(definitions.partition("---\napiVersion: gateway.networking.k8s.io")[0])
        created.rolled_out("web")
        yield created


@pytest.fixture(scope="module")
def helm(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(cluster, NAMESPACE, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Values beside the network of the cluster; its interpreter may be readable by root alone."""
    file = tmp_path_factory.mktemp("values") / "values.yaml"
    root = {"runAsNonRoot": False, "runAsUser": 0, "capabilities": {"drop": []}}
    file.write_text(yaml.safe_dump({"gateway": {"securityContext": root, "gatewayClass": {"create": True}}}))
    return str(file)


def client_address(node: str) -> str:
    """The address with which this machine asks a node."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node, 9))
        return str(probe.getsockname()[0])


def ingress(allowed: str) -> str:
    """An Ingress that answers only clients of one address; a node or a pod in between would be another one."""
    return f"""
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80}}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  annotations: {{nginx.ingress.kubernetes.io/whitelist-source-range: {allowed}/32}}
spec:
  ingressClassName: podwire
  rules:
    - host: {HOST}
      http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}
"""


def nodes_of(cluster: Cluster) -> list[str]:
    """The addresses of the nodes."""
    addresses = [node["status"]["addresses"] for node in cluster.get("nodes")["items"]]
    return [str(a["address"]) for known in addresses for a in known if a["type"] == "InternalIP"]


def published(cluster: Cluster) -> list[str]:
    """The addresses in the status of the Ingress."""
    entries = cluster.get("ingress", "web")["status"].get("loadBalancer", {}).get("ingress") or []
    return sorted(str(entry["ip"]) for entry in entries)


def service_port(cluster: Cluster) -> int:
    """The node port of HTTP."""
    return int(cluster.get("service", "podwire-gateway", "-n", NAMESPACE)["spec"]["ports"][0]["nodePort"])


def use(helm: Helm, values: str, exposure: str) -> None:
    """Installs or changes the gateway."""
    file = str(ROOT / "deploy/values/gateway.yaml")
    chosen = f"gateway.exposure={exposure}"
    helm("upgrade", "--install", "podwire", CHART, "-f", file, "-f", values, "--set", chosen, *WAIT)


def test_rollouts_lose_nothing_and_clients_keep_their_address(
    cluster: Cluster, audit: Path, helm: Helm, values: str
) -> None:
    use(helm, values, "loadBalancer")
    gateways_rolled_out(cluster)
    nodes = nodes_of(cluster)
    cluster.apply(ingress(client_address(nodes[0])))
    eventually(lambda: len(published(cluster)) == 1)
    (address,) = published(cluster)
    eventually(lambda: status_of(address, 80, HOST) == 200)
    port = service_port(cluster)
    with clients_of(address, 80, HOST), clients_of(nodes[0], port, HOST):
        cluster.kubectl("-n", NAMESPACE, "rollout", "restart", "daemonset/podwire-gateway")
        gateways_rolled_out(cluster)
    assert cluster.get("gatewayclass", "podwire")["status"]["conditions"][0]["status"] == "True"
    check_gateway(cluster)
    roles = cluster.get("clusterroles,roles", "-A", "-l", "app.kubernetes.io/instance=podwire")["items"]
    may, did = chart_rights.granted(roles), chart_rights.used(audit)
    did = {action for action in did if action.account == "gateway"}
    assert (chart_rights.refused(audit), sorted(map(str, did - may))) == ([], [])
    assert chart_rights.unexplained(may - did, UNUSED) == []


def check_gateway(cluster: Cluster) -> None:
    """A Gateway gets an address of its own, which goes with it."""

    def addresses() -> list[str]:
        return [str(entry["value"]) for entry in cluster.get("gateway", "front").get("status", {}).get("addresses", [])]

    cluster.apply(FRONT)
    eventually(lambda: addresses() and status_of(addresses()[0], 80, HOST) == 200)
    cluster.kubectl("delete", "gateway", "front")
    of_gateways = ("services", "-n", NAMESPACE, "-l", "podwire.io/gateway-service")
    eventually(lambda: not cluster.get(*of_gateways)["items"])


def test_every_way_in_leads_to_the_gateway(cluster: Cluster, helm: Helm, values: str) -> None:
    nodes = nodes_of(cluster)
    client = client_address(nodes[0])
    use(helm, values, "nodePort")
    gateways_rolled_out(cluster)
    cluster.apply(ingress(client))
    port = service_port(cluster)
    eventually(lambda: all(status_of(node, port, HOST) == 200 for node in nodes))
    for exposure in ("hostPort", "hostNetwork"):
        use(helm, values, exposure)
        gateways_rolled_out(cluster)
        eventually(lambda: all(status_of(node, 80, HOST) == 200 for node in nodes))
        eventually(lambda: published(cluster) == sorted(nodes))
    helm("uninstall", "podwire", *WAIT)


def test_wrong_values_of_the_gateway_are_named(helm: Helm) -> None:
    enabled = ("template", "podwire", CHART, "--set", "api.host=a,gateway.enabled=true")
    assert "at '/gateway/exposure': value must be one of" in helm.refused(*enabled, "--set", "gateway.exposure=dns")
    local = helm.refused(*enabled, "--set", "gateway.onEveryNode=false")
    assert "gateway.onEveryNode: expected true with gateway.externalTrafficPolicy Local" in local
