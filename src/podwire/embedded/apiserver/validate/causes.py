"""One wrong field as a cause, with the texts of Kubernetes (``apimachinery/pkg/util/validation/field``)."""

import json
from collections.abc import Iterable
from typing import Any

from podwire.embedded.apiserver.failures import Cause


def quoted(value: Any) -> str:
    """A value as messages show it: JSON, without escapes where Go has none."""
    if value is None:
        return "null"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _cause(path: str, reason: str, head: str, detail: str) -> Cause:
    return Cause(path, reason, f"{head}: {detail}" if detail else head)


def required(path: str, detail: str = "") -> Cause:
    """The field is missing."""
    return _cause(path, "FieldValueRequired", "Required value", detail)


def invalid(path: str, value: Any, detail: str) -> Cause:
    """The value is wrong."""
    return _cause(path, "FieldValueInvalid", f"Invalid value: {quoted(value)}", detail)


def type_invalid(path: str, value: Any, detail: str) -> Cause:
    """The value has the wrong type."""
    return _cause(path, "FieldValueTypeInvalid", f"Invalid value: {quoted(value)}", detail)


def unsupported(path: str, value: Any, supported: Iterable[str]) -> Cause:
    """The value is not one of the known values."""
    listed = ", ".join(quoted(item) for item in sorted(supported))
    return _cause(path, "FieldValueNotSupported", f"Unsupported value: {quoted(value)}", f"supported values: {listed}")


def duplicate(path: str, value: Any) -> Cause:
    """Another entry has the same value."""
    return _cause(path, "FieldValueDuplicate", f"Duplicate value: {quoted(value)}", "")


def forbidden(path: str, detail: str) -> Cause:
    """The field may not be set, or not be changed."""
    return _cause(path, "FieldValueForbidden", "Forbidden", detail)


def not_found(path: str, value: Any) -> Cause:
    """The field names something that does not exist."""
    return _cause(path, "FieldValueNotFound", f"Not found: {quoted(value)}", "")


def too_long(path: str, limit: int) -> Cause:
    """The text is too long."""
    return _cause(path, "FieldValueTooLong", "Too long", f"may not be more than {limit} bytes")


def too_many(path: str, number: int, limit: int) -> Cause:
    """The list is too long."""
    return _cause(path, "FieldValueTooMany", f"Too many: {number}", f"must have at most {limit} items")
