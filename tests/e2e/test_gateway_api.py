"""Gateway API in a cluster: its kinds with their status, and traffic of each kind of route through the addresses.

One cluster has the objects of all cases at once, each case in namespaces of its own. The definitions of the kinds take
every field of the cases (strict validation); the status is read from the API. What requests get is shown with a real
engine in ``tests/kernel/test_gateway_api_engine.py``.
"""

import base64
import http.client
import ipaddress
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.cases.gateway.gateway_api_cases import (
    AUTHORITIES,
    BACKEND_NAMES,
    CERTIFICATES,
    ApiCase,
    CaseMachine,
    api_facts,
    cluster_cases,
    services_of,
)
from tests.e2e.clusters import own_name, running
from tests.e2e.driver import Cluster, deployment, eventually
from tests.e2e.web_clients import gateways_rolled_out
from tests.fakes.certificates import make_certificate
from tests.kernel.gateway_engine import certificate_for

Json = dict[str, Any]
_SHARED = (
    "infra/same-namespace",
    "infra/same-namespace-with-https-listener",
    "infra/all-namespaces",
    "infra/backend-namespaces",
)
CASES = cluster_cases()
_NUMBERS = {case.name: number for number, case in enumerate(CASES)}
_PLURALS = {"HTTPRoute": "httproutes", "GRPCRoute": "grpcroutes", "TLSRoute": "tlsroutes"} | {
    "TCPRoute": "tcproutes",
    "UDPRoute": "udproutes",
}


def _own(case: ApiCase, key: str) -> tuple[str, str]:
    """The namespace and name of an object of a case in the cluster."""
    namespace, _, name = key.partition("/")
    return f"{namespace}-{_NUMBERS[case.name]}", name


def _plain(value: Any) -> Any:
    """A value in its API form, without what is empty; an empty group stays, since it means the core group."""
    if isinstance(value, msgspec.Struct):
        result = {}
        for field in msgspec.structs.fields(value):
            item = getattr(value, field.name)
            if field.name not in ("status", "generation", "creation_timestamp") and (
                field.name == "group" or item not in (None, (), {}, "")
            ):
                result[field.encode_name] = _plain(item)
        return result
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _moved(case: ApiCase, value: Any) -> Any:
    """The same with the namespaces that the case has in the cluster."""
    if isinstance(value, dict):
        return {
            key: f"{item}-{_NUMBERS[case.name]}" if key == "namespace" else _moved(case, item)
            for key, item in value.items()
        }
    return [_moved(case, item) for item in value] if isinstance(value, list) else value


def _manifests(case: ApiCase, secrets: dict[str, tuple[str, str]], authorities: dict[str, str]) -> Iterator[Json]:
    """All objects of a case."""
    machine = CaseMachine(
        addresses=dict.fromkeys(services_of(case), "192.0.2.9"),
        ports=dict.fromkeys(("http", "grpc", "https", "udp"), 9),
        certificate=lambda key: key,
        authority=lambda key: key,
        engine_port=lambda _key, port: port,
    )
    facts = api_facts(case, machine)
    asked: list[Any] = [*facts.sets, *facts.routes, *facts.policies]
    text = json.dumps([_plain(value) for value in asked])
    possible: list[Any] = [*facts.gateways, *facts.upstreams.services.values()]
    named = [
        value
        for value in possible
        if f'"{value.metadata.name}"' in text or (value.kind == "Gateway" and _key(value) not in _SHARED)
    ]
    objects = [*named, *asked, *facts.grants]
    written = json.dumps([_plain(value) for value in objects])
    used = {value.metadata.namespace for value in objects}
    for name in sorted(used):
        labels = facts.namespaces.get(name, {})
        kept = {key: label for key, label in labels.items() if key != "kubernetes.io/metadata.name"}
        meta = {"name": f"{name}-{_NUMBERS[case.name]}", "labels": kept}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}

    def named_by_objects(key: str) -> bool:
        namespace, _, name = key.partition("/")
        return namespace in used and f'"{name}"' in written

    for key, (chain, private) in secrets.items():
        if not named_by_objects(key):
            continue
        data = {"tls.crt": _base64(chain), "tls.key": _base64(private)}
        yield _with_key(case, key, {"kind": "Secret", "type": "kubernetes.io/tls", "data": data})
    for key, owner in AUTHORITIES.items():
        if named_by_objects(key):
            yield _with_key(case, key, {"kind": "ConfigMap", "data": {"ca.crt": authorities[owner]}})
    for value in objects:
        body = _plain(value) | {"apiVersion": value.api_version, "kind": value.kind}
        if value.kind == "Service":
            known = ("name", "port", "protocol", "appProtocol")
            body["spec"] = {
                "ports": [{name: port[name] for name in known if name in port} for port in body["spec"]["ports"]]
            }
        yield _moved(case, body)


def _key(value: Any) -> str:
    return f"{value.metadata.namespace}/{value.metadata.name}"


def _with_key(case: ApiCase, key: str, body: Json) -> Json:
    namespace, name = _own(case, key)
    return {"apiVersion": "v1", **body, "metadata": {"namespace": namespace, "name": name}}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the gateway, a Deployment, two Gateways, and the objects of all cases.

    The cases have more Gateways than there are addresses for load balancers, so that theirs come last.
    """
    settings = tmp_path_factory.mktemp("gateway") / "cluster.yaml"
    settings.write_text("{nodes: 1, gateway: true}")
    service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web}\n"
    service += "spec: {selector: {app: web}, ports: [{port: 80}]}\n"
    secrets = {key: _pair(certificate_for(key, hosts)) for key, hosts in CERTIFICATES.items()}
    names = {"backends": BACKEND_NAMES} | {name: (f"{name}.example",) for name in ("nobody", "default", "per-port")}
    authorities = {name: make_certificate(*hosts)[0] for name, hosts in names.items()}
    with running(own_name("gwapi"), "--config", str(settings), stdin=deployment("web") + service) as running_cluster:
        gateways_rolled_out(running_cluster)
        chain, key = make_certificate("tls.example.com")
        data = {"tls.crt": _base64(chain), "tls.key": _base64(key)}
        secret = {"kind": "Secret", "metadata": {"name": "streams"}, "type": "kubernetes.io/tls", "data": data}
        running_cluster.apply(json.dumps({"apiVersion": "v1", **secret}))
        running_cluster.apply(_STREAMS)
        running_cluster.apply(json.dumps(_fixed(_asked(running_cluster))))
        for name in ("streams", "fixed"):
            eventually(lambda name=name: _programmed(running_cluster, name))
        for case in CASES:
            items = list(_manifests(case, secrets, authorities))
            running_cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        yield running_cluster


def _pair(certificate: Any) -> tuple[str, str]:
    return certificate.chain, certificate.key


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_objects_get_the_status_that_the_case_says(cluster: Cluster, case: ApiCase) -> None:
    for expected in case.expect:
        eventually(lambda expected=expected: not _differences(cluster, case, expected) or None)


def _differences(cluster: Cluster, case: ApiCase, expected: Json) -> list[str]:
    """What of an expectation the API does not say."""
    wanted = {kind: str(text).split() for kind, text in expected.items() if kind[0].isupper()}
    found = _statuses(cluster, case, expected)
    if not found:
        return [f"no status for {expected}"]
    result = []
    for generation, status in found:
        if "attached" in expected and status.get("attachedRoutes") != expected["attached"]:
            result.append(f"attached: {status.get('attachedRoutes')}")
        if "sets" in expected and status.get("attachedListenerSets", 0) != expected["sets"]:
            result.append(f"sets: {status.get('attachedListenerSets')}")
        conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
        result += [
            f"{kind}: generation" for kind, entry in conditions.items() if entry["observedGeneration"] != generation
        ]
        for kind, (value, *reason) in wanted.items():
            entry = conditions.get(kind, {})
            if entry.get("status") != value or (reason and entry.get("reason") != reason[0]):
                result.append(f"{kind}: {entry}")
    return result


def _statuses(cluster: Cluster, case: ApiCase, expected: Json) -> list[tuple[int, Json]]:
    """The generation and the status that an expectation is about, at each parent."""
    at = {kind: _own(case, expected[kind]) for kind in ("gateway", "set", "route", "policy") if kind in expected}
    if "route" in at or "policy" in at:
        kind = case.routes[expected["route"]].get("kind", "HTTPRoute") if "route" in at else "BackendTLSPolicy"
        value = _read(cluster, _PLURALS.get(kind, "backendtlspolicies"), at.get("route") or at["policy"])
        status = value.get("status", {})
        entries = [(entry["parentRef"], entry) for entry in status.get("parents", [])]
        entries += [(entry["ancestorRef"], entry) for entry in status.get("ancestors", [])]
        if "accepted parents" in expected:
            return [(value["metadata"]["generation"], {})] if not any(map(_accepted, entries)) else []
        namespace = value["metadata"]["namespace"]
        parent = at["set"] if "set" in at else at["gateway"]
        return [
            (value["metadata"]["generation"], entry)
            for reference, entry in entries
            if (reference.get("namespace") or namespace, reference["name"]) == parent
        ]
    value = _read(cluster, "gateways" if "gateway" in at else "listenersets", at.get("gateway") or at["set"])
    status = value.get("status", {})
    generation = value["metadata"]["generation"]
    if "listener" in expected:
        listeners = status.get("listeners", [])
        return [(generation, entry) for entry in listeners if entry["name"] == expected["listener"]]
    return [(generation, status)]


def _accepted(entry: tuple[Json, Json]) -> bool:
    return any((value["type"], value["status"]) == ("Accepted", "True") for value in entry[1]["conditions"])


def _read(cluster: Cluster, plural: str, key: tuple[str, str]) -> Json:
    value: Json = cluster.get(plural, key[1], "-n", key[0])
    return value


_STREAMS = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: streams}
spec:
  gatewayClassName: podwire
  listeners:
    - {name: http, port: 80, protocol: HTTP}
    - {name: tcp, port: 9000, protocol: TCP}
    - {name: udp, port: 9000, protocol: UDP}
    - {name: tls, port: 9443, protocol: TLS, tls: {mode: Terminate, certificateRefs: [{name: streams}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web}
spec: {parentRefs: [{name: streams}], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: web}
spec: {parentRefs: [{name: streams}], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: web}
spec:
  parentRefs: [{name: streams}]
  hostnames: [tls.example.com]
  rules: [{backendRefs: [{name: web, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: dns}
spec:
  parentRefs: [{name: streams}]
  rules: [{backendRefs: [{name: kube-dns, namespace: kube-system, port: 53}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: dns, namespace: kube-system}
spec:
  from: [{group: gateway.networking.k8s.io, kind: UDPRoute, namespace: default}]
  to: [{group: "", kind: Service, name: kube-dns}]
"""


@pytest.fixture(scope="module")
def address(cluster: Cluster) -> str:
    """The address of a Gateway with ports of HTTP, TCP, UDP and TLS."""
    return str(cluster.get("gateway", "streams")["status"]["addresses"][0]["value"])


def _programmed(cluster: Cluster, name: str) -> bool:
    status = cluster.get("gateway", name).get("status", {})
    conditions = [*status.get("conditions", []), *(c for e in status.get("listeners", []) for c in e["conditions"])]
    programmed = [entry["status"] for entry in conditions if entry["type"] == "Programmed"]
    return len(programmed) > 1 and set(programmed) == {"True"}


def _get(address: str, port: int, host: str, path: str = "/", *, secure: bool = False) -> int:
    """The status of a request; 0 where there is no answer."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((address, port), timeout=10) as plain:
            stream = context.wrap_socket(plain, server_hostname=host) if secure else plain
            with stream:
                stream.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = http.client.HTTPResponse(stream)
                answer.begin()
                return int(answer.status)
    except (OSError, http.client.HTTPException):
        return 0


def _resolves(address: str, port: int, name: str) -> bool:
    """Whether a server of DNS has an address for a name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    query = struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        client.sendto(query, (address, port))
        try:
            answer = client.recv(2048)
        except OSError:
            return False
    return bool(struct.unpack(">4H", answer[:8])[3] > 0)


def test_connections_and_datagrams_reach_pods(cluster: Cluster, address: str) -> None:
    eventually(lambda: _get(address, 80, "any.example") == 200)
    eventually(lambda: _get(address, 9000, "any.example") == 200)
    eventually(lambda: _get(address, 9443, "tls.example.com", secure=True) == 200)
    assert _get(address, 9443, "other.example.com", secure=True) == 0
    eventually(lambda: _resolves(address, 9000, "web.default.svc.cluster.local"))
    cluster.kubectl("delete", "udproute", "dns")
    eventually(lambda: not _resolves(address, 9000, "web.default.svc.cluster.local"))


def _route(name: str, removed: str = "") -> str:
    """A route; one that removes the header Host is refused by Envoy alone."""
    rule: Json = {"backendRefs": [{"name": "web", "port": 80}]}
    if removed:
        rule["filters"] = [{"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": [removed]}}]
    body = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name},
        "spec": {"parentRefs": [{"name": "streams"}], "hostnames": [f"{name}.example"], "rules": [rule]},
    }
    return json.dumps(body)


def test_what_the_engine_refuses_is_told_on_its_route(cluster: Cluster, address: str) -> None:
    cluster.apply(_route("wrong", "Host"))
    cluster.apply(_route("right"))

    def refused() -> bool:
        parents = cluster.get("httproute", "wrong").get("status", {}).get("parents", [])
        conditions = [entry for parent in parents for entry in parent["conditions"]]
        return any(entry["status"] == "False" and "may not be removed" in entry["message"] for entry in conditions)

    eventually(refused)
    eventually(lambda: _get(address, 80, "right.example") == 200)
    assert _get(address, 80, "any.example") == 200
    cluster.apply(_route("wrong", "X-Any"))
    eventually(lambda: _get(address, 80, "wrong.example") == 200)
    eventually(lambda: not refused())


def _asked(cluster: Cluster) -> str:
    """The last address of the pool."""
    (pool,) = cluster.get("ipaddresspools", "-A")["items"]
    first, _, last = pool["spec"]["addresses"][0].partition("-")
    return last.strip() or str(ipaddress.ip_network(first)[-2])


def _fixed(address: str) -> Json:
    """A Gateway that asks for an address."""
    listeners = [{"name": "http", "port": 80, "protocol": "HTTP"}]
    spec = {"gatewayClassName": "podwire", "addresses": [{"value": address}], "listeners": listeners}
    meta = {"name": "fixed"}
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": meta, "spec": spec}


def test_an_address_that_is_asked_for_is_given(cluster: Cluster) -> None:
    status = cluster.get("gateway", "fixed")["status"]
    assert [entry["value"] for entry in status["addresses"]] == [_asked(cluster)]
    cluster.apply(json.dumps(_fixed("203.0.113.1")))

    def reasons() -> list[str]:
        conditions = cluster.get("gateway", "fixed")["status"]["conditions"]
        return [entry["reason"] for entry in conditions if entry["type"] == "Programmed"]

    eventually(lambda: reasons() == ["AddressNotUsable"])
