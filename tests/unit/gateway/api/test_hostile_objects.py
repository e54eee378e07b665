"""Objects of Gateway API behind the API's validation: none ends the translation of the other ones."""

from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import FEW_VALUES, SERVICE, SLICE, hostile

from podwire.gateway.api.services import desired_service, engine_ports, gateway_services, needed_ports, service_name
from podwire.gateway.api.translate import GatewayApiFacts, translate_api
from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.envoy.resources import resources
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.snapshot import ResourceSnapshot
from podwire.gateway.routes import Certificate, TrustedAuthority
from podwire.kube.decode import decode_object
from podwire.model.backendtls import BackendTlsPolicy
from podwire.model.gatewayapi import Gateway, GatewayClass, GatewayStatusAddress, HttpRoute, ListenerSet, ReferenceGrant
from podwire.model.gatewayroutes import GrpcRoute, TcpRoute, TlsRoute, UdpRoute
from podwire.model.service import EndpointSlice, Service

Json = dict[str, Any]
META = {"name": "web", "namespace": "default", "uid": "u1", "generation": 2}
PARENTS = [{"name": "web", "sectionName": "http", "port": 80}]
BACKEND = {"name": "web", "port": 80}
HEADERS = {"set": [{"name": "X-A", "value": "1"}], "add": [{"name": "X-B", "value": "2"}], "remove": ["X-C"]}
GATEWAY: Json = {
    "metadata": META,
    "spec": {
        "gatewayClassName": "podwire",
        "listeners": [
            {
                "name": "http",
                "hostname": "*.example.com",
                "port": 80,
                "protocol": "HTTP",
                "allowedRoutes": {
                    "namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}},
                    "kinds": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute"}],
                },
            },
            {
                "name": "https",
                "port": 443,
                "protocol": "HTTPS",
                "tls": {"mode": "Terminate", "certificateRefs": [{"kind": "Secret", "name": "tls"}]},
            },
            {"name": "tls", "port": 9443, "protocol": "TLS", "tls": {"mode": "Passthrough"}},
            {"name": "tcp", "port": 9000, "protocol": "TCP"},
            {"name": "udp", "port": 9000, "protocol": "UDP"},
        ],
        "addresses": [{"type": "IPAddress", "value": "192.0.2.1"}],
        "infrastructure": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "allowedListeners": {"namespaces": {"from": "Same"}},
        "tls": {
            "frontend": {
                "default": {"validation": {"caCertificateRefs": [{"kind": "ConfigMap", "name": "ca"}]}},
                "perPort": [{"port": 443, "tls": {"validation": {"mode": "AllowInsecureFallback"}}}],
            },
            "backend": {"clientCertificateRef": {"name": "tls"}},
        },
    },
}
HTTP: Json = {
    "metadata": META,
    "spec": {
        "parentRefs": PARENTS,
        "hostnames": ["a.example.com"],
        "rules": [
            {
                "name": "first",
                "matches": [
                    {
                        "path": {"type": "PathPrefix", "value": "/a"},
                        "headers": [{"type": "RegularExpression", "name": "X-H", "value": "a.*"}],
                        "queryParams": [{"name": "q", "value": "1"}],
                        "method": "GET",
                    }
                ],
                "filters": [
                    {"type": "RequestHeaderModifier", "requestHeaderModifier": HEADERS},
                    {"type": "ResponseHeaderModifier", "responseHeaderModifier": HEADERS},
                    {
                        "type": "URLRewrite",
                        "urlRewrite": {
                            "hostname": "b.example.com",
                            "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/b"},
                        },
                    },
                    {
                        "type": "RequestMirror",
                        "requestMirror": {"backendRef": BACKEND, "fraction": {"numerator": 1, "denominator": 3}},
                    },
                    {
                        "type": "CORS",
                        "cors": {"allowOrigins": ["https://*.example.com"], "allowMethods": ["GET"], "maxAge": 5},
                    },
                ],
                "backendRefs": [BACKEND | {"weight": 3, "filters": []}],
                "timeouts": {"request": "10s", "backendRequest": "2s"},
                "retry": {"codes": [503], "attempts": 2, "backoff": "100ms"},
                "sessionPersistence": {"sessionName": "s", "type": "Cookie", "absoluteTimeout": "1h"},
            },
            {
                "filters": [
                    {
                        "type": "RequestRedirect",
                        "requestRedirect": {
                            "scheme": "https",
                            "hostname": "c.example.com",
                            "port": 443,
                            "statusCode": 301,
                            "path": {"type": "ReplaceFullPath", "replaceFullPath": "/c"},
                        },
                    }
                ]
            },
        ],
    },
}
GRPC: Json = {
    "metadata": META,
    "spec": {
        "parentRefs": PARENTS,
        "hostnames": ["a.example.com"],
        "rules": [
            {
                "matches": [
                    {
                        "method": {"type": "Exact", "service": "a.B", "method": "C"},
                        "headers": [{"type": "Exact", "name": "x", "value": "1"}],
                    }
                ],
                "filters": [{"type": "RequestHeaderModifier", "requestHeaderModifier": HEADERS}],
                "backendRefs": [BACKEND | {"weight": 1}],
            }
        ],
    },
}


def _stream(section: str, **fields: Any) -> Json:
    parents = [{"name": "web", "sectionName": section}]
    rules = [{"name": "all", "backendRefs": [BACKEND | {"weight": 1}]}]
    return {"metadata": META, "spec": {"parentRefs": parents, "rules": rules, **fields}}


KINDS: dict[str, tuple[Json, type[Any]]] = {
    "class": ({"metadata": {"name": "podwire"}, "spec": {"controllerName": "podwire.io/gateway"}}, GatewayClass),
    "gateway": (GATEWAY, Gateway),
    "set": (
        {
            "metadata": META,
            "spec": {
                "parentRef": {"name": "web"},
                "listeners": [{"name": "own", "hostname": "own.example.com", "port": 80, "protocol": "HTTP"}],
            },
        },
        ListenerSet,
    ),
    "http": (HTTP, HttpRoute),
    "grpc": (GRPC, GrpcRoute),
    "tls": (_stream("tls", hostnames=["tls.example.com"]), TlsRoute),
    "tcp": (_stream("tcp"), TcpRoute),
    "udp": (_stream("udp"), UdpRoute),
    "policy": (
        {
            "metadata": META,
            "spec": {
                "targetRefs": [{"group": "", "kind": "Service", "name": "web", "sectionName": "http"}],
                "validation": {
                    "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}],
                    "hostname": "web.example.com",
                    "subjectAltNames": [{"type": "Hostname", "hostname": "x.example.com"}],
                },
            },
        },
        BackendTlsPolicy,
    ),
    "grant": (
        {
            "metadata": META,
            "spec": {
                "from": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "other"}],
                "to": [{"group": "", "kind": "Service", "name": "web"}],
            },
        },
        ReferenceGrant,
    ),
    "service": (SERVICE, Service),
    "slice": (SLICE, EndpointSlice),
}
ROUTES = ("http", "grpc", "tls", "tcp", "udp")
PORTS = {80: 10080, 443: 10443, 9443: 19443, 9000: 19000}


@pytest.mark.parametrize("changed", KINDS)
def test_routes_are_translated_whatever_one_object_has(changed: str) -> None:
    """Up to the messages for the engine; a resource that is no message is refused by itself and named."""
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    known: set[str] = set()
    assert not _refused(objects, known)
    for label, item in hostile(*KINDS[changed], FEW_VALUES):
        try:
            _refused(objects | {changed: item}, known)
        except Exception as failure:
            raise AssertionError(label) from failure


def _refused(objects: Json, known: set[str]) -> dict[tuple[str, str], str]:
    """The resources that are no messages of their type; of entries that are known none is made."""
    gateway, service = objects["gateway"], objects["service"]
    translation = translate_api(
        GatewayApiFacts(
            controller="podwire.io/gateway",
            classes=(objects["class"],),
            gateways=(gateway,),
            sets=(objects["set"],),
            routes=tuple(objects[name] for name in ROUTES),
            policies=(objects["policy"],),
            grants=(objects["grant"],),
            namespaces={"default": {"team": "a"}},
            ports={"default/web": PORTS},
            addresses={"default/web": (GatewayStatusAddress(value="192.0.2.1"),)},
            upstreams=UpstreamFacts(services={"default/web": service}, slices=lambda _: (objects["slice"],)),
            certificate=lambda key: Certificate(name=key, chain=key, key="key"),
            authority=lambda key: TrustedAuthority(name=key, chain=key),
            system="authorities",
        )
    )
    for key, served in translation.ports.items():
        own = engine_ports(gateway_services((service,), "default")).get(key, PORTS)
        needed = needed_ports(served, {listener.port for listener in gateway.spec.listeners}, service)
        assert service_name(key) and desired_service(gateway, "default", own, needed, service)
    planned = repr(translation.entry)
    if planned in known:
        return {}
    known.add(planned)
    snapshot = ResourceSnapshot()
    snapshot.replace(resources(translation.entry, EngineSettings()))
    return snapshot.unreadable
