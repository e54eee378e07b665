"""Types and values of objects in expressions, by their schema.

Objects are maps whose keys are the names of fields, escaped as Kubernetes escapes names that CEL cannot write
(``a-b`` is ``a__dash__b``). Numbers, bytes, times and durations have the types of CEL. The type of an object leaves out
fields whose type is unknown. Items of lists with the list type ``map`` correlate by their keys, so that a rule below
them can compare an item with its old value. Source: ``k8s.io/apiserver/pkg/cel/common``.
"""

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from podwire.embedded.apiserver.cel.environment import MESSAGES
from podwire.embedded.apiserver.cel.times import Duration, Timestamp

Json = dict[str, Any]

_PRESERVE = "x-kubernetes-preserve-unknown-fields"
_SCALARS = {"string": "string", "integer": "int", "number": "double", "boolean": "bool"}
_FORMATS = {"date-time": "timestamp", "date": "timestamp", "duration": "duration", "byte": "bytes"}
RESERVED = frozenset({
    "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
    "loop", "package", "namespace", "return", "var", "void", "while",
})  # fmt: skip
"""Reserved words, which cannot be names in expressions."""
_LABEL = re.compile(r"\W", re.ASCII)
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
    if name in RESERVED:
        return f"__{name}__"
    return _ESCAPED.sub(lambda match: _ESCAPES[match[0]], name)


def with_object_fields(schema: Json) -> Json:
    """The schema of a whole object, or of an embedded one: with ``apiVersion``, ``kind`` and ``metadata``."""
    return {**schema, "properties": {**(schema.get("properties") or {}), **_COMMON}}


def type_of(schema: Json, label: str = "object") -> str:
    """The type of values of a schema: ``string``, ``list(int)``, the name of a message.

    ``label`` is what error messages call an object; ``dyn`` stands for a schema whose values are not known.
    """
    return _type(schema, label) or "dyn"


def _type(schema: Json, label: str) -> str:
    """The type; empty for values that expressions cannot use."""
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        return "dyn"
    if schema.get("x-kubernetes-embedded-resource"):
        schema = with_object_fields(schema)
    if kind == "array":
        items = _type(schema.get("items") or {}, label)
        return f"list({items})" if items else ""
    if kind == "object":
        return _object_type(schema, label)
    if kind == "string":
        return _FORMATS.get(schema.get("format", ""), "string")
    return _SCALARS.get(kind, "")


def _object_type(schema: Json, label: str) -> str:
    values = schema.get("additionalProperties")
    if isinstance(values, dict):
        value_type = _type(values, label)
        return f"map(string,{value_type})" if value_type else ""
    properties: Json = schema.get("properties") or {}
    fields = {escaped(name): _type(sub, name) for name, sub in properties.items()}
    return MESSAGES.declare(_LABEL.sub("_", label), {name: text for name, text in fields.items() if text})


def value_of(value: Any, schema: Json) -> Any:
    """A valid value in the form that the library accepts.

    Raises: ValueError for a time, duration or base64 text that cannot be read.
    """
    kind = schema.get("type", "")
    if isinstance(value, dict):
        return _object(value, schema)
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [value_of(item, items) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if kind == "number":
        return float(value)
    if kind == "integer":
        return int(value)
    if kind == "string" and schema.get("format") in _FORMATS:
        return _formatted(value, schema["format"])
    return value


def _object(value: Json, schema: Json) -> Json:
    if schema.get("x-kubernetes-embedded-resource"):
        schema = with_object_fields(schema)
    properties: Json = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    out: Json = {}
    for name, item in value.items():
        if name in properties:
            out[escaped(name)] = value_of(item, properties[name])
        elif isinstance(additional, dict):
            out[name] = value_of(item, additional)
        elif schema.get(_PRESERVE) or not schema:
            out[name] = value_of(item, {})
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
        amounts = _DURATION.findall(bare)
        if "".join(number + unit for number, unit in amounts) != bare or not amounts:
            raise ValueError(f"{text!r} is not a duration")
        return Duration(timedelta(seconds=sign * sum(float(number) * _SECONDS[unit] for number, unit in amounts)))
    moment = datetime.fromisoformat(text)
    return Timestamp(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def old_item(item: Any, old: Any, schema: Json) -> Any:
    """The item of an old list with the same keys; None in lists that do not correlate."""
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    if schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list) or not isinstance(item, dict):
        return None
    key_values = [item.get(key) for key in keys]
    return next(
        (old_item for old_item in old if isinstance(old_item, dict) and [old_item.get(k) for k in keys] == key_values),
        None,
    )
