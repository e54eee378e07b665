"""The user behind a request.

A client is known by its certificate (common name = user, organizations = groups), or by a bearer token: a JWT
that this cluster signed for a ServiceAccount (ES256). A wrong token is refused; no credentials make the
anonymous user. What a user may do is decided by ``authorization``. Sources: RFC 7519, RFC 7518 section 3.4.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.calls import UserInfo
from podwire.embedded.apiserver.store import Store
from podwire.http.message import Request
from podwire.http.tls import subject_of
from podwire.runtime.clock import Clock

Object = dict[str, Any]

ANONYMOUS = UserInfo("system:anonymous", ("system:unauthenticated",))
_CACHE = 1000
_SKEW_S = 10


def _unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class ServiceAccountTokens:
    """Signs and verifies ServiceAccount tokens with one ECDSA P-256 key; ``cryptography`` is imported on use."""

    def __init__(self, key: bytes, issuer: str, clock: Clock, store: Store) -> None:
        self._key_text = key
        self._key: Any = None
        self._clock = clock
        self._store = store
        self.issuer = issuer
        self._verified: dict[bytes, tuple[float, Object]] = {}

    def _private(self) -> Any:
        if self._key is None:
            from cryptography.hazmat.primitives.serialization import load_pem_private_key

            self._key = load_pem_private_key(self._key_text, password=None)
        return self._key

    def sign(self, claims: Object) -> str:
        """The token of these claims."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, utils

        head = _unpadded(json.dumps({"alg": "ES256", "kid": self.public_key()["kid"], "typ": "JWT"}).encode())
        payload = f"{head}.{_unpadded(json.dumps(claims, separators=(',', ':')).encode())}"
        r, s = utils.decode_dss_signature(self._private().sign(payload.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{payload}.{_unpadded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def public_key(self) -> Object:
        """The key that verifies tokens, as a JSON Web Key (RFC 7517)."""
        numbers = self._private().public_key().public_numbers()
        x, y = (_unpadded(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        name = _unpadded(hashlib.sha256(f"{x}.{y}".encode()).digest())
        return {"use": "sig", "kty": "EC", "kid": name, "crv": "P-256", "alg": "ES256", "x": x, "y": y}

    def claims(self, token: str) -> Object | None:
        """The claims of a valid token, None for any other. Verified tokens are remembered until they expire."""
        digest = hashlib.sha256(token.encode()).digest()
        now = self._clock.now().timestamp()
        known = self._verified.get(digest)
        if known is None:
            verified = self._verify(token)
            if verified is None or not isinstance(verified.get("exp"), int | float):
                return None
            known = (float(verified["exp"]), verified)
            if len(self._verified) >= _CACHE:
                self._verified.clear()
            self._verified[digest] = known
        expires, claims = known
        if now > expires + _SKEW_S or now + _SKEW_S < claims.get("nbf", 0) or claims.get("iss") != self.issuer:
            return None
        return claims if self._still_bound(claims) else None

    def _verify(self, token: str) -> Object | None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, utils

        segments = token.split(".")
        if len(segments) != 3:
            return None
        try:
            head, claims, signature = (
                json.loads(_decoded(segments[0])),
                json.loads(_decoded(segments[1])),
                _decoded(segments[2]),
            )
            if head.get("alg") != "ES256" or len(signature) != 64 or not isinstance(claims, dict):
                return None
            pair = utils.encode_dss_signature(
                int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
            )
            signed = f"{segments[0]}.{segments[1]}".encode()
            self._private().public_key().verify(pair, signed, ec.ECDSA(hashes.SHA256()))
        except (ValueError, InvalidSignature, AttributeError):
            return None
        return claims

    def _still_bound(self, claims: Object) -> bool:
        bound = claims.get("kubernetes.io") or {}
        namespace = bound.get("namespace", "")
        for field, table in (("serviceaccount", "/serviceaccounts"), ("pod", "/pods"), ("secret", "/secrets")):
            reference = bound.get(field)
            if reference is None:
                continue
            entry = self._store.get(table, namespace, reference.get("name", ""))
            if entry is None or entry.uid != reference.get("uid"):
                return False
        return True


def service_account(claims: Object) -> UserInfo:
    """The user that a token stands for."""
    bound = claims.get("kubernetes.io") or {}
    namespace, account = bound.get("namespace", ""), bound.get("serviceaccount") or {}
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    extra: dict[str, tuple[str, ...]] = {}
    if claims.get("jti"):
        extra["authentication.kubernetes.io/credential-id"] = (f"JTI={claims['jti']}",)
    if pod := bound.get("pod"):
        extra["authentication.kubernetes.io/pod-name"] = (pod.get("name", ""),)
        extra["authentication.kubernetes.io/pod-uid"] = (pod.get("uid", ""),)
    return UserInfo(str(claims.get("sub", "")), groups, account.get("uid", ""), extra)


class Authenticator:
    """Finds the user who sent a request."""

    def __init__(self, tokens: ServiceAccountTokens, audiences: Sequence[str]) -> None:
        self._tokens = tokens
        self._audiences = frozenset(audiences)

    def user(self, request: Request) -> UserInfo:
        """The user; anonymous without credentials.

        Raises: ApiError 401 for a token that is not valid.
        """
        name, groups = subject_of(request.peer_certificate)
        if name:
            return UserInfo(name, (*groups, "system:authenticated"))
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return ANONYMOUS
        user = self.verify(token.strip())
        if user is None:
            raise failures.unauthorized()
        return user

    def verify(self, token: str, audiences: Sequence[str] = ()) -> UserInfo | None:
        """The user of a token that is valid for one of ``audiences`` (the server's own by default)."""
        claims = self._tokens.claims(token)
        if claims is None:
            return None
        audience = claims.get("aud") or ()
        named = {audience} if isinstance(audience, str) else set(audience)
        return service_account(claims) if named & (set(audiences) or self._audiences) else None
