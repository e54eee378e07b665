"""TLS to the backends of an Ingress (``proxy-ssl-*``): the server name, what is checked, and what is shown.

Source: ingress-nginx documentation, "Backend Certificate Authentication".
"""

import msgspec

from podwire.gateway.ingress.annotations import IngressSettings
from podwire.gateway.ingress.lookups import RecordedLookups
from podwire.gateway.routes import BackendTls, Certificate, TrustedAuthority


class CheckedBackend(msgspec.Struct, frozen=True):
    """How a backend is spoken to, with the certificates that this names."""

    verify: BackendTls
    certificate: Certificate | None = None
    authority: TrustedAuthority | None = None


def asks_for_tls(settings: IngressSettings) -> bool:
    """Whether annotations say more about the TLS of backends than that there is some."""
    return bool(settings.proxy_ssl_secret or settings.proxy_ssl_verify or settings.proxy_ssl_server_name)


def checked_backend(settings: IngressSettings, secret: str, lookups: RecordedLookups) -> CheckedBackend | str:
    """How backends are spoken to, with the certificates of a Secret (empty for none); or why they cannot be."""
    if (settings.proxy_ssl_verify or settings.proxy_ssl_server_name) and not settings.proxy_ssl_name:
        return "expected proxy-ssl-name beside proxy-ssl-verify and proxy-ssl-server-name"
    if settings.proxy_ssl_verify and not secret:
        return "expected proxy-ssl-secret beside proxy-ssl-verify"
    server_name = settings.proxy_ssl_name if settings.proxy_ssl_server_name else ""
    if not secret:
        return CheckedBackend(BackendTls(server_name=server_name, authority=""))
    certificate = lookups.certificate(secret)
    if isinstance(certificate, str):
        return certificate
    if not settings.proxy_ssl_verify:
        verify = BackendTls(server_name=server_name, authority="", certificate=certificate.name)
        return CheckedBackend(verify, certificate)
    authority = lookups.authority(secret)
    if isinstance(authority, str):
        return authority
    verify = BackendTls(
        server_name=server_name,
        authority=authority.name,
        names=(settings.proxy_ssl_name,),
        certificate=certificate.name,
    )
    return CheckedBackend(verify, certificate, authority)
