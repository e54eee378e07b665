"""Tells extension API servers which user sent a request.

Headers name the user. An extension trusts the headers because this server sends them over a connection with a client
certificate of a separate certificate authority. Extension API servers read this authority, and the authority of users'
certificates, from the ConfigMap ``kube-system/extension-apiserver-authentication``. This module writes the ConfigMap
again when a client changes or deletes it.
Sources: ``k8s.io/client-go/transport`` (``SetAuthProxyHeaders``), Kubernetes'
``pkg/controlplane/controller/clusterauthenticationtrust``.
"""

import json
import ssl
from typing import Any

from podwire.embedded.apiserver.bootstrap import internal_call
from podwire.embedded.apiserver.calls import UserInfo
from podwire.embedded.apiserver.dial import make_context
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.embedded.apiserver.store import ObjectChange, Store
from podwire.embedded.apiserver.waits import complete
from podwire.embedded.apiserver.writes import Writer

Object = dict[str, Any]

COMMON_NAME = "front-proxy-client"
"""The name in the client certificate."""
PREFIX = "x-remote-"
_NAMESPACE, _NAME = "kube-system", "extension-apiserver-authentication"
_MAPS = KINDS["", "v1", "configmaps"]
_PLAIN = frozenset("!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""The characters that a header name may contain, without the percent sign (RFC 9110, section 5.6.2)."""


def identity_headers(user: UserInfo) -> list[tuple[str, str]]:
    """The headers that name a user."""
    named = [("X-Remote-User", user.name), *([("X-Remote-Uid", user.uid)] if user.uid else [])]
    named += [("X-Remote-Group", group) for group in user.groups]
    named += [
        (f"X-Remote-Extra-{_escaped(key)}", value) for key, values in sorted(user.extra.items()) for value in values
    ]
    return [(name, value.encode().decode("latin-1")) for name, value in named]


def _escaped(key: str) -> str:
    """A key as part of a header's name: other characters as percent signs with two digits."""
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in key.encode())


class FrontProxy:
    """The TLS settings of connections to extension API servers, by their authorities."""

    def __init__(self, settings: ApiServerSettings) -> None:
        self._settings = settings
        self._contexts: dict[tuple[str, bool], ssl.SSLContext] = {}

    def context(self, ca_bundle: str, *, insecure: bool) -> ssl.SSLContext:
        """Settings with the client certificate; ``insecure`` ones accept any server's certificate.

        Raises: ssl.SSLError when the bundle has no certificate.
        """
        key = (ca_bundle, insecure)
        if key not in self._contexts:
            context = make_context(ca_bundle)
            if insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self._settings.proxy_client_certificate is not None:
                context.load_cert_chain(self._settings.proxy_client_certificate, self._settings.proxy_client_key)
            self._contexts[key] = context
        return self._contexts[key]


class AuthenticationTrust:
    """Keeps the ConfigMap that tells extension API servers which authorities to trust."""

    def __init__(self, store: Store, writer: Writer, settings: ApiServerSettings) -> None:
        self._store = store
        self._writer = writer
        self._data = _trust(settings)

    def start(self) -> None:
        """Writes the ConfigMap, and writes it again when it is changed or deleted."""
        self._ensure()
        self._store.table(_MAPS.table).listeners[self._committed] = None

    def _committed(self, changes: list[ObjectChange]) -> None:
        if any(change.entry.key == (_NAMESPACE, _NAME) for change in changes):
            self._ensure()

    def _ensure(self) -> None:
        entry = self._store.get(_MAPS.table, _NAMESPACE, _NAME)
        call = internal_call(_MAPS, _NAMESPACE, _NAME)
        if entry is None:
            complete(self._writer.create(call, {"metadata": {"name": _NAME}, "data": dict(self._data)}))
            return
        obj = entry.object()
        data = {**(obj.get("data") or {}), **self._data}
        if data != obj.get("data"):
            complete(self._writer.update(call, {**obj, "data": data}))


def _trust(settings: ApiServerSettings) -> dict[str, str]:
    data = {"client-ca-file": settings.client_ca.read_text()}
    if settings.proxy_client_ca is not None:
        data |= {
            "requestheader-client-ca-file": settings.proxy_client_ca.read_text(),
            "requestheader-allowed-names": json.dumps([COMMON_NAME]),
            "requestheader-username-headers": json.dumps(["X-Remote-User"]),
            "requestheader-uid-headers": json.dumps(["X-Remote-Uid"]),
            "requestheader-group-headers": json.dumps(["X-Remote-Group"]),
            "requestheader-extra-headers-prefix": json.dumps(["X-Remote-Extra-"]),
        }
    return data
