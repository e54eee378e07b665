"""Hosts whose clients must show a certificate (``auth-tls-secret``), and those whose TLS is left to the backend.

Both are settings of a host: the oldest Ingress that has one decides for all paths. The certificate is asked for in the
handshake of the host's own name, so requests for the host are served on connections of that name alone: neither without
TLS nor on a connection of another host. Source: ingress-nginx documentation, "Client Certificate Authentication" and
"SSL Passthrough".
"""

from collections.abc import Iterable

import msgspec

from podwire.gateway.ingress.paths import ServedPath
from podwire.gateway.routes import ClientValidation, EntryRoute, FixedAnswer, HttpRedirect
from podwire.model.meta import key_of


class HostClients(msgspec.Struct, frozen=True):
    """How the clients of a host are checked; without a ``validation``, no client gets access."""

    host: str
    validation: ClientValidation | None
    passes_certificate: bool = False


def deciding_path(paths: Iterable[ServedPath]) -> ServedPath | None:
    """The path of the oldest Ingress that asks for certificates of clients."""
    asking = [path for path in paths if path.settings.auth_tls_secret and path.settings.auth_tls_verify != "off"]
    return min(asking, key=_age, default=None)


def passed_through(paths: Iterable[ServedPath]) -> ServedPath | None:
    """The path whose backend gets the TLS connections of the host: the one that serves everything."""
    asking = [path for path in paths if path.settings.ssl_passthrough and path.path == "/"]
    return min(asking, key=_age, default=None)


def require_certificates(routes: tuple[EntryRoute, ...], clients: HostClients) -> tuple[EntryRoute, ...]:
    """The routes of a host over TLS: on connections of its own name, with what is known of the certificate."""
    if clients.validation is None:
        return _closed(routes)
    content = "certificate" if clients.passes_certificate else "subject"
    names = (clients.host,) if clients.validation.required else ()
    return tuple(
        msgspec.structs.replace(
            route, limits=msgspec.structs.replace(route.limits, server_names=names), tells_client=content
        )
        for route in routes
    )


def plain(routes: tuple[EntryRoute, ...], clients: HostClients) -> tuple[EntryRoute, ...]:
    """The routes of a host without TLS: only those that lead to TLS remain open."""
    if clients.validation is None:
        return _closed(routes)
    if not clients.validation.required:
        return routes
    return tuple(
        route
        if isinstance(route.action, HttpRedirect)
        else EntryRoute(source=route.source, match=route.match, action=FixedAnswer(status=403))
        for route in routes
    )


def _closed(routes: tuple[EntryRoute, ...]) -> tuple[EntryRoute, ...]:
    return tuple(EntryRoute(source=route.source, match=route.match, action=FixedAnswer(status=503)) for route in routes)


def _age(path: ServedPath) -> tuple[str, str]:
    return path.ingress.metadata.creation_timestamp or "", key_of(path.ingress.metadata)
