"""A part of an object as YAML, as ``kubectl`` would print it (pure): maps, lists and scalars, two spaces a level.

An agent uses this module to save the memory of a YAML library. Any YAML reader can parse the output.
"""

import re
from typing import Any

import msgspec

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*$")
_SPECIAL_SCALARS = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan", "inf"))


def yaml_text(value: Any) -> str:
    """The value as YAML, without a line feed at the end."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, inner in value.items() for line in _entry(_scalar(key), inner)]
    if isinstance(value, list | tuple) and value:
        return [line for inner in value for line in _item(inner)]
    return [_scalar(value)]


def _entry(key: str, value: Any) -> list[str]:
    if isinstance(value, dict | list | tuple) and value:
        indent = "  " if isinstance(value, dict) else ""
        return [f"{key}:", *(indent + line for line in _lines(value))]
    return [f"{key}: {_scalar(value)}"]


def _item(value: Any) -> list[str]:
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.match(value) and value.lower() not in _SPECIAL_SCALARS:
        return value
    return msgspec.json.encode(value).decode()
