"""A cluster with the gateway: Envoy serves Ingresses that kubectl writes, and no change loses a request."""

import base64
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.clusters import done, own_name, running
from tests.e2e.driver import Cluster, deployment, eventually, podwire
from tests.e2e.web_clients import clients_of, gateway_processes, gateways_rolled_out, status_of
from tests.kernel.gateway_engine import certificate_for, hosts_of

from podwire.gateway.routes import Certificate


def _web(name: str, host: str, *, annotations: str = "{}", tls: str = "[]") -> str:
    return f"""
---
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{selector: {{app: {name}}}, ports: [{{port: 80}}]}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: {name}, annotations: {annotations}}}
spec:
  tls: {tls}
  rules:
    - host: {host}
      http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: {name}, port: {{number: 80}}}}}}}}]}}
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the gateway and a Deployment behind an Ingress."""
    settings = tmp_path_factory.mktemp("gateway") / "cluster.yaml"
    settings.write_text("{nodes: 2, gateway: true}")
    manifests = deployment("web", replicas=2) + _web("web", "web.example")
    with running(own_name("gateway"), "--config", str(settings), stdin=manifests) as cluster:
        gateways_rolled_out(cluster)
        yield cluster


@pytest.fixture(scope="module")
def node(gateway: Cluster) -> str:
    """The address of a node; its node ports lead to the gateway."""
    return next(
        str(entry["address"])
        for entry in gateway.get("nodes")["items"][0]["status"]["addresses"]
        if entry["type"] == "InternalIP"
    )


@pytest.fixture(scope="module")
def ports(gateway: Cluster) -> dict[str, int]:
    """The node ports of the gateway by the name of the port."""
    service = gateway.get("service", "podwire-gateway", "-n", "kube-system")
    return {port["name"]: port["nodePort"] for port in service["spec"]["ports"]}


def _certificate(node: str, port: int, host: str) -> tuple[str, ...]:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((node, port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        certificate = secure.getpeercert(binary_form=True)
    assert certificate is not None
    return hosts_of(certificate)


def _secret(name: str, certificate: Certificate) -> str:
    chain, key = (base64.b64encode(text.encode()).decode() for text in (certificate.chain, certificate.key))
    return f"""
---
apiVersion: v1
kind: Secret
metadata: {{name: {name}}}
type: kubernetes.io/tls
data: {{tls.crt: {chain}, tls.key: {key}}}
"""


def test_an_ingress_is_served_as_soon_as_it_is_written(gateway: Cluster, node: str, ports: dict[str, int]) -> None:
    assert status_of(node, ports["http"], "web.example") == 200
    assert status_of(node, ports["http"], "other.example") == 404
    gateway.apply(_web("second", "second.example").replace("app: second", "app: web"))
    eventually(lambda: status_of(node, ports["http"], "second.example") == 200)
    gateway.kubectl("delete", "ingress,service", "second")
    eventually(lambda: status_of(node, ports["http"], "second.example") == 404)


def test_a_certificate_is_served_and_replaced(gateway: Cluster, node: str, ports: dict[str, int]) -> None:
    first = certificate_for("first", ("tls.example", "first.example"))
    tls = "[{hosts: [tls.example], secretName: tls}]"
    gateway.apply(_secret("tls", first) + _web("tls", "tls.example", tls=tls).replace("app: tls", "app: web"))
    eventually(lambda: "first.example" in _certificate(node, ports["https"], "tls.example"))
    eventually(lambda: status_of(node, ports["http"], "tls.example") == 308)
    gateway.apply(_secret("tls", certificate_for("second", ("tls.example", "second.example"))))
    eventually(lambda: "second.example" in _certificate(node, ports["https"], "tls.example"))
    gateway.kubectl("delete", "secret", "tls")
    eventually(lambda: _certificate(node, ports["https"], "tls.example") == ("invalid",))
    _event(gateway, "tls", "InvalidCertificate", "spec.tls[0].secretName: Secret default/tls does not exist")
    gateway.kubectl("delete", "ingress,service", "tls")


def _event(cluster: Cluster, ingress: str, reason: str, text: str) -> None:
    def written() -> bool:
        events = cluster.get("events", "--field-selector", f"involvedObject.name={ingress},reason={reason}")
        return any(text in event["message"] for event in events["items"])

    eventually(written)


def test_why_names_the_route_of_a_url(gateway: Cluster) -> None:
    text = done("why", "--name", gateway.name, "url", "http://web.example/cart")
    assert "forwarded to a pod" in text
    assert "Ingress default/web spec.rules[0].http.paths[0]" in text
    assert "backend default/web:80 gets 100 %: 10.244." in text
    assert "no route has this host" in done("why", "--name", gateway.name, "url", "https://absent.example/")


def test_what_is_not_served_is_an_event_of_the_ingress(gateway: Cluster) -> None:
    annotations = "{nginx.ingress.kubernetes.io/server-snippet: x, nginx.ingress.kubernetes.io/modsecurity: 'true'}"
    gateway.apply(_web("odd", "odd.example", annotations=annotations))
    _event(gateway, "odd", "UnsupportedAnnotation", "server-snippet] is refused")
    _event(gateway, "odd", "UnsupportedAnnotation", "modsecurity] is not supported")
    gateway.kubectl("delete", "ingress,service", "odd")


def test_a_foreign_class_is_left_alone(gateway: Cluster, node: str, ports: dict[str, int]) -> None:
    foreign = _web("foreign", "foreign.example").replace("spec:\n  tls", "spec:\n  ingressClassName: other\n  tls")
    gateway.apply(foreign + _web("own", "own.example").replace("app: own", "app: web"))
    eventually(lambda: status_of(node, ports["http"], "own.example") == 200)
    assert status_of(node, ports["http"], "foreign.example") == 404
    assert not gateway.get("ingress", "foreign").get("status", {}).get("loadBalancer")
    gateway.kubectl("delete", "ingress,service", "foreign", "own")


def test_no_request_fails_while_everything_is_replaced(gateway: Cluster, node: str, ports: dict[str, int]) -> None:
    with clients_of(node, ports["http"], "web.example"):
        gateway.kubectl("rollout", "restart", "deployment/web")
        gateway.rolled_out("web")
        for number in range(10):
            host = f"more-{number}.example"
            gateway.apply(_web(f"more-{number}", host).replace(f"app: more-{number}", "app: web"))
        gateway.kubectl("delete", "ingress,service", *(f"more-{number}" for number in range(10)))
        killed = gateway_processes(gateway)
        assert killed
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        gateway.kubectl("-n", "kube-system", "rollout", "restart", "daemonset/podwire-gateway")
        gateways_rolled_out(gateway)


def _api_objects(host: str) -> str:
    """A Gateway for routes of all namespaces, and a route of the namespace shop to the Service of the default one."""
    return f"""
---
apiVersion: v1
kind: Namespace
metadata: {{name: shop}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: front}}
spec:
  gatewayClassName: podwire
  listeners: [{{name: http, port: 80, protocol: HTTP, allowedRoutes: {{namespaces: {{from: All}}}}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web, namespace: shop}}
spec:
  parentRefs: [{{name: front, namespace: default}}]
  hostnames: [{host}]
  rules: [{{backendRefs: [{{name: web, namespace: default, port: 80}}]}}]
"""


_GRANT = """
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: shop}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}]
  to: [{group: "", kind: Service, name: web}]
"""


def _holds(conditions: list[Any], kind: str, status: str, reason: str) -> bool:
    return any((entry["type"], entry["status"], entry["reason"]) == (kind, status, reason) for entry in conditions)


def _route_holds(cluster: Cluster, kind: str, status: str, reason: str) -> bool:
    parents = cluster.get("httproute", "web", "-n", "shop").get("status", {}).get("parents", [])
    return any(_holds(parent["conditions"], kind, status, reason) for parent in parents)


def _gateway_service(cluster: Cluster) -> Any:
    services = cluster.get("services", "-n", "kube-system", "-l", "podwire.io/gateway-service")["items"]
    return services[0] if services else None


def test_a_route_needs_a_grant_for_a_foreign_service(gateway: Cluster, node: str) -> None:
    host = "api.example"
    gateway.apply(_api_objects(host))
    eventually(lambda: _gateway_service(gateway) is not None)
    port = _gateway_service(gateway)["spec"]["ports"][0]["nodePort"]
    eventually(lambda: _route_holds(gateway, "ResolvedRefs", "False", "RefNotPermitted"))
    assert _route_holds(gateway, "Accepted", "True", "Accepted")
    eventually(lambda: status_of(node, port, host) == 500)
    gateway.apply(_GRANT)
    eventually(lambda: status_of(node, port, host) == 200)
    eventually(lambda: _route_holds(gateway, "ResolvedRefs", "True", "ResolvedRefs"))
    assert status_of(node, port, "other.example") == 404
    gateway.kubectl("delete", "referencegrant", "shop")
    eventually(lambda: status_of(node, port, host) == 500)
    _check_address(gateway)
    gateway.kubectl("delete", "gateway", "front")
    eventually(lambda: _gateway_service(gateway) is None)
    eventually(lambda: not gateway.get("httproute", "web", "-n", "shop")["status"]["parents"])
    gateway.kubectl("delete", "namespace", "shop")


def test_ingresses_and_what_they_migrate_to_answer_alike(gateway: Cluster, node: str, ports: dict[str, int]) -> None:
    written = gateway.run(
        [*podwire(), "gateway", "migrate", "--gateway", "default/moved", "--ingress-class", "podwire"]
    )
    assert written.returncode == 0, written.stderr
    assert "not carried over: Gateway default/moved" in written.stderr
    gateway.apply(written.stdout)
    eventually(lambda: _gateway_service(gateway) is not None)
    port = _gateway_service(gateway)["spec"]["ports"][0]["nodePort"]
    eventually(lambda: status_of(node, port, "web.example") == 200)
    for host in ("web.example", "absent.example"):
        assert status_of(node, port, host) == status_of(node, ports["http"], host)
    gateway.kubectl("delete", "gateway", "moved")
    gateway.kubectl("delete", "httproute", "--all")
    eventually(lambda: _gateway_service(gateway) is None)


def _check_address(cluster: Cluster) -> None:
    """The address that the load balancer gives to the Service is that of the Gateway, which is programmed then."""

    def programmed() -> bool:
        balanced = _gateway_service(cluster)["status"]["loadBalancer"].get("ingress", [])
        status = cluster.get("gateway", "front")["status"]
        addresses = [entry["value"] for entry in status.get("addresses", [])]
        same = bool(addresses) and addresses == [entry["ip"] for entry in balanced]
        return same and _holds(status["conditions"], "Programmed", "True", "Programmed")

    eventually(programmed)
    status = cluster.get("gateway", "front")["status"]
    assert _holds(status["conditions"], "Accepted", "True", "Accepted")
    assert status["listeners"][0]["attachedRoutes"] == 1
    assert _holds(status["listeners"][0]["conditions"], "Programmed", "True", "Programmed")
    (known,) = cluster.get("gatewayclass")["items"]
    assert _holds(known["status"]["conditions"], "Accepted", "True", "Accepted")
