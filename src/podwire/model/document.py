"""Converts documents of users to values; an error names the field and the allowed values.

msgspec reports the position of a wrong value, but neither the allowed words of a field nor the fields of an object; the
type of the document has both, and :func:`refusal` looks them up.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from podwire.errors import ConfigError

T = TypeVar("T")

_STEP = re.compile(r"\[([^\]]*)\]|([^.\[]+)")
"""One step of a path: an index, ``[...]`` for any key, or the name of a field."""
_KEY = " - at `key` in `$"
_WORD = "Invalid enum value "
_FIELD = re.compile(r"Object contains unknown field `(.*)`")
_TYPE = re.compile(r"`(int|float|str|bool|array|object|null)((?: \| (?:int|float|str|bool|array|object|null))*)`")
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
"""What errors call the types of msgspec."""


def convert(document: object, kind: type[T], source: str, path: str = "") -> T:
    """The document as a value of ``kind``; it is at ``path`` in ``source``.

    Raises: ConfigError with the path of the wrong field, and the allowed values.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as failure:
        raise wrong(failure, kind, source, path) from failure


def wrong(failure: msgspec.ValidationError, kind: Any, source: str, path: str = "") -> ConfigError:
    """The error for a document that msgspec could not convert to ``kind``."""
    field, problem = refusal(failure, kind)
    dot = "." if path and field and not field.startswith("[") else ""
    return ConfigError(source, f"{path}{dot}{field}", problem)


def not_yaml(failure: Exception, source: str, path: str = "") -> ConfigError:
    """The error for a text that is not YAML: with its line if it is a document of its own."""
    reason: Any = failure.__cause__ or failure
    mark = getattr(reason, "problem_mark", None)
    problem = str(getattr(reason, "problem", None) or reason)
    if problem.startswith("but "):
        problem = f"{getattr(reason, 'context', '')}, {problem}"
    where = source if path or mark is None else f"{source}:{mark.line + 1}"
    return ConfigError(where, path, f"not YAML: {' '.join(problem.split())}")


def refusal(failure: msgspec.ValidationError, kind: Any) -> tuple[str, str]:
    """The path of the wrong field, and the problem."""
    text = str(failure)
    head, key, path = text.partition(_KEY)
    if not key:
        head, _, path = text.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if head.startswith(_WORD):
        expected = _accepted_values(kind, path, keys=bool(key))
        problem = f"{head.removeprefix(_WORD)} is not valid" + (
            f"; expected one of {', '.join(expected)}" if expected else ""
        )
    elif unknown := _FIELD.fullmatch(head):
        fields = _fields(kind, path)
        problem = f"unknown field `{unknown[1]}`" + (f"; expected one of {', '.join(fields)}" if fields else "")
    else:
        problem = _TYPE.sub(_plain_types, head[:1].lower() + head[1:])
    return path, problem


def _plain_types(match: re.Match[str]) -> str:
    """The types of a message in plain words; ``null`` is left out where other types are allowed too."""
    names = [match[1], *match[2].split(" | ")[1:]]
    return " or ".join(_TYPES[name] for name in names if name != "null" or len(names) == 1)


def _accepted_values(kind: Any, path: str, *, keys: bool) -> tuple[str, ...]:
    """The values that the field at a path may have, or its keys."""
    from msgspec.inspect import DictType, EnumType, LiteralType

    expected: list[str] = []
    for type_at in _at(kind, path):
        for type_ in _plain(type_at.key_type) if keys and isinstance(type_at, DictType) else (type_at,):
            if isinstance(type_, LiteralType):
                expected += (str(value) for value in type_.values if value is not None)
            elif isinstance(type_, EnumType):
                expected += (str(member.value) for member in type_.cls)
    return tuple(expected)


def _fields(kind: Any, path: str) -> tuple[str, ...]:
    """The fields of the object at a path."""
    from msgspec.inspect import StructType

    structs = [type_at for type_at in _at(kind, path) if isinstance(type_at, StructType)]
    return tuple(field.encode_name for struct in structs for field in struct.fields)


def _at(kind: Any, path: str) -> list[Any]:
    """The types of a document at a path."""
    from msgspec.inspect import type_info

    types = list(_plain(type_info(kind)))
    for step in _STEP.finditer(path):
        types = [type_ for type_at in types for inner in _inside(type_at, step[2] or "") for type_ in _plain(inner)]
    return types


def _plain(type_: Any) -> Iterator[Any]:
    """A type, or the members of a union."""
    from msgspec.inspect import UnionType

    if isinstance(type_, UnionType):
        for member in type_.types:
            yield from _plain(member)
    else:
        yield type_


def _inside(type_: Any, name: str) -> Iterator[Any]:
    """The types of a field by its name; without a name those of the items."""
    from msgspec.inspect import DictType, StructType, TupleType

    if isinstance(type_, StructType):
        yield from (field.type for field in type_.fields if field.encode_name == name)
    elif isinstance(type_, DictType):
        yield type_.value_type
    elif isinstance(type_, TupleType):
        yield from type_.item_types
    elif hasattr(type_, "item_type"):
        yield type_.item_type
