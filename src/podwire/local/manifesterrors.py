"""Errors about manifests that the API server refuses: file, line and field instead of the server's message."""

import re
from collections.abc import Mapping
from typing import Any

from podwire.errors import ApiError, ConfigError, ConfigErrors
from podwire.local.manifests import Manifest

_TYPE = re.compile(r"cannot unmarshal (.+) into Go struct field \w*\.(\S+) of type (\S+)")
_TYPES = {
    "string": "a text",
    "bool": "true or false",
    "number": "a number",
    "int32": "a number",
    "int64": "a number",
    "array": "a list",
    "object": "an object",
    "map[string]string": "an object with texts",
}
"""The names that errors use for types of Go and JSON."""
_UNKNOWN_FIELD = re.compile(r'unknown field "([^"]+)"|\.(\S+): field not declared in schema')
"""A field that the kind does not have, as strict validation and server-side apply report it."""


def refused(manifest: Manifest, failure: ApiError) -> ConfigError:
    """The error for an object that the API server refuses, with a line for each field that the server names."""
    if mismatch := _TYPE.search(failure.message):
        actual_type, field, expected_type = mismatch.groups()
        expected, actual = _TYPES.get(expected_type, expected_type), _TYPES.get(actual_type, actual_type)
        return field_error(manifest, field, f"expected {expected}, found {actual}")
    if unknown := [match[1] or match[2] for match in _UNKNOWN_FIELD.finditer(failure.message)]:
        return ConfigErrors([field_error(manifest, field, "there is no such field") for field in unknown])
    causes: list[Mapping[str, Any]] = failure.details.get("causes") or []
    if all(cause.get("field") and cause.get("message") for cause in causes) and causes:
        return ConfigErrors([field_error(manifest, cause["field"], cause["message"]) for cause in causes])
    return ConfigError(manifest.source, manifest.name, failure.message)


def field_error(manifest: Manifest, field: str, problem: str) -> ConfigError:
    """An error about a field of a manifest."""
    return ConfigError(manifest.at(field), field, f"{manifest.name}: {problem}")
