"""Serves the OpenAPI documents: version 3 by group, version 2 as a whole.

A document is made at its first request and cached until a CustomResourceDefinition or an extension API server changes
the kinds. Clients may cache a URL with the current ``hash`` without limit.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from podwire.embedded.apiserver import failures, openapi_protobuf
from podwire.embedded.apiserver.aggregation.extensions import Extensions
from podwire.embedded.apiserver.kinds import Key, ResourceKind
from podwire.embedded.apiserver.openapi import Documents, ForeignDocuments
from podwire.embedded.metrics.objects import SCHEMAS
from podwire.http.message import Request, Response

_FOREVER = (("Cache-Control", "public, immutable"), ("Expires", "Fri, 31 Dec 2100 00:00:00 GMT"))


class OpenApi:
    """The documents of the kinds that are served now."""

    def __init__(
        self,
        kinds: Mapping[Key, ResourceKind],
        schemas: Callable[[], Mapping[tuple[str, str, str], dict[str, Any]]],
        extensions: Extensions,
    ) -> None:
        self._kinds = kinds
        self._schemas = schemas
        self._extensions = extensions
        self._documents: Documents | None = None

    def changed(self) -> None:
        """Drops the documents; to be called when the kinds have changed."""
        self._documents = None

    def answer(self, request: Request) -> Response:
        """The document at the request's path.

        Raises: NotFound for a path without one, ApiError 406 when only protobuf is taken.
        """
        if self._documents is None:
            foreign = ForeignDocuments(self._extensions.v3_documents(), self._extensions.v2_documents())
            self._documents = Documents(tuple(self._kinds.values()), {**SCHEMAS, **self._schemas()}, foreign)
        documents = self._documents
        path = request.path.strip("/")
        accept = request.headers.get("accept", "")
        if path == "openapi/v2" and "json" not in accept and openapi_protobuf.ACCEPTED in accept:
            return _tagged(request, documents.v2_protobuf, (), openapi_protobuf.CONTENT_TYPE)
        if accept and not any(media_type in accept for media_type in ("json", "*/*", "application/*")):
            raise failures.not_acceptable()
        if path == "openapi/v3":
            return Response(200, documents.index)
        if path == "openapi/v2":
            return _tagged(request, documents.v2, ())
        group = path.removeprefix("openapi/v3/")
        body = documents.v3(group) if group != path else None
        if body is None:
            raise failures.no_resource()
        requested_hash = request.query().get("hash", "")
        return _tagged(request, body, _FOREVER if requested_hash and requested_hash == documents.digest(group) else ())


def _tagged(
    request: Request, body: bytes, headers: tuple[tuple[str, str], ...], content_type: str = "application/json"
) -> Response:
    tag = f'"{hashlib.sha256(body).hexdigest()[:32].upper()}"'
    headers = (*headers, ("Etag", tag), ("Vary", "Accept"))
    if request.headers.get("if-none-match") == tag:
        return Response(304, b"", headers=headers)
    return Response(200, body, content_type, headers)
