"""Checks a custom object against the structural schema of its definition.

The vocabulary is that of ``apiextensions.k8s.io/v1``; rules (``x-kubernetes-validations``) are evaluated by
:mod:`podwire.embedded.apiserver.cel.rules`. Messages are those of kube-openapi's validator as the API server passes
them on. One pass over the object.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes, names
from podwire.embedded.apiserver.validate.patterns import UnsupportedPatternError, compile_pattern

Json = dict[str, Any]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def type_name(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _is_time(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return "not a time"
    return "" if "T" in text else "not a time"


_FORMATS: Mapping[str, Callable[[str], str]] = {
    "date-time": _is_time,
    "ipv4": lambda text: names.ip(text) or ("ipv6" if ":" in text else ""),
    "ipv6": lambda text: names.ip(text) or ("" if ":" in text else "ipv4"),
    "cidr": names.cidr,
    "uuid": lambda text: "" if re.fullmatch(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}", text) else "no",
}


def _string(value: str, schema: Json, path: str) -> Iterator[Cause]:
    most, least = schema.get("maxLength"), schema.get("minLength")
    if most is not None and len(value) > most:
        yield causes.too_long(path, most)
    if least is not None and len(value) < least:
        yield causes.invalid(path, value, f"{path} in body should be at least {least} chars long")
    pattern = schema.get("pattern")
    if pattern:
        # A definition with another pattern is refused.
        with contextlib.suppress(UnsupportedPatternError):
            if compile_pattern(pattern).search(value) is None:
                yield causes.invalid(path, value, f"{path} in body should match '{pattern}'")
    form = schema.get("format", "")
    if form in _FORMATS and _FORMATS[form](value):
        yield causes.invalid(path, value, f"{path} in body must be of type {form}: {causes.quoted(value)}")


def _number(value: float, schema: Json, path: str) -> Iterator[Cause]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        strict = bool(schema.get("exclusiveMinimum"))
        if value < least or (strict and value == least):
            text = "should be greater than" + " or equal to" * (not strict)
            yield causes.invalid(path, value, f"{path} in body {text} {least}")
    if most is not None:
        strict = bool(schema.get("exclusiveMaximum"))
        if value > most or (strict and value == most):
            text = "should be less than" + " or equal to" * (not strict)
            yield causes.invalid(path, value, f"{path} in body {text} {most}")
    factor = schema.get("multipleOf")
    if factor and value % factor:
        yield causes.invalid(path, value, f"{path} in body should be a multiple of {factor}")


def _size(count: int, schema: Json, path: str, noun: str) -> Iterator[Cause]:
    suffix = noun.capitalize()
    most, least = schema.get(f"max{suffix}"), schema.get(f"min{suffix}")
    if most is not None and count > most:
        yield causes.too_many(path, count, most)
    if least is not None and count < least:
        yield causes.invalid(path, count, f"{path} in body should have at least {least} {noun}")


def _array(value: list[Any], schema: Json, path: str) -> Iterator[Cause]:
    yield from _size(len(value), schema, path, "items")
    yield from _unique(value, schema, path)
    items = schema.get("items")
    if isinstance(items, dict):
        for index, item in enumerate(value):
            yield from _check(item, items, f"{path}[{index}]")


def _unique(value: list[Any], schema: Json, path: str) -> Iterator[Cause]:
    kind, keys = schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-list-map-keys") or ()
    if kind not in ("map", "set"):
        return
    properties = (schema.get("items") or {}).get("properties") or {}
    texts: set[str] = set()
    for index, item in enumerate(value):
        key = item
        if kind == "map" and isinstance(item, dict):
            key = {name: item.get(name, (properties.get(name) or {}).get("default")) for name in keys}
        text = causes.quoted(key)
        if text in texts:
            yield causes.duplicate(f"{path}[{index}]", key)
        texts.add(text)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _object(value: Json, schema: Json, path: str) -> Iterator[Cause]:
    yield from _size(len(value), schema, path, "properties")
    for name in schema.get("required") or ():
        if name not in value:
            yield causes.required(_join(path, name))
    properties = schema.get("properties") or {}
    additional = schema.get("additionalProperties")
    for name, item in value.items():
        sub = properties.get(name, additional)
        if isinstance(sub, dict):
            yield from _check(item, sub, _join(path, name))


def _combined(value: Any, schema: Json, path: str) -> Iterator[Cause]:
    """``allOf``, ``anyOf``, ``oneOf`` and ``not``."""
    for sub in schema.get("allOf") or ():
        yield from _check(value, sub, path)

    def passing(field: str) -> int:
        return sum(not any(_check(value, sub, path)) for sub in schema[field])

    if schema.get("anyOf") and not passing("anyOf"):
        yield causes.invalid(path, value, f'"{path}" must validate at least one schema (anyOf)')
    if schema.get("oneOf"):
        matching = passing("oneOf")
        if matching != 1:
            how = "Found none valid" if not matching else f"Found {matching} valid alternatives"
            yield causes.invalid(path, value, f'"{path}" must validate one and only one schema (oneOf). {how}')
    if schema.get("not") is not None and not any(_check(value, schema["not"], path)):
        yield causes.invalid(path, value, f'"{path}" must not validate the schema (not)')


def _typed(value: Any, schema: Json, path: str) -> Iterator[Cause]:
    """Whether the value has the wrong type."""
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        good = isinstance(value, int | str) and not isinstance(value, bool)
        kind = "integer,string"
    else:
        good = not kind or _fits(value, kind)
    if not good:
        actual_type = type_name(value)
        yield causes.type_invalid(path, actual_type, f'{path} in body must be of type {kind}: "{actual_type}"')


def _check(value: Any, schema: Json, path: str) -> Iterator[Cause]:
    if value is None and schema.get("nullable"):
        return
    invalid_fields = list(_typed(value, schema, path))
    if invalid_fields:
        yield from invalid_fields
        return
    if schema.get("enum") and value not in schema["enum"]:
        yield causes.unsupported(path, value, [item if isinstance(item, str) else str(item) for item in schema["enum"]])
    if isinstance(value, str):
        yield from _string(value, schema, path)
    elif isinstance(value, dict):
        yield from _object(value, schema, path)
    elif isinstance(value, list):
        yield from _array(value, schema, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, path)
    yield from _combined(value, schema, path)


def check(obj: Any, schema: Json, path: str = "") -> list[Cause]:
    """Every field of a value that the schema refuses, in the order of the value."""
    return list(_check(obj, schema, path))
