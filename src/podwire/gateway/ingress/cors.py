"""Cross-origin requests of an Ingress, as ingress-nginx answers them.

The entry itself answers preflight requests, with 204. Where every origin may read, answers say ``*``, also to requests
that name no origin: an origin is never repeated with permission for credentials unless the annotation lists it. Source:
ingress-nginx documentation, "Enable CORS"; Fetch standard, "CORS protocol".
"""

from collections.abc import Iterable

from podwire.gateway.ingress.annotations import IngressSettings
from podwire.gateway.routes import Cors, HeaderChanges, RequestMatch, ValueMatch

_ALL = ("*",)


def preflights(match: RequestMatch, settings: IngressSettings) -> Iterable[tuple[RequestMatch, HeaderChanges]]:
    """The preflight requests of a path, each with the headers of its answer."""
    if not settings.cors:
        return
    asked = ValueMatch(name="access-control-request-method", kind="present")
    for origin in settings.cors_origins:
        if origin != "*" and "*" in origin:
            continue
        allowed = ValueMatch(name="origin", value=origin)
        if origin == "*":
            allowed = ValueMatch(name="origin", kind="present")
        headers = (*match.headers, allowed, asked)
        answer = (
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Allow-Methods", ", ".join(settings.cors_methods)),
            ("Access-Control-Allow-Headers", ",".join(settings.cors_headers)),
            ("Access-Control-Max-Age", str(settings.cors_max_age)),
            *_credentials(settings),
        )
        yield (
            RequestMatch(path=match.path, method="OPTIONS", headers=headers, query=match.query),
            HeaderChanges(set=answer),
        )


def answer_headers(settings: IngressSettings) -> HeaderChanges:
    """The headers of every answer, where all origins may read it."""
    if not settings.cors or settings.cors_origins != _ALL:
        return HeaderChanges()
    exposed = ", ".join(settings.cors_expose_headers)
    headers = (("Access-Control-Allow-Origin", "*"), *_credentials(settings))
    return HeaderChanges(set=(*headers, ("Access-Control-Expose-Headers", exposed)) if exposed else headers)


def listed_origins(settings: IngressSettings) -> Cors | None:
    """The check of the Origin header, where only some origins may read answers."""
    if not settings.cors or settings.cors_origins == _ALL:
        return None
    return Cors(
        origins=settings.cors_origins,
        methods=settings.cors_methods,
        headers=settings.cors_headers,
        expose_headers=settings.cors_expose_headers,
        credentials=settings.cors_credentials,
        max_age=settings.cors_max_age,
    )


def _credentials(settings: IngressSettings) -> tuple[tuple[str, str], ...]:
    return (("Access-Control-Allow-Credentials", "true"),) if settings.cors_credentials else ()
