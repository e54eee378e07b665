"""Checks types, patterns and logical junctors in the schema of a CustomResourceDefinition.

Types and patterns are checked at every level; below ``allOf``, ``anyOf``, ``oneOf`` and ``not`` only constraints are
allowed. The texts are those of ``apiextensions-apiserver/pkg/apiserver/schema/validation.go``.
"""

from collections.abc import Iterator
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes
from podwire.embedded.apiserver.validate.patterns import UnsupportedPatternError, compile_pattern

Json = dict[str, Any]

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_EMPTY = "must be empty to be structural"
_UNDEFINED = "must be undefined to be structural"
_FORBIDDEN = {
    "type": _EMPTY, "additionalProperties": _UNDEFINED, "default": _UNDEFINED, "title": _EMPTY, "description": _EMPTY,
    "nullable": "must be false to be structural",
    "x-kubernetes-preserve-unknown-fields": "must be false to be structural",
    "x-kubernetes-embedded-resource": "must be false to be structural",
    "x-kubernetes-int-or-string": "must be false to be structural",
    "x-kubernetes-list-map-keys": _EMPTY, "x-kubernetes-list-type": _UNDEFINED,
}  # fmt: skip


def check_constraints(schema: Json, path: str) -> Iterator[Cause]:
    """The mistakes in the type, the pattern, and the junctors of one level of a schema."""
    kind = schema.get("type")
    if kind == "null":
        yield causes.forbidden(f"{path}.type", "type cannot be set to null, use nullable as an alternative")
    elif kind and kind not in _TYPES:
        yield causes.unsupported(f"{path}.type", kind, _TYPES)
    pattern = schema.get("pattern")
    if pattern:
        try:
            compile_pattern(pattern)
        except UnsupportedPatternError as failure:
            problem = f"must be a valid regular expression, but isn't: {failure}"
            yield causes.invalid(f"{path}.pattern", pattern, problem)
    if schema.get("additionalProperties") is False:
        yield causes.forbidden(f"{path}.additionalProperties", "additionalProperties cannot be set to false")
    for sub, where in _junctors(schema, path):
        if not _is_int_or_string(schema, sub):
            yield from _check_nested(sub, where)


def _junctors(schema: Json, path: str) -> Iterator[tuple[Json, str]]:
    for field in ("allOf", "anyOf", "oneOf"):
        for index, sub in enumerate(schema.get(field) or ()):
            yield sub, f"{path}.{field}[{index}]"
    if isinstance(schema.get("not"), dict):
        yield schema["not"], f"{path}.not"


def _is_int_or_string(schema: Json, sub: Json) -> bool:
    """Whether a branch has the only form in which Kubernetes lets branches name types."""
    if not schema.get("x-kubernetes-int-or-string"):
        return False
    pair = [{"type": "integer"}, {"type": "string"}]
    return sub in pair or sub.get("anyOf") == pair


def _check_nested(schema: Json, path: str) -> Iterator[Cause]:
    yield from (cause for cause in check_constraints(schema, path) if not cause.field.endswith(".type"))
    if isinstance(schema.get("items"), dict):
        yield from _check_nested(schema["items"], f"{path}.items")
    for name, sub in (schema.get("properties") or {}).items():
        yield from _check_nested(sub, f"{path}.properties[{name}]")
    for field, problem in _FORBIDDEN.items():
        if schema.get(field) not in (None, "", False, []):
            yield causes.forbidden(f"{path}.{field}", problem)
