"""Types and values of custom objects in expressions, by the schema of their definition.

Objects are maps whose keys are the names of fields, escaped as Kubernetes escapes names that CEL cannot write
(``a-b`` is ``a__dash__b``). Numbers and bytes have the types of CEL. Times and durations have them where they are
``self``; as fields and items they are strings, since the library takes no other values in a map: ``timestamp(self.at)``
works with both. Lists with the list type ``map``
correlate by their keys, so that a rule below them can compare with the old value. Source: ``k8s.io/apiserver/pkg/cel``.
"""

import base64
import binascii
import re
from datetime import datetime, timedelta
from typing import Any

Json = dict[str, Any]

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_SCALARS = {"string": "string", "integer": "int", "number": "double", "boolean": "bool"}
_FORMATS = {"date-time": "timestamp", "date": "timestamp", "duration": "duration", "byte": "bytes"}
_RESERVED = frozenset({
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while",
})  # fmt: skip
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_ESCAPED = re.compile(r"__|[./-]")
_DURATION = re.compile(r"(\d+(?:\.\d*)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_COMMON: Json = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}},
}


def escaped(name: str) -> str:
    """The name of a field as expressions write it."""
    if name in _RESERVED:
        return f"__{name}__"
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], name)


def rooted(schema: Json) -> Json:
    """The schema of a whole object, or of an embedded one: with ``apiVersion``, ``kind`` and ``metadata``."""
    return {**schema, "properties": {**(schema.get("properties") or {}), **_COMMON}}


def type_of(schema: Json, *, inner: bool = False) -> str:
    """The type of values of a schema: ``string``, ``list(map(string,dyn))``; ``inner`` for fields and items."""
    kind = schema.get("type", "")
    if schema.get("nullable") or schema.get("x-kubernetes-int-or-string"):
        return "dyn"
    if kind == "array":
        return f"list({type_of(schema.get('items') or {}, inner=True)})"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"map(string,{type_of(values, inner=True)})" if isinstance(values, dict) else "map(string,dyn)"
    if kind == "string":
        found = _FORMATS.get(schema.get("format", ""), "string")
        return "string" if inner and found in ("timestamp", "duration") else found
    return _SCALARS.get(kind, "dyn")


def value_of(value: Any, schema: Json, *, inner: bool = False) -> Any:
    """A valid value as the library takes it; ``inner`` for fields and items.

    Raises: ValueError for a time, duration or base64 text that cannot be read.
    """
    kind = schema.get("type", "")
    if isinstance(value, dict):
        return _object(value, schema)
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [value_of(item, items, inner=True) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if kind == "number":
        return float(value)
    if kind == "integer":
        return int(value)
    if kind == "string" and type_of(schema, inner=inner) not in ("string", "dyn"):
        return _formatted(value, schema["format"])
    return value


def _object(value: Json, schema: Json) -> Json:
    if schema.get("x-kubernetes-embedded-resource"):
        schema = rooted(schema)
    properties: Json = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    out: Json = {}
    for name, item in value.items():
        if name in properties:
            out[escaped(name)] = value_of(item, properties[name], inner=True)
        elif isinstance(additional, dict):
            out[name] = value_of(item, additional, inner=True)
        elif schema.get(_PRESERVE) or not schema:
            out[name] = value_of(item, {}, inner=True)
    return out


def _formatted(text: str, form: str) -> Any:
    if form == "byte":
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as failure:
            raise ValueError(f"{text!r} is not base64") from failure
    if form == "duration":
        sign = -1 if text.startswith("-") else 1
        bare = text.lstrip("+-")
        found = _DURATION.findall(bare)
        if "".join(number + unit for number, unit in found) != bare or not found:
            raise ValueError(f"{text!r} is not a duration")
        return timedelta(seconds=sign * sum(float(number) * _SECONDS[unit] for number, unit in found))
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else datetime.fromisoformat(f"{text}T00:00:00+00:00")


def old_item(item: Any, old: Any, schema: Json) -> Any:
    """The item of an old list with the same keys; None in lists that do not correlate."""
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list) or not isinstance(item, dict):
        return None
    wanted = [item.get(key) for key in keys]
    return next((other for other in old if isinstance(other, dict) and [other.get(k) for k in keys] == wanted), None)
