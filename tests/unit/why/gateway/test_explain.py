"""Which route a URL takes, in words."""

from typing import Any

import msgspec
import pytest
from tests.cases.gateway.ingress_cases import IngressCase, facts_of
from tests.fakes.listing_api import ListingApi, play

from podwire.errors import ConfigError
from podwire.gateway.api.translate import GatewayApiFacts
from podwire.gateway.routes import Certificate
from podwire.kube.client import Client
from podwire.model.gatewayapi import Gateway, GatewayClass, GatewayClassSpec, GatewayStatusAddress, HttpRoute
from podwire.model.ingress import Ingress, IngressClass, IngressClassSpec, IngressHostRule, IngressSpec
from podwire.model.meta import ObjectMeta
from podwire.why.gateway.explain import UrlFacts, UrlQuestion, explain_url, unserved
from podwire.why.gateway.question import ask_url
from podwire.why.gateway.text import render

_CASE = IngressCase(
    name="shop",
    ingresses=(
        {
            "name": "web",
            "hosts": {"web.example": {"Exact /login": "login", "Prefix /": "web"}},
            "annotations": {"denylist-source-range": "192.0.2.0/24"},
        },
        {"name": "secure", "hosts": {"secure.example": {"Prefix /": "web"}}, "tls": {"cert": ["secure.example"]}},
    ),
    requests=(),
)
_CERTIFICATES = {"cert": Certificate(name="shop/cert", chain="x", key="y")}
_ENDPOINTS: dict[str, tuple[str, ...]] = {"login": ("10.244.0.1",), "web": ()}
_INGRESSES = facts_of(_CASE, _ENDPOINTS, 8080, _CERTIFICATES)
_GATEWAY = """
metadata: {name: front, namespace: shop}
spec:
  gatewayClassName: podwire
  listeners:
    - {name: http, port: 80, protocol: HTTP}
    - {name: alt, port: 8080, protocol: HTTP}
"""
_ROUTE = """
metadata: {name: api, namespace: shop}
spec:
  parentRefs: [{name: front, sectionName: http}]
  hostnames: [api.example]
  rules:
    - matches: [{path: {type: PathPrefix, value: /v1}, method: GET, queryParams: [{name: debug, value: "1"}]}]
      backendRefs: [{name: login, port: 8080, weight: 3}, {name: web, port: 8080, weight: 1}]
    - backendRefs: [{name: absent, port: 8080}]
"""
_GATEWAYS = GatewayApiFacts(
    controller="podwire.io/gateway",
    classes=(
        GatewayClass(metadata=ObjectMeta(name="podwire"), spec=GatewayClassSpec(controller_name="podwire.io/gateway")),
    ),
    gateways=(msgspec.yaml.decode(_GATEWAY, type=Gateway),),
    routes=(msgspec.yaml.decode(_ROUTE, type=HttpRoute),),
    addresses={"shop/front": (GatewayStatusAddress(value="192.0.2.7"),)},
    upstreams=_INGRESSES.upstreams,
    certificate=lambda key: Certificate(name=key, chain=""),
)
_FACTS = UrlFacts(ingresses=_INGRESSES, addresses=("192.0.2.6",), gateways=_GATEWAYS)


def _text(url: str, method: str = "GET") -> str:
    return "\n".join(render(explain_url(UrlQuestion(url, method), _FACTS)))


def test_the_route_and_its_endpoints_are_named() -> None:
    text = _text("http://web.example/login?next=/", "post")
    assert text.startswith("POST http://web.example/login?next=/: forwarded to a pod")
    assert "takes path /login: Ingress shop/web spec.rules[0].http.paths[0]" in text
    assert "not in 192.0.2.0/24" in text
    assert "backend shop/login:8080 gets 100 %: 10.244.0.1:8080" in text


def test_the_backend_that_answers_errors_is_named() -> None:
    annotations = {"default-backend": "login", "custom-http-errors": "502,404"}
    ingress = {"name": "web", "hosts": {"web.example": {"Prefix /": "web"}}, "annotations": annotations}
    facts = facts_of(msgspec.structs.replace(_CASE, ingresses=(ingress, *_CASE.ingresses[1:])), _ENDPOINTS, 8080, {})
    told = render(explain_url(UrlQuestion("http://web.example/", "GET"), UrlFacts(ingresses=facts)))
    assert "errors 404, 502 are answered by shop/login:8080" in "\n".join(told)


def test_a_backend_without_endpoints_answers_503() -> None:
    text = _text("http://web.example/other")
    assert "passes by path /login" in text
    assert "answered with 503" in text
    assert "no endpoint is ready" in text


def test_a_certificate_and_a_redirect_are_named() -> None:
    assert "certificate shop/cert, for secure.example" in _text("https://secure.example/")
    assert "redirected with 308 to https" in _text("http://secure.example/")


def test_an_unknown_host_says_who_else_has_it() -> None:
    rule = IngressHostRule(host="other.example")
    ingress = Ingress(metadata=ObjectMeta(name="x", namespace="shop"), spec=IngressSpec(rules=(rule,)))
    classes = (IngressClass(metadata=ObjectMeta(name="nginx"), spec=IngressClassSpec(controller="k8s.io/nginx")),)
    foreign = unserved((ingress,), classes, "podwire.io/ingress")
    facts = UrlFacts(ingresses=_INGRESSES, foreign=foreign)
    (entrance,) = explain_url(UrlQuestion("http://other.example/"), facts).entrances
    assert entrance.outcome == "answered with 404: no route has this host"
    (problem,) = entrance.problems
    assert problem == "Ingress shop/x has this host and is not served: it names no class, and no class is the default"


@pytest.mark.parametrize("url", ["web.example/login", "ftp://web.example/", "http:///x", "http://web.example:99999/"])
def test_a_text_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        explain_url(UrlQuestion(url), _FACTS)


def test_a_route_of_a_gateway_is_named_with_its_shares() -> None:
    text = _text("http://api.example/v1/x?debug=1")
    assert text.startswith(
        "GET http://api.example/v1/x?debug=1: forwarded to a pod\n  at Gateway shop/front, 192.0.2.7"
    )
    assert "listener gateway shop/front:80: HTTP on port 80" in text
    route = "HTTPRoute shop/api spec.rules[0].matches[0]"
    assert f"takes paths below /v1, method GET, query parameter debug = 1: {route}" in text
    assert "backend shop/login:8080 gets 75 %: 10.244.0.1:8080" in text
    assert "backend shop/web:8080 gets 25 %: no endpoint is ready" in text
    assert "at Ingresses" not in text


def test_a_reference_that_is_not_followed_is_named() -> None:
    text = _text("http://api.example/v2")
    assert "answered with 500" in text
    assert "HTTPRoute shop/api: ResolvedRefs is False, BackendNotFound: spec.rules[1].backendRefs[0]" in text


def test_all_ways_in_say_why_they_have_no_route() -> None:
    text = _text("http://absent.example/")
    assert "at Ingresses, 192.0.2.6" in text and "at Gateway shop/front, 192.0.2.7" in text
    assert text.count("answered with 404: no route ") == 2
    assert "at Ingresses" not in _text("http://192.0.2.7/")
    assert "no Gateway has a listener for this port" in _text("http://api.example:81/")


def test_another_port_of_a_gateway_has_routes_of_its_own() -> None:
    text = _text("http://api.example:8080/v1?debug=1")
    assert "listener gateway shop/front:8080" in text and "answered with 404" in text


def test_a_connection_that_is_passed_on_names_its_route() -> None:
    listener = {"name": "tls", "port": 443, "protocol": "TLS", "tls": {"mode": "Passthrough"}}
    objects: dict[str, list[dict[str, Any]]] = {
        "gatewayclasses": [{"metadata": {"name": "podwire"}, "spec": {"controllerName": "podwire.io/gateway"}}],
        "gateways": [_object("front", {"gatewayClassName": "podwire", "listeners": [listener]})],
        "tlsroutes": [
            _object(
                "db",
                {
                    "parentRefs": [{"name": "front"}],
                    "hostnames": ["db.example"],
                    "rules": [{"backendRefs": [{"name": "db", "port": 443}]}],
                },
            )
        ],
        "services": [_object("db", {"ports": [{"port": 443}]})],
    }
    answers: list[str] = []

    async def scenario(_api: ListingApi, client: Client) -> None:
        answers.extend(render(await ask_url(UrlQuestion("https://db.example/"), client)))

    play(objects, scenario)
    assert answers[0] == "GET https://db.example/: passed on without being read, by TLSRoute shop/db"


def _object(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"namespace": "shop", "name": name}, "spec": spec}
