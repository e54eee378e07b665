"""Rules of ``selectableFields`` in a CustomResourceDefinition: the fields that field selectors may name.

Source: ``k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`` (ValidateCustomResourceSelectableFields).
"""

import re
from collections.abc import Iterator
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes

Json = dict[str, Any]

_LIMIT = 8
_PATH = re.compile(r"(\.[A-Za-z_][A-Za-z0-9_]*)+")
_TYPES = ("string", "boolean", "integer")
_WRONG_TYPE = (
    "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."
)


def check_selectable(declared: Any, schema: Any, path: str) -> Iterator[Cause]:
    """The problems of the selectable fields of a version, at ``path``."""
    known: set[str] = set()
    for index, entry in enumerate(declared or ()):
        where, text = f"{path}[{index}]", str(entry.get("jsonPath") or "")
        if not text:
            yield causes.required(f"{where}.jsonPath")
        elif not _PATH.fullmatch(text):
            detail = "is an invalid path: expected names of fields, each after a dot, such as .spec.color"
            yield causes.invalid(f"{where}.jsonPath", text, detail)
        elif text.split(".")[1] == "metadata":
            yield causes.invalid(where, text, "must not point to fields in metadata")
        elif (node := _schema_at(text, schema)) is None:
            yield causes.invalid(f"{where}.jsonPath", text, "is an invalid path: does not refer to a valid field")
        elif node.get("type") not in _TYPES:
            yield causes.invalid(where, text, _WRONG_TYPE)
        elif text in known:
            yield causes.duplicate(where, text)
        known.add(text)
    if len(known) > _LIMIT:
        yield causes.too_many(path, len(known), _LIMIT)


def _schema_at(path: str, schema: Any) -> Json | None:
    for name in path.split(".")[1:]:
        schema = (schema.get("properties") or {}).get(name) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else None
