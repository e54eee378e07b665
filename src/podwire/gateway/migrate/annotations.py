"""Which annotations of ingress-nginx objects of Gateway API can say, and what happens to the others.

Every annotation that the gateway honours is either in :data:`CARRIED` or in :data:`LOST`. Those in :data:`PROTECTING`
restrict access: an Ingress with one is left out, unless the caller asks for open routes.
"""

from collections.abc import Mapping

from podwire.gateway.ingress.annotations import PREFIX, PROTECTING, read_annotations
from podwire.model.ingress import Ingress

CARRIED = frozenset(
    {
        "app-root", "backend-protocol", "canary", "canary-by-cookie", "canary-by-header", "canary-by-header-pattern",
        "canary-by-header-value", "canary-weight", "canary-weight-total", "force-ssl-redirect", "from-to-www-redirect",
        "permanent-redirect", "permanent-redirect-code", "preserve-trailing-slash", "proxy-buffering",
        "proxy-read-timeout", "proxy-send-timeout", "rewrite-target", "satisfy", "server-alias", "ssl-redirect",
        "temporal-redirect", "temporal-redirect-code", "upstream-vhost", "use-regex", "x-forwarded-prefix",
    }
)  # fmt: skip
"""Annotations that routes can say; a value that they cannot say is reported with its path."""

_AFFINITY = "sessionPersistence of routes is not in the standard channel"
_CORS = "the filter CORS answers preflight requests differently"
_NEXT = "retries of routes are not in the standard channel; the gateway repeats what may be repeated twice"
_BODY = "routes have no limit of bodies"
_BACKEND_TLS = "needs a BackendTLSPolicy"
_RATE = "routes have no limit of requests"
_ACCESS = "routes have no control of access"

LOST: Mapping[str, str] = {
    "affinity": _AFFINITY,
    "affinity-mode": _AFFINITY,
    "affinity-canary-behavior": _AFFINITY,
    "session-cookie-name": _AFFINITY,
    "session-cookie-path": _AFFINITY,
    "session-cookie-domain": _AFFINITY,
    "session-cookie-expires": _AFFINITY,
    "session-cookie-max-age": _AFFINITY,
    "session-cookie-samesite": _AFFINITY,
    "session-cookie-secure": _AFFINITY,
    "enable-cors": _CORS,
    "cors-allow-origin": _CORS,
    "cors-allow-methods": _CORS,
    "cors-allow-headers": _CORS,
    "cors-allow-credentials": _CORS,
    "cors-max-age": _CORS,
    "cors-expose-headers": _CORS,
    "limit-rps": _RATE,
    "limit-rpm": _RATE,
    "limit-burst-multiplier": _RATE,
    "limit-whitelist": _RATE,
    "limit-allowlist": _RATE,
    "proxy-body-size": _BODY,
    "proxy-request-buffering": _BODY,
    "proxy-buffer-size": "routes have no limit of headers",
    "proxy-connect-timeout": "routes have no time for a connection",
    "proxy-next-upstream": _NEXT,
    "proxy-next-upstream-tries": _NEXT,
    "load-balance": "routes do not choose how endpoints are balanced",
    "upstream-hash-by": "routes do not choose how endpoints are balanced",
    "whitelist-source-range": _ACCESS,
    "allowlist-source-range": _ACCESS,
    "denylist-source-range": _ACCESS,
    "auth-type": _ACCESS,
    "auth-secret": _ACCESS,
    "auth-secret-type": _ACCESS,
    "auth-realm": _ACCESS,
    "auth-tls-secret": _ACCESS,
    "auth-tls-verify-client": _ACCESS,
    "auth-tls-verify-depth": _ACCESS,
    "auth-tls-pass-certificate-to-upstream": _ACCESS,
    "ssl-passthrough": "needs a listener of protocol TLS and a TLSRoute",
    "auth-url": _ACCESS,
    "auth-method": _ACCESS,
    "auth-signin": _ACCESS,
    "auth-signin-redirect-param": _ACCESS,
    "auth-response-headers": _ACCESS,
    "mirror-target": "the filter RequestMirror has no URL",
    "mirror-host": "the filter RequestMirror has no host",
    "default-backend": "routes have no backend for one without endpoints",
    "custom-http-errors": "routes have no backend for errors",
    "custom-headers": "the filter ResponseHeaderModifier has no ConfigMap",
    "proxy-ssl-secret": _BACKEND_TLS,
    "proxy-ssl-verify": _BACKEND_TLS,
    "proxy-ssl-name": _BACKEND_TLS,
    "proxy-ssl-server-name": _BACKEND_TLS,
    "service-upstream": "routes go to the endpoints of a Service",
}
"""Annotations that are honoured in Ingresses and lost in routes, with the reason."""


def lost_annotations(ingress: Ingress) -> tuple[tuple[str, str], ...]:
    """The annotations of an Ingress that are not carried over, each with the reason."""
    wrong = {problem.name: problem.text for problem in read_annotations(ingress.metadata.annotations)[1]}
    lost = []
    for name in sorted(ingress.metadata.annotations):
        short = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX):
            continue
        if name in wrong:
            lost.append((name, wrong[name]))
        elif short not in CARRIED:
            lost.append((name, LOST[short]))
    return tuple(lost)


def protections(ingress: Ingress) -> tuple[str, ...]:
    """The annotations of an Ingress that restrict access."""
    return tuple(
        name
        for name in sorted(ingress.metadata.annotations)
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in PROTECTING
    )
