"""Requests that another server allows or refuses (``auth-url``).

Source: ingress-nginx documentation, "External Authentication".
"""

from podwire.gateway.ingress.annotations import IngressSettings
from podwire.gateway.ingress.urlbackends import UrlTarget
from podwire.gateway.routes import ExternalAuth


def external_auth(settings: IngressSettings, target: UrlTarget) -> ExternalAuth | None:
    """How the server at a target is asked; None without one."""
    if target.backend is None:
        return None
    return ExternalAuth(
        backend=target.backend.key,
        host=target.host,
        path=target.path,
        method=settings.auth_method,
        response_headers=tuple(name.lower() for name in settings.auth_response_headers),
        signin=settings.auth_signin,
        redirect_parameter=settings.auth_signin_redirect_param,
    )
