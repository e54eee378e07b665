"""The OpenAPI documents of an extension API server, as they become part of this server's.

The document of version 3 is taken as it is. An extension that publishes version 2 alone, as many do that were written
before Kubernetes 1.24, gets a document of version 3 made of it. What cannot be understood is left out, so that one
extension never takes the documents of all others away.
Source: ``k8s.io/kube-aggregator/pkg/controllers/openapiv3/aggregator``.
"""

from typing import Any

import msgspec

from podwire.embedded.apiserver import openapi_conversion, openapi_merge

Object = dict[str, Any]

_MOST_LEVELS = 100
"""Documents of Kubernetes have 20; deeper ones could exhaust the stack."""

_encode = msgspec.json.Encoder().encode


def openapi_of(path: str, v3: Object, v2: Object) -> tuple[bytes, bytes]:
    """The documents of version 3 and 2 for ``apis/GROUP/VERSION`` (``path``); each is empty when there is none."""
    part = openapi_merge.part(v2, path) if v2 and _has_levels(v2, _MOST_LEVELS) else {}
    if part and not v3:
        v3 = openapi_conversion.to_v3(part)
    return _encode(v3) if v3 else b"", _encode(part) if part else b""


def _has_levels(node: Any, most: int) -> bool:
    """Whether a document is nested no deeper than that."""
    if not isinstance(node, dict | list):
        return True
    children = node.values() if isinstance(node, dict) else node
    return most > 0 and all(_has_levels(child, most - 1) for child in children)
