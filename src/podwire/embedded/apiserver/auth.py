"""The user behind a request, and the reviews that answer who that is.

A client is known by its certificate (common name = user, organizations = groups), or by a bearer token: a JWT
that this cluster signed for a ServiceAccount (ES256). A wrong token is refused; no credentials make the
anonymous user, who may read ``/version`` and the health endpoints and nothing else. Everyone else may do
everything: RBAC objects are stored, not enforced. Sources: RFC 7519, RFC 7518 section 3.4.
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
_OPEN_PATHS = ("/version", "/healthz", "/livez", "/readyz")
_CACHE = 1000
_SKEW_S = 10


def open_to_anonymous(method: str, path: str) -> bool:
    """Whether a client without credentials may do this."""
    return method in ("GET", "HEAD") and any(path == p or path.startswith(p + "/") for p in _OPEN_PATHS)


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

        head = _unpadded(json.dumps({"alg": "ES256", "typ": "JWT"}).encode())
        payload = f"{head}.{_unpadded(json.dumps(claims, separators=(',', ':')).encode())}"
        r, s = utils.decode_dss_signature(self._private().sign(payload.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{payload}.{_unpadded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def claims(self, token: str) -> Object | None:
        """The claims of a valid token, None for any other. Verified tokens are remembered until they expire."""
        digest = hashlib.sha256(token.encode()).digest()
        now = self._clock.now().timestamp()
        known = self._verified.get(digest)
        if known is None:
            found = self._verify(token)
            if found is None or not isinstance(found.get("exp"), int | float):
                return None
            known = (float(found["exp"]), found)
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

        parts = token.split(".")
        if len(parts) != 3:
            return None
        try:
            head, claims, signature = (
                json.loads(_decoded(parts[0])),
                json.loads(_decoded(parts[1])),
                _decoded(parts[2]),
            )
            if head.get("alg") != "ES256" or len(signature) != 64 or not isinstance(claims, dict):
                return None
            pair = utils.encode_dss_signature(
                int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
            )
            self._private().public_key().verify(pair, f"{parts[0]}.{parts[1]}".encode(), ec.ECDSA(hashes.SHA256()))
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

        An authenticated user may act as another one by the ``Impersonate-`` headers.
        Raises: ApiError 401 for a token that is not valid.
        """
        found = self._authenticated(request)
        wanted = request.headers.get("impersonate-user")
        if wanted and not found.anonymous:
            group = request.headers.get("impersonate-group")
            groups = (group,) if group else ()
            uid = request.headers.get("impersonate-uid", "")
            return UserInfo(wanted, groups if wanted == ANONYMOUS.name else (*groups, "system:authenticated"), uid)
        return found

    def _authenticated(self, request: Request) -> UserInfo:
        name, groups = subject_of(request.peer_certificate)
        if name:
            return UserInfo(name, (*groups, "system:authenticated"))
        header = request.headers.get("authorization", "")
        if not header:
            return ANONYMOUS
        scheme, _, token = header.partition(" ")
        user = self.verify(token.strip()) if scheme.lower() == "bearer" else None
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


def user_info(user: UserInfo) -> Object:
    """The ``authentication.k8s.io/v1`` UserInfo of a user."""
    info: Object = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    if user.groups:
        info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = {key: list(values) for key, values in user.extra.items()}
    return info


class Reviews:
    """Answers the review kinds of authentication and authorization."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def answer(self, kind: str, obj: Object, user: UserInfo) -> Object:
        """The review with its status filled in."""
        spec = obj.get("spec") or {}
        obj["metadata"] = {**(obj.get("metadata") or {}), "creationTimestamp": None}
        if kind == "SelfSubjectReview":
            obj["status"] = {"userInfo": user_info(user)}
        elif kind == "TokenReview":
            audiences = list(spec.get("audiences") or ())
            found = self._authenticator.verify(str(spec.get("token", "")), audiences)
            if found is None:
                obj["status"] = {"authenticated": False, "user": {}, "error": "invalid bearer token"}
            else:
                obj["status"] = {"authenticated": True, "user": user_info(found), "audiences": audiences}
        elif kind == "SelfSubjectRulesReview":
            obj["status"] = _all_rules()
        else:
            who = user if kind == "SelfSubjectAccessReview" else UserInfo(str(spec.get("user", "")))
            obj["status"] = _access(spec, who)
        return obj


def _all_rules() -> Object:
    everything = ["*"]
    return {
        "resourceRules": [{"verbs": everything, "apiGroups": everything, "resources": everything}],
        "nonResourceRules": [{"verbs": everything, "nonResourceURLs": everything}],
        "incomplete": False,
    }


def _access(spec: Object, user: UserInfo) -> Object:
    path = spec.get("nonResourceAttributes")
    if not user.anonymous:
        return {"allowed": True, "reason": "every authenticated user is allowed everything"}
    if path and open_to_anonymous(str(path.get("verb", "")).upper(), str(path.get("path", ""))):
        return {"allowed": True}
    return {"allowed": False}
