"""The cases of ``gateway_api.yaml`` as objects: Gateways, routes and grants, their status, and requests to them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from podwire.gateway.api.translate import GatewayApiFacts
from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.routes import Certificate
from podwire.model.gatewayapi import (
    Gateway,
    GatewayClass,
    GatewayClassSpec,
    GatewayStatusAddress,
    HttpRoute,
    ReferenceGrant,
)
from podwire.model.meta import ObjectMeta, key_of
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, ServiceSpec

CONTROLLER = "podwire.io/gateway"
CLASS = "podwire"
NAMESPACES = {"infra": {"team": "infra"}, "app": {"team": "backend"}, "web": {"team": "backend"}}
SERVICES = ("infra/infra-v1", "infra/infra-v2", "infra/infra-v3", "app/app-v1", "app/app-v2", "web/web-v1")
ALIASES = dict.fromkeys(
    ("infra/manual-endpointslices", "infra/headless", "infra/headless-manual-endpointslices"), "infra/infra-v1"
)
"""Services with the endpoints of another one: such without a selector, and headless ones."""
CERTIFICATES = {"infra/wildcards": ("*.org", "*.wildcard.org", "*.test.com"), "web/certificate": ("*.org",)}
_PORTS = (80, 443, 8080, 8090)


class ApiRequest(msgspec.Struct, frozen=True, rename=lambda name: name.replace("_", " ")):
    """A request and its outcome; what is absent is not compared."""

    request: str
    to: str
    sni: str = ""
    headers: dict[str, str] = {}
    backend_headers: dict[str, str] = {}
    repeat: int = 1
    status: int = 200
    service: str = ""
    path: str = ""
    host: str = ""
    request_headers: dict[str, str] = {}
    no_request_headers: tuple[str, ...] = ()
    answer_headers: dict[str, str] = {}
    no_answer_headers: tuple[str, ...] = ()
    redirect: dict[str, str] | None = None
    mirrored: tuple[str, ...] | dict[str, int] = ()
    share: dict[str, float] = {}
    named_by_header: str = ""

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


class ApiCase(msgspec.Struct, frozen=True, kw_only=True):
    """Objects, the status that they get, and requests."""

    name: str
    test: str
    generation: int = 1
    gateways: dict[str, dict[str, Any]] = {}
    routes: dict[str, dict[str, Any]] = {}
    grants: dict[str, dict[str, Any]] = {}
    expect: tuple[dict[str, Any], ...] = ()
    requests: tuple[ApiRequest, ...] = ()


def core_tests() -> tuple[str, ...]:
    """The names of the core tests of the profile."""
    return tuple(_content()["core tests"])


def _content() -> Any:
    return yaml.safe_load(Path(__file__).with_name("gateway_api.yaml").read_text(encoding="utf-8"))


def api_cases() -> tuple[ApiCase, ...]:
    """All cases of the file, each with the Gateways that all share."""
    content = _content()
    cases = msgspec.convert(content["cases"], tuple[ApiCase, ...])
    return tuple(msgspec.structs.replace(case, gateways=content["gateways"] | case.gateways) for case in cases)


def api_facts(
    case: ApiCase,
    endpoints: Mapping[str, tuple[str, int]],
    certificate: Callable[[str], Certificate | str],
    engine_port: Callable[[str, int], int],
) -> GatewayApiFacts:
    """What the translation reads; ``endpoints`` are those of Services, ``engine_port`` that of a Gateway's port."""
    known = {**endpoints} | {alias: endpoints[name] for alias, name in ALIASES.items()}
    gateways = tuple(_gateway(key, entry, case.generation) for key, entry in case.gateways.items())
    return GatewayApiFacts(
        controller=CONTROLLER,
        classes=(
            GatewayClass(
                metadata=ObjectMeta(name=CLASS, generation=case.generation),
                spec=GatewayClassSpec(controller_name=CONTROLLER),
            ),
        ),
        gateways=gateways,
        routes=tuple(_route(key, entry, case.generation) for key, entry in case.routes.items()),
        grants=tuple(_grant(key, entry) for key, entry in case.grants.items()),
        namespaces={name: {"kubernetes.io/metadata.name": name, **labels} for name, labels in NAMESPACES.items()},
        ports={
            key_of(gateway.metadata): {
                listener.port: engine_port(key_of(gateway.metadata), listener.port)
                for listener in gateway.spec.listeners
                if listener.port in _PORTS
            }
            for gateway in gateways
        },
        addresses={key_of(gateway.metadata): (GatewayStatusAddress(value="192.0.2.1"),) for gateway in gateways},
        upstreams=UpstreamFacts(
            services={key: _service(key) for key in known},
            slices=lambda key: (_slice(*known[key]),),
        ),
        certificate=certificate,
    )


def _meta(key: str, generation: int) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    return {"namespace": namespace, "name": name, "generation": generation}


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
    return {"name": name, "allowedRoutes": allowed, **value}


def _reference(text: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(text, dict):
        return text
    namespace, _, name = text.rpartition("/")
    return {"name": name, **({"namespace": namespace} if namespace else {})}


def _route(key: str, entry: dict[str, Any], generation: int) -> HttpRoute:
    parents = [{"name": parent} if isinstance(parent, str) else parent for parent in entry["to"]]
    spec = {
        "parentRefs": parents,
        "hostnames": entry.get("hosts", ()),
        "rules": [_rule(rule) for rule in entry["rules"]],
    }
    return msgspec.convert({"metadata": _meta(key, generation), "spec": spec}, HttpRoute)


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = {name: rule[name] for name in ("timeouts", "name") if name in rule}
    value["matches"] = [_match(match) for match in rule.get("matches", ())]
    value["filters"] = [_filter(entry) for entry in rule.get("filters", ())]
    value["backendRefs"] = [_backend(entry) for entry in rule.get("backends", ())]
    return value


def _match(match: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = {"method": match["method"]} if "method" in match else {}
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
    kind = "URLRewrite" if field == "urlRewrite" else field[0].upper() + field[1:]
    return {"type": kind, **entry}


def _backend(entry: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(entry, dict) and "name" in entry:
        return entry | {"filters": [_filter(value) for value in entry.get("filters", ())]}
    text, weight = next(iter(entry.items())) if isinstance(entry, dict) else (entry, 1)
    return {**_reference(text), "port": 8080, "weight": weight}


def _grant(key: str, entry: dict[str, Any]) -> ReferenceGrant:
    origins = [{"group": group, "kind": kind, "namespace": namespace} for group, kind, namespace in entry["from"]]
    targets = [{"group": group, "kind": kind, **({"name": name} if name else {})} for group, kind, name in entry["to"]]
    return msgspec.convert({"metadata": _meta(key, 1), "spec": {"from": origins, "to": targets}}, ReferenceGrant)


def _service(key: str) -> Service:
    namespace, _, name = key.partition("/")
    ips = ("None",) if "headless" in name else ("10.96.0.1",)
    spec = ServiceSpec(ports=(ServicePort(name="http", port=8080),), cluster_ips=ips)
    return Service(metadata=ObjectMeta(name=name, namespace=namespace), spec=spec)


def _slice(address: str, port: int) -> EndpointSlice:
    return EndpointSlice(ports=(EndpointPort(name="http", port=port),), endpoints=(Endpoint(addresses=(address,)),))
