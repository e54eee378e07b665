"""GRPCRoutes and routes of streams as values of the route model."""

from typing import Any

import msgspec
import pytest

from podwire.gateway.api.attachment import RouteAttachment, route_key, without_rivals
from podwire.gateway.api.backendrefs import BackendFacts
from podwire.gateway.api.backendtls import PolicyTable
from podwire.gateway.api.grpc import compile_grpc
from podwire.gateway.api.hosts import HostRoutes, misdirected, virtual_hosts
from podwire.gateway.api.streams import compile_stream
from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.routes import FixedAnswer, Forward
from podwire.model.gatewayapi import HttpRoute
from podwire.model.gatewayroutes import ApiRoute, GrpcRoute, TcpRoute, UdpRoute
from podwire.model.service import Service

_PORTS = [{"name": "web", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "tls", "port": 443}]
_WSS = [{"name": "wss", "port": 80, "appProtocol": "kubernetes.io/wss"}]
_SERVICES = {
    f"shop/{name}": msgspec.convert(
        {"metadata": {"namespace": "shop", "name": name}, "spec": {"ports": ports}}, Service
    )
    for name, ports in (("a", _PORTS), ("b", _PORTS), ("secure", _WSS))
}
_FACTS = BackendFacts(
    grants=(),
    upstreams=UpstreamFacts(services=_SERVICES, slices=lambda _key: ()),
    policies=PolicyTable((), lambda key: f"no {key}", ""),
)


def _grpc(*rules: dict[str, Any]) -> GrpcRoute:
    return msgspec.convert({"metadata": {"namespace": "shop", "name": "g"}, "spec": {"rules": list(rules)}}, GrpcRoute)


def _stream(kind: type[TcpRoute | UdpRoute], *backends: dict[str, Any]) -> Any:
    spec = {"rules": [{"backendRefs": list(backends)}]}
    return msgspec.convert({"metadata": {"namespace": "shop", "name": "s"}, "spec": spec}, kind)


@pytest.mark.parametrize(
    ("method", "kind", "path"),
    [
        ({"service": "p.S", "method": "Get"}, "exact", "/p.S/Get"),
        ({"service": "p.S"}, "prefix", "/p.S"),
        ({"method": "Get"}, "regex", "/[^/]+/Get"),
        ({"type": "RegularExpression", "service": "p[.]S", "method": "G.*"}, "regex", "/(?:p[.]S)/(?:G.*)"),
        ({"type": "RegularExpression", "method": "G|H"}, "regex", "/(?:[^/]+)/(?:G|H)"),
        ({}, "prefix", "/"),
    ],
)
def test_methods_of_grpc_are_paths(method: dict[str, str], kind: str, path: str) -> None:
    compiled = compile_grpc(_grpc({"matches": [{"method": method}]}), _FACTS)
    (route,) = compiled.routes
    assert (route.route.match.path.kind, route.route.match.path.path) == (kind, path)


def test_the_longest_service_of_grpc_comes_first() -> None:
    methods = [{"method": "Get"}, {"service": "p.S"}, {"service": "p.S", "method": "Get"}, {"service": "p.Longer"}]
    compiled = compile_grpc(_grpc({"matches": [{"method": method} for method in methods]}), _FACTS)
    ranked = sorted(compiled.routes, key=lambda route: route.rank)
    assert [route.route.match.path.path for route in ranked] == ["/p.Longer", "/p.S/Get", "/p.S", "/[^/]+/Get"]


def test_a_backend_of_grpc_speaks_http2_and_fails_as_unavailable() -> None:
    compiled = compile_grpc(_grpc({"backendRefs": [{"name": "a", "port": 80}, {"name": "x", "port": 80}]}), _FACTS)
    assert {backend.protocol for backend in compiled.backends.values()} == {"h2c"}
    (route,) = compiled.routes
    assert isinstance(route.route.action, Forward)
    assert {share.missing_status for share in route.route.action.backends} == {503}
    assert compiled.references.reason == "BackendNotFound"
    assert compile_grpc(_grpc({}), _FACTS).routes[0].route.action == FixedAnswer(status=503)


@pytest.mark.parametrize(
    "rule",
    [
        {"filters": [{"type": "ExtensionRef"}]},
        {"matches": [{"method": {"type": "RegularExpression", "method": "("}}]},
        {"matches": [{"method": {"type": "Prefix", "method": "G"}}]},
    ],
)
def test_a_field_of_grpc_that_is_not_served_is_named(rule: dict[str, Any]) -> None:
    refused = compile_grpc(_grpc(rule), _FACTS).refused
    assert refused.reason == "UnsupportedValue"
    assert refused.message.startswith("spec.rules[0].")


@pytest.mark.parametrize(
    "share",
    [
        {"fraction": {"numerator": 1, "denominator": 0}},
        {"fraction": {"numerator": 3, "denominator": 2}},
        {"percent": 101},
        {"percent": -1},
    ],
)
def test_a_share_of_copies_beyond_all_is_refused(share: dict[str, Any]) -> None:
    mirror = {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "a", "port": 80}, **share}}
    refused = compile_grpc(_grpc({"filters": [mirror]}), _FACTS).refused
    assert refused.message.startswith(f"spec.rules[0].filters[0].requestMirror.{next(iter(share))}: expected 0 to 1")


def test_datagrams_are_shared_by_one_backend_with_weights() -> None:
    route = _stream(UdpRoute, {"name": "a", "port": 53, "weight": 3}, {"name": "b", "port": 53})
    compiled = compile_stream(route, _FACTS)
    assert compiled.target is not None
    (share,) = compiled.target.backends
    assert [member.weight for member in compiled.backends[share.key].shares] == [3, 1]
    assert {backend.protocol for backend in compiled.backends.values()} == {"udp"}


def test_a_port_of_the_other_transport_is_no_backend() -> None:
    assert compile_stream(_stream(TcpRoute, {"name": "a", "port": 53}), _FACTS).references.reason == (
        "UnsupportedProtocol"
    )
    assert compile_stream(_stream(UdpRoute, {"name": "a", "port": 80}), _FACTS).references.reason == (
        "UnsupportedProtocol"
    )


def test_a_websocket_over_tls_needs_a_policy() -> None:
    rule = {"backendRefs": [{"name": "secure", "port": 80}]}
    assert compile_grpc(_grpc(rule), _FACTS).references.reason == "UnsupportedProtocol"


def test_of_rival_routes_for_a_host_the_older_attaches() -> None:
    meta = {"namespace": "shop", "creationTimestamp": "2026-01-02T00:00:00Z"}
    grpc = msgspec.convert({"metadata": {"name": "g", **meta, "creationTimestamp": "2026-01-01T00:00:00Z"}}, GrpcRoute)
    http = msgspec.convert({"metadata": {"name": "h", **meta}}, HttpRoute)
    free = msgspec.convert({"metadata": {"name": "i", **meta}}, HttpRoute)
    pairs: list[tuple[ApiRoute, RouteAttachment]] = [
        (http, RouteAttachment(hosts={"web": ("*.example",), "other": ("*",)})),
        (grpc, RouteAttachment(hosts={"web": ("a.example",)})),
        (free, RouteAttachment(hosts={"web": ("b.example",)})),
    ]
    attached = {route_key(route)[1]: attachment for route, attachment in without_rivals(pairs)}
    assert attached["shop/h"].hosts == {"other": ("*",)}
    assert attached["shop/g"].hosts == {"web": ("a.example",)}
    assert attached["shop/i"].hosts == {"web": ("b.example",)}
    lonely: list[tuple[ApiRoute, RouteAttachment]] = [(http, RouteAttachment(hosts={"web": ("a.example",)})), pairs[1]]
    assert without_rivals(lonely)[0][1].reason == "Conflicted"


def test_hosts_of_another_listener_are_misdirected() -> None:
    hosts = virtual_hosts({"*": (HostRoutes(host="a.example", routes=()),), "b.example": ()})
    answers = {host.hosts[0]: host.routes for host in misdirected(hosts, ["b.example"], "table")}
    assert [route.action for route in answers["b.example"]] == [FixedAnswer(status=421)]
    assert answers["a.example"] == answers["*"] == ()
