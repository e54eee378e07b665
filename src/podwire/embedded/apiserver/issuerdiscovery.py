"""The documents that other services use to verify ServiceAccount tokens: the issuer and its keys.

A service reads ``/.well-known/openid-configuration`` of the issuer, then the keys at the URL in this document. Default
roles let every ServiceAccount read both. Sources: OpenID Connect Discovery 1.0, RFC 7517, Kubernetes'
``pkg/serviceaccount``.
"""

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.auth import ServiceAccountTokens
from podwire.http.message import Request, Response

CONFIGURATION = "/.well-known/openid-configuration"
KEYS = "/openid/v1/jwks"

_encode = msgspec.json.Encoder().encode


class IssuerDiscovery:
    """Answers the two documents."""

    def __init__(self, tokens: ServiceAccountTokens) -> None:
        self._tokens = tokens

    def answer(self, request: Request) -> Response:
        """The document at the path of a request.

        Raises: ApiError 404 for another path.
        """
        if request.path == CONFIGURATION:
            return Response(200, _encode({
                "issuer": self._tokens.issuer, "jwks_uri": f"{self._tokens.issuer}{KEYS}",
                "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            }))  # fmt: skip
        if request.path == KEYS:
            return Response(200, _encode({"keys": [self._tokens.public_key()]}), "application/jwk-set+json")
        raise failures.no_resource()
