"""Objects behind the API's validation: no Ingress, class, Service or slice ends the translation of other Ingresses."""

from typing import Any

import msgspec
import pytest
from tests.fakes.hostile_objects import FEW_VALUES, SERVICE, SLICE, hostile

from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.envoy.resources import resources
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.snapshot import ResourceSnapshot
from podwire.gateway.ingress.classes import served_ingresses
from podwire.gateway.ingress.translate import IngressFacts, translate
from podwire.gateway.routes import Certificate, TrustedAuthority
from podwire.kube.decode import decode_object
from podwire.model.ingress import Ingress, IngressClass
from podwire.model.service import EndpointSlice, Service

Json = dict[str, Any]
META = {"name": "web", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
TO_WEB = {"service": {"name": "web", "port": {"number": 80}}}
_OWN = {
    "rewrite-target": "/$2",
    "use-regex": "true",
    "ssl-redirect": "true",
    "app-root": "/app",
    "permanent-redirect": "https://example.com/$request_uri",
    "permanent-redirect-code": "308",
    "from-to-www-redirect": "true",
    "server-alias": "b.example.com",
    "whitelist-source-range": "10.0.0.0/8,2001:db8::/32",
    "denylist-source-range": "10.9.0.0/16",
    "auth-type": "basic",
    "auth-secret": "users",
    "auth-realm": "realm",
    "auth-url": "http://auth.example.com/check",
    "auth-signin": "https://auth.example.com/login",
    "auth-response-headers": "X-User",
    "auth-tls-secret": "default/ca",
    "auth-tls-verify-client": "on",
    "mirror-target": "https://mirror.example.com$request_uri",
    "default-backend": "web",
    "custom-headers": "default/headers",
    "limit-rps": "5",
    "limit-burst-multiplier": "3",
    "limit-whitelist": "10.0.0.1",
    "proxy-body-size": "8m",
    "proxy-connect-timeout": "5",
    "proxy-read-timeout": "60s",
    "proxy-next-upstream": "error timeout",
    "proxy-next-upstream-tries": "3",
    "backend-protocol": "HTTPS",
    "proxy-ssl-secret": "default/ca",
    "proxy-ssl-verify": "on",
    "affinity": "cookie",
    "session-cookie-name": "route",
    "session-cookie-expires": "3600",
    "session-cookie-samesite": "Lax",
    "enable-cors": "true",
    "cors-allow-origin": "https://*.example.com",
    "cors-max-age": "600",
    "upstream-vhost": "web.internal",
    "upstream-hash-by": "$request_uri",
    "load-balance": "ewma",
    "x-forwarded-prefix": "/prefix",
}
INGRESS: Json = {
    "metadata": META | {"annotations": {f"nginx.ingress.kubernetes.io/{name}": text for name, text in _OWN.items()}},
    "spec": {
        "ingressClassName": "podwire",
        "defaultBackend": TO_WEB,
        "tls": [{"hosts": ["a.example.com"], "secretName": "tls"}],
        "rules": [
            {
                "host": "a.example.com",
                "http": {
                    "paths": [
                        {"path": "/a", "pathType": "Prefix", "backend": TO_WEB},
                        {"path": "/b/(.*)", "pathType": "ImplementationSpecific", "backend": TO_WEB},
                    ]
                },
            }
        ],
    },
}
CANARY: Json = {
    "metadata": META
    | {
        "annotations": {
            f"nginx.ingress.kubernetes.io/{name}": text
            for name, text in {
                "canary": "true",
                "canary-by-header": "X-Canary",
                "canary-by-header-value": "yes",
                "canary-by-header-pattern": "y.*",
                "canary-by-cookie": "canary",
                "canary-weight": "30",
                "canary-weight-total": "100",
            }.items()
        }
    },
    "spec": INGRESS["spec"],
}
KINDS: dict[str, tuple[Json, type[Any]]] = {
    "ingress": (INGRESS, Ingress),
    "canary": (CANARY, Ingress),
    "class": (
        {"metadata": {"name": "podwire"}, "spec": {"controller": "podwire.io/ingress", "parameters": None}},
        IngressClass,
    ),
    "service": (SERVICE, Service),
    "slice": (SLICE, EndpointSlice),
}
PLAIN: Json = {"metadata": META | {"name": "plain"}, "spec": INGRESS["spec"]}


@pytest.mark.parametrize("changed", KINDS)
def test_ingresses_are_translated_whatever_one_object_has(changed: str) -> None:
    """Up to the messages for the engine; a resource that is no message is refused by itself and named."""
    objects = {name: decode_object(msgspec.json.encode(written), kind) for name, (written, kind) in KINDS.items()}
    objects["plain"] = decode_object(msgspec.json.encode(PLAIN), Ingress)
    known: set[str] = set()
    assert not _refused(objects, known)
    for label, item in hostile(*KINDS[changed], FEW_VALUES):
        try:
            _refused(objects | {changed: item}, known)
        except Exception as failure:
            raise AssertionError(label) from failure


def _refused(objects: Json, known: set[str]) -> dict[tuple[str, str], str]:
    """The resources that are no messages of their type; of entries that are known none is made."""
    ingresses = [objects[name] for name in ("plain", "ingress", "canary")]
    facts = IngressFacts(
        ingresses=served_ingresses(ingresses, (objects["class"],), "podwire.io/ingress"),
        upstreams=UpstreamFacts(services={"default/web": objects["service"]}, slices=lambda _: (objects["slice"],)),
        certificate=lambda key: Certificate(name=key, chain=key, key="key"),
        users=lambda _key, _kind: "user:{SHA}x",
        authority=lambda key: TrustedAuthority(name=key, chain=key),
        config_map=lambda _key: {"X-Own": "1"},
        default_certificate=Certificate(name="default", chain=""),
    )
    translation = translate(facts)
    planned = repr(translation.entry)
    if planned in known:
        return {}
    known.add(planned)
    snapshot = ResourceSnapshot()
    snapshot.replace(resources(translation.entry, EngineSettings()))
    return snapshot.unreadable
