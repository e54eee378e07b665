"""The cases of ``gateway_api*.yaml`` as objects: Gateways, routes, policies and grants, their status, and requests."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from podwire.gateway.api.translate import GatewayApiFacts
from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.routes import Certificate, TrustedAuthority
from podwire.model.backendtls import BackendTlsPolicy
from podwire.model.gatewayapi import (
    Gateway,
    GatewayClass,
    GatewayClassSpec,
    GatewayStatusAddress,
    HttpRoute,
    ListenerSet,
    ReferenceGrant,
)
from podwire.model.gatewayroutes import ApiRoute, GrpcRoute, TcpRoute, TlsRoute, UdpRoute
from podwire.model.meta import ObjectMeta, key_of
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec

CONTROLLER = "podwire.io/gateway"
CLASS = "podwire"
NAMESPACES = {"infra": {"team": "infra"}, "app": {"team": "backend"}, "web": {"team": "backend"}}
_PLAIN = {
    "http": {"port": 8080, "of": "http"},
    "h2c": {"port": 8081, "of": "grpc", "appProtocol": "kubernetes.io/h2c"},
    "ws": {"port": 8082, "of": "http", "appProtocol": "kubernetes.io/ws"},
}
_GRPC = {"grpc": {"port": 8080, "of": "grpc"}}
_TLS = {"https": {"port": 443, "of": "https"}}
PortOfService = Mapping[str, Mapping[str, Any]]
_PORTS_OF: dict[str, PortOfService] = {
    "infra/infra-v1": _PLAIN,
    "infra/infra-v2": _PLAIN,
    "infra/infra-v3": _PLAIN,
    "app/app-v1": _PLAIN,
    "app/app-v2": _PLAIN,
    "web/web-v1": _PLAIN,
    "infra/grpc-v1": _GRPC,
    "infra/grpc-v2": _GRPC,
    "infra/grpc-v3": _GRPC,
    "infra/tls-backend": _TLS,
    "infra/tls-backend-2": _TLS,
    "app/tls-backend": _TLS,
    "infra/tcp-backend": {"tcp": {"port": 3000, "of": "http"}, "tls": {"port": 8443, "of": "https"}},
    "infra/coredns": {"udp": {"port": 53, "of": "udp"}},
}
"""Services of all cases with their ports; ``of`` says what listens at the endpoints."""
SERVICES = tuple(_PORTS_OF)
ALIASES = dict.fromkeys(
    ("infra/manual-endpointslices", "infra/headless", "infra/headless-manual-endpointslices"), "infra/infra-v1"
)
"""Services with the endpoints of another one: such without a selector, and headless ones."""
CERTIFICATES = {
    "infra/wildcards": ("*.org", "*.wildcard.org", "*.test.com"),
    "web/certificate": ("*.org",),
    "infra/terminate": ("tls.example.com",),
    "infra/tls-checks-client-certificate": ("client.example.com",),
}
AUTHORITIES = {
    "infra/tls-checks-ca-certificate": "backends",
    "infra/mismatch-ca-certificate": "nobody",
    "infra/tls-validity-checks-ca-certificate": "default",
    "infra/tls-validity-checks-per-port-ca-certificate": "per-port",
}
"""ConfigMaps with authorities, and whose certificates each has."""
BACKEND_NAMES = ("abc.example.com", "other.example.com", "spiffe://abc.example.com/test-identity")
"""The names in the certificate of the Services that speak TLS."""


class ApiRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=lambda name: name.replace("_", " ")):
    """A request and its outcome; what is absent is not compared."""

    request: str
    to: str
    sni: str = ""
    headers: dict[str, str] = {}
    backend_headers: dict[str, str] = {}
    protocol: str = ""
    client_certificate: str = ""
    repeat: int = 1
    status: int | tuple[int, ...] = 200
    code: str = "OK"
    refused: bool = False
    passthrough: bool = False
    backend_sni: str = ""
    backend_client: bool = False
    service: str = ""
    path: str = ""
    host: str = ""
    request_headers: dict[str, str] = {}
    no_request_headers: tuple[str, ...] = ()
    answer_headers: dict[str, str | tuple[str, ...]] = {}
    no_answer_headers: tuple[str, ...] = ()
    redirect: dict[str, str] | None = None
    mirrored: tuple[str, ...] | dict[str, int] = ()
    share: dict[str, float] = {}
    named_by_header: str = ""

    @property
    def statuses(self) -> tuple[int, ...]:
        """Those that will do."""
        return (self.status,) if isinstance(self.status, int) else self.status

    @property
    def method(self) -> str:
        """The method."""
        return self.request.partition(" ")[0]

    @property
    def url(self) -> Any:
        """The parts of the URL."""
        return urlsplit(self.request.partition(" ")[2])

    @property
    def target(self) -> str:
        """The path with its query."""
        return str(self.url.path) + (f"?{self.url.query}" if self.url.query else "")

    @property
    def server_name(self) -> str:
        """The server name of a request over TLS, else empty."""
        return self.sni or str(self.url.hostname) if self.url.scheme == "https" else ""

    @property
    def gateway(self) -> tuple[str, int]:
        """The Gateway and its port."""
        key, _, port = self.to.rpartition(":")
        return key, int(port)


class ApiCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Objects, the status that they get, and requests."""

    name: str
    test: str
    generation: int = 1
    gateways: dict[str, dict[str, Any]] = {}
    sets: dict[str, dict[str, Any]] = {}
    routes: dict[str, dict[str, Any]] = {}
    policies: dict[str, dict[str, Any]] = {}
    services: dict[str, dict[str, Any]] = {}
    namespaces: dict[str, dict[str, str]] = {}
    grants: dict[str, dict[str, Any]] = {}
    expect: tuple[dict[str, Any], ...] = ()
    requests: tuple[ApiRequest, ...] = ()


def core_tests() -> tuple[str, ...]:
    """The names of the core tests of the profile."""
    return tuple(_content()["core tests"])


@cache
def _content() -> Any:
    return yaml.load(Path(__file__).with_name("gateway_api.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


@cache
def api_cases() -> tuple[ApiCase, ...]:
    """All cases of the files, each with the Gateways that all share."""
    content = _content()
    more = sorted(Path(__file__).parent.glob("gateway_api_*.yaml"))
    documents = [content, *(yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) for file in more)]
    cases = [case for document in documents for case in msgspec.convert(document["cases"], tuple[ApiCase, ...])]
    return tuple(msgspec.structs.replace(case, gateways=content["gateways"] | case.gateways) for case in cases)


_IN_CLUSTER = (
    "BackendTLSPolicy",
    "GRPC",
    "GatewayFrontend",
    "GatewayInvalidFrontendClientCertificateValidation",
    "GatewayInvalidTLSBackendConfiguration",
    "GatewayTLSBackendClientCertificate",
    "HTTPRouteCORS",
    "HTTPRouteDisallowedKind",
    "HTTPRouteInvalidParentRefNotMatchingListenerPort",
    "HTTPRouteRetry",
    "ListenerSet",
    "TCPRoute",
    "TLSRoute",
    "UDPRoute",
)


def cluster_cases() -> tuple[ApiCase, ...]:
    """The cases whose objects are written to the API of a cluster: those of the kinds beyond HTTPRoute."""
    return tuple(case for case in api_cases() if case.expect and case.test.startswith(_IN_CLUSTER))


def conformance() -> dict[str, dict[str, Any]]:
    """The tests of Gateway API's conformance suite by name: support level, and what shows it or why nothing does."""
    text = Path(__file__).with_name("conformance.yaml").read_text(encoding="utf-8")
    return dict(yaml.load(text, Loader=yaml.CSafeLoader))


def services_of(case: ApiCase) -> dict[str, PortOfService]:
    """The ports of all Services of a case."""
    own = {key: entry["ports"] for key, entry in case.services.items()}
    return {**_PORTS_OF, **{alias: _PORTS_OF[name] for alias, name in ALIASES.items()}, **own}


class CaseMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a case runs: the addresses of Services, the ports on which their endpoints listen, and what is read.

    ``engine_port`` gives the port of the engines for that of a Gateway.
    """

    addresses: Mapping[str, str]
    ports: Mapping[str, int]
    certificate: Callable[[str], Certificate | str]
    authority: Callable[[str], TrustedAuthority | str]
    engine_port: Callable[[str, int], int]
    system: str = ""
    """The authorities that the system trusts."""


def api_facts(case: ApiCase, machine: CaseMachine) -> GatewayApiFacts:
    """What the translation reads."""
    services = services_of(case)
    gateways = tuple(_gateway(key, entry, case.generation) for key, entry in case.gateways.items())
    sets = tuple(_set(key, entry, case.generation) for key, entry in case.sets.items())
    ports: dict[str, dict[int, int]] = {key: {} for key in case.gateways}
    listeners = [(key_of(gateway.metadata), gateway.spec.listeners) for gateway in gateways]
    for parent, own in (*listeners, *((_parent_of(value), value.spec.listeners) for value in sets)):
        for listener in own:
            if listener.protocol != "INVALID":
                ports[parent][listener.port] = machine.engine_port(parent, listener.port)
    return GatewayApiFacts(
        controller=CONTROLLER,
        classes=(
            GatewayClass(
                metadata=ObjectMeta(name=CLASS, generation=case.generation),
                spec=GatewayClassSpec(controller_name=CONTROLLER),
            ),
        ),
        gateways=gateways,
        sets=sets,
        routes=tuple(_route(key, entry, case.generation) for key, entry in case.routes.items()),
        policies=tuple(_policy(key, entry, case.generation) for key, entry in case.policies.items()),
        grants=tuple(_grant(key, entry) for key, entry in case.grants.items()),
        namespaces={
            name: {"kubernetes.io/metadata.name": name, **labels}
            for name, labels in (NAMESPACES | case.namespaces).items()
        },
        ports=ports,
        addresses={key: (GatewayStatusAddress(value="192.0.2.1"),) for key in case.gateways},
        upstreams=UpstreamFacts(
            services={key: _service(key, entry) for key, entry in services.items()},
            slices=lambda key: (_slice(machine, ALIASES.get(key, key), services[key]),),
        ),
        certificate=machine.certificate,
        authority=machine.authority,
        system=machine.system,
    )


def _parent_of(value: ListenerSet) -> str:
    return f"{value.spec.parent_ref.namespace}/{value.spec.parent_ref.name}"


def _meta(key: str, generation: int) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    return {"namespace": namespace, "name": name, "generation": generation}


def _set(key: str, entry: dict[str, Any], generation: int) -> ListenerSet:
    namespace, _, name = entry["to"].partition("/")
    listeners = [_listener(known, value) for known, value in entry["listeners"].items()]
    spec = {"parentRef": {"name": name, "namespace": namespace}, "listeners": listeners}
    return msgspec.convert({"metadata": _meta(key, generation), "spec": spec}, ListenerSet)


def _policy(key: str, entry: dict[str, Any], generation: int) -> BackendTlsPolicy:
    targets = []
    for text in entry["targets"]:
        name, _, section = text.partition(":")
        targets.append({"name": name, **({"sectionName": section} if section else {})})
    authorities = [
        {"kind": "ConfigMap", "name": name} if isinstance(name, str) else name for name in entry.get("authorities", ())
    ]
    validation = {
        "hostname": entry["hostname"],
        "caCertificateRefs": authorities,
        "subjectAltNames": entry.get("names", []),
        **({"wellKnownCACertificates": "System"} if entry.get("system") else {}),
    }
    spec = {"targetRefs": targets, "validation": validation}
    return msgspec.convert({"metadata": _meta(key, generation), "spec": spec}, BackendTlsPolicy)


def _gateway(key: str, entry: dict[str, Any], generation: int) -> Gateway:
    spec = {name: value for name, value in entry.items() if name != "listeners"}
    spec["listeners"] = [_listener(name, value) for name, value in entry["listeners"].items()]
    return msgspec.convert({"metadata": _meta(key, generation), "spec": {"gatewayClassName": CLASS, **spec}}, Gateway)


def _listener(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    namespaces: dict[str, Any] = {"from": entry.get("from", "Same")}
    if "namespaces" in entry:
        namespaces = {"from": "Selector", "selector": {"matchLabels": entry["namespaces"]}}
    allowed = {"namespaces": namespaces, "kinds": [{"kind": kind} for kind in entry.get("kinds", ())]}
    value: dict[str, Any] = {field: entry[field] for field in ("port", "protocol", "hostname") if field in entry}
    if "certificates" in entry:
        value["tls"] = {"certificateRefs": [_reference(secret) for secret in entry["certificates"]]}
    if "mode" in entry:
        value["tls"] = {"mode": entry["mode"]}
    return {"name": name, "allowedRoutes": allowed, **value}


def _reference(text: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    namespace, _, name = text.rpartition("/")
    return {"name": name, **({"namespace": namespace} if namespace else {})}


_KINDS: dict[str, type[ApiRoute]] = {
    "HTTPRoute": HttpRoute,
    "GRPCRoute": GrpcRoute,
    "TLSRoute": TlsRoute,
    "TCPRoute": TcpRoute,
    "UDPRoute": UdpRoute,
}


def _route(key: str, entry: dict[str, Any], generation: int) -> ApiRoute:
    parents = [{"name": parent} if isinstance(parent, str) else parent for parent in entry["to"]]
    spec = {
        "parentRefs": parents,
        "hostnames": entry.get("hosts", ()),
        "rules": [_rule(rule) for rule in entry["rules"]],
    }
    kind = _KINDS[entry.get("kind", "HTTPRoute")]
    meta = _meta(key, generation) | {"creationTimestamp": entry.get("created", "2026-01-01T00:00:00Z")}
    return msgspec.convert({"metadata": meta, "spec": spec}, kind)


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = {name: rule[name] for name in ("timeouts", "retry", "name") if name in rule}
    value["matches"] = [_match(match) for match in rule.get("matches", ())]
    value["filters"] = [_filter(entry) for entry in rule.get("filters", ())]
    value["backendRefs"] = [_backend(entry) for entry in rule.get("backends", ())]
    return value


def _match(match: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = {"method": match["method"]} if "method" in match else {}
    if "grpc" in match:
        value["method"] = match["grpc"]
    if "path" in match:
        kind, _, path = match["path"].partition(" ")
        value["path"] = {"type": kind, "value": path}
    value["headers"] = [_value(*item) for item in match.get("headers", {}).items()]
    value["queryParams"] = [_value(*item) for item in match.get("query", {}).items()]
    return value


def _value(name: str, text: str) -> dict[str, Any]:
    kind = "RegularExpression" if text.startswith("~") else "Exact"
    return {"name": name, "type": kind, "value": text.removeprefix("~")}


def _filter(entry: dict[str, Any]) -> dict[str, Any]:
    (field,) = entry
    kind = {"urlRewrite": "URLRewrite", "cors": "CORS"}.get(field, field[0].upper() + field[1:])
    return {"type": kind, **entry}


def _backend(entry: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(entry, dict) and "name" in entry:
        return entry | {"filters": [_filter(value) for value in entry.get("filters", ())]}
    text, weight = next(iter(entry.items())) if isinstance(entry, dict) else (entry, 1)
    name, _, port = text.partition(":")
    return {**_reference(name), "port": int(port or 8080), "weight": weight}


def _grant(key: str, entry: dict[str, Any]) -> ReferenceGrant:
    origins = [{"group": group, "kind": kind, "namespace": namespace} for group, kind, namespace in entry["from"]]
    targets = [{"group": group, "kind": kind, **({"name": name} if name else {})} for group, kind, name in entry["to"]]
    return msgspec.convert({"metadata": _meta(key, 1), "spec": {"from": origins, "to": targets}}, ReferenceGrant)


def _service(key: str, entry: PortOfService) -> Service:
    namespace, _, name = key.partition("/")
    ips = ("None",) if "headless" in name else ("10.96.0.1",)
    ports = tuple(
        ServicePort(
            name=port_name,
            port=port["port"],
            protocol="UDP" if port["of"] == "udp" else "TCP",
            app_protocol=port.get("appProtocol"),
        )
        for port_name, port in entry.items()
    )
    meta = ObjectMeta(name=name, namespace=namespace)
    return Service(metadata=meta, spec=ServiceSpec(ports=ports, cluster_ips=ips))


def _slice(machine: CaseMachine, key: str, entry: PortOfService) -> EndpointSlice:
    ports = tuple(EndpointPort(name=name, port=machine.ports[port["of"]]) for name, port in entry.items())
    return EndpointSlice(ports=ports, endpoints=(Endpoint(addresses=(machine.addresses[key],)),))
