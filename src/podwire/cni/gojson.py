"""Reads JSON the way Go's ``encoding/json`` does, for documents that programs in Go write and read (pure).

Container runtimes and the reference plugins are written in Go. Their documents rely on three of its rules:

1. The name of a field matches in any case: containerd writes ``HostPort`` where the convention says ``hostPort``. When
   a document has several spellings of a field, the last one counts.
2. ``null`` is an absent value: a field keeps its default; in a list, ``null`` is an element with the default of every
   field, or the empty string.
3. Unknown fields are ignored.

Names of dictionaries, such as annotations, keep their case. Source: the documentation of ``encoding/json.Unmarshal``.
Cost: some 10 microseconds for a configuration.
"""

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T", bound=msgspec.Struct)


def decode(text: bytes, kind: type[T]) -> T:
    """The document in a JSON text.

    Raises: msgspec.DecodeError when the text is not JSON; msgspec.ValidationError (one of its kinds) when a field has a
    wrong type.
    """
    return convert(msgspec.json.decode(text), kind)


def convert(document: object, kind: type[T]) -> T:
    """The document in a decoded JSON value.

    Raises: msgspec.ValidationError when a field has a wrong type.
    """
    return msgspec.convert({} if document is None else _adapt(document, _schema(kind)), kind)


@cache
def _schema(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[str, inspect.Type]]:
    """The spelling and the type of each field, by its name in lower case."""
    schema = inspect.type_info(kind)
    assert isinstance(schema, inspect.StructType), "the argument is a struct"
    return {field.encode_name.casefold(): (field.encode_name, field.type) for field in schema.fields}


def _adapt(value: object, schema: inspect.Type) -> object:
    if isinstance(schema, inspect.UnionType):
        kinds = [kind for kind in schema.types if not isinstance(kind, inspect.NoneType)]
        return _adapt(value, kinds[0]) if len(kinds) == 1 else value
    if isinstance(schema, inspect.StructType) and isinstance(value, dict):
        return _adapt_fields(value, _fields(schema.cls))
    if isinstance(schema, inspect.VarTupleType) and isinstance(value, list):
        return [_empty(schema.item_type) if item is None else _adapt(item, schema.item_type) for item in value]
    if isinstance(schema, inspect.DictType) and isinstance(value, dict):
        return {name: _empty(schema.value_type) if item is None else item for name, item in value.items()}
    return value


def _adapt_fields(document: dict[str, Any], fields: dict[str, tuple[str, inspect.Type]]) -> dict[str, object]:
    adapted: dict[str, object] = {}
    for name, value in document.items():
        known = fields.get(name.casefold())
        if known is not None and value is not None:
            adapted[known[0]] = _adapt(value, known[1])
    return adapted


def _empty(schema: inspect.Type) -> object:
    """What Go makes of ``null`` in a list or dictionary."""
    if isinstance(schema, inspect.StructType):
        return {}
    return "" if isinstance(schema, inspect.StrType) else None
