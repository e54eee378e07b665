"""Which route a URL takes, in words."""

import pytest
from tests.cases.gateway.ingress_cases import IngressCase, facts_of

from podwire.errors import ConfigError
from podwire.gateway.routes import Certificate
from podwire.model.ingress import Ingress, IngressClass, IngressClassSpec, IngressHostRule, IngressSpec
from podwire.model.meta import ObjectMeta
from podwire.why.gateway.explain import UrlQuestion, explain_url, unserved
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
_FACTS = facts_of(_CASE, {"login": ("10.244.0.1",), "web": ()}, 8080, _CERTIFICATES)


def _text(url: str, method: str = "GET") -> str:
    return "\n".join(render(explain_url(UrlQuestion(url, method), _FACTS)))


def test_the_route_and_its_endpoints_are_named() -> None:
    text = _text("http://web.example/login?next=/", "post")
    assert text.startswith("POST http://web.example/login?next=/: forwarded to a pod")
    assert "takes path /login: Ingress shop/web spec.rules[0].http.paths[0]" in text
    assert "not in 192.0.2.0/24" in text
    assert "backend shop/login:8080 gets 100 %: 10.244.0.1:8080" in text


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
    answer = explain_url(UrlQuestion("http://other.example/"), _FACTS, foreign)
    assert answer.outcome == "answered with 404: no Ingress has this host"
    (problem,) = answer.problems
    assert problem == "Ingress shop/x has this host and is not served: it names no class, and no class is the default"


@pytest.mark.parametrize("url", ["web.example/login", "ftp://web.example/", "http:///x"])
def test_a_text_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        explain_url(UrlQuestion(url), _FACTS)
