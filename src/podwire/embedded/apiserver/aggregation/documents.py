"""Merges the OpenAPI documents of an extension API server into those of this server.

A document of version 3 is used unchanged. When an extension publishes version 2 only, as extensions from before
Kubernetes 1.24 do, version 3 is made from it. A document that cannot be parsed is left out, so that one extension
cannot break the documents of all others. Source: ``k8s.io/kube-aggregator/pkg/controllers/openapiv3/aggregator``.
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
    selected = openapi_merge.select_paths(v2, path) if v2 and _has_levels(v2, _MOST_LEVELS) else {}
    if selected and not v3:
        v3 = openapi_conversion.to_v3(selected)
    return _encode(v3) if v3 else b"", _encode(selected) if selected else b""


def _has_levels(node: Any, most: int) -> bool:
    """Whether a document has at most ``most`` levels."""
    if not isinstance(node, dict | list):
        return True
    children = node.values() if isinstance(node, dict) else node
    return most > 0 and all(_has_levels(child, most - 1) for child in children)
