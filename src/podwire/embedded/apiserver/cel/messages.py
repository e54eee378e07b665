"""Object types for the compiler, with a name and typed fields, as descriptors of protocol buffers.

The library knows the fields of a type only from a descriptor. So each object schema becomes a message, whose name ends
in a hash of its fields: equal schemas are one message, and a changed schema is another one. Values never are
messages: while an expression is evaluated, objects are maps.

Types are written as text: ``bool``, ``int``, ``double``, ``string``, ``bytes``, ``timestamp``, ``duration``, ``dyn``,
``list(T)``, ``map(string,T)``, ``optional(T)``, or the name of a message. A field cannot hold a list of lists, or a
map of lists: the inner values are ``dyn``. Source: ``google/protobuf/descriptor.proto``.
"""

import hashlib
import re
from collections.abc import Mapping

from podwire.embedded.apiserver.protobuf_fields import integer, message, text

_SCALARS = {"double": 1, "int": 3, "bool": 8, "string": 9, "bytes": 12}
_KNOWN = {
    "timestamp": ".google.protobuf.Timestamp", "duration": ".google.protobuf.Duration", "dyn": ".google.protobuf.Value",
    "list": ".google.protobuf.ListValue", "map": ".google.protobuf.Struct",
}  # fmt: skip
_FILES = tuple(f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "struct"))
_LITERALS = {
    "bool": "true", "int": "0", "double": "0.0", "string": "''", "bytes": "b''", "dyn": "dyn(0)",
    "timestamp": "timestamp(0)", "duration": "duration('0s')",
}  # fmt: skip
_MESSAGE, _REPEATED, _OPTIONAL = 11, 3, 1
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_HASH = re.compile(r"_[0-9a-f]{16}\b")


def parameters(kind: str) -> tuple[str, ...]:
    """``("string", "list(int)")`` of ``map(string,list(int))``; empty for a type without parameters."""
    if not kind.endswith(")"):
        return ()
    kinds, depth, start = [], 0, kind.index("(") + 1
    for index in range(start, len(kind)):
        depth += {"(": 1, ")": -1}.get(kind[index], 0)
        if (kind[index] == "," and depth == 0) or depth < 0:
            kinds.append(kind[start:index])
            start = index + 1
    return tuple(kinds)


def literal(kind: str) -> str:
    """An expression of a type; its value has no meaning."""
    inner = parameters(kind)
    if kind.startswith("list("):
        return f"[{literal(inner[0])}]"
    if kind.startswith("map("):
        return f"{{{literal(inner[0])}: {literal(inner[1])}}}"
    if kind.startswith("optional("):
        return f"optional.of({literal(inner[0])})"
    return _LITERALS.get(kind) or f"{kind}{{}}"


def digest(fields: Mapping[str, str]) -> str:
    """The suffix of the names of all messages with these fields."""
    return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:16]


def shown(problem: str) -> str:
    """A message of the compiler with the names of types as their authors know them."""
    return _HASH.sub("", problem)


class DescriptorFile:
    """The file that declares one message, as the library asks for it."""

    __slots__ = ("serialized_pb",)

    def __init__(self, data: bytes) -> None:
        self.serialized_pb = data


class MessageTypes:
    """Every message that expressions may use. Messages are never removed; the method names are those of the library."""

    def __init__(self, known: Mapping[str, Mapping[str, str]]) -> None:
        """``known`` are messages with given names."""
        self._files = {name: DescriptorFile(_file(name, fields)) for name, fields in known.items()}

    def put(self, name: str, fields: Mapping[str, str]) -> str:
        """Declares a message of a given name; returns the name."""
        self._files[name] = DescriptorFile(_file(name, fields))
        return name

    def declare(self, label: str, fields: Mapping[str, str]) -> str:
        """The name of the message with these fields; ``label`` is its name in error messages."""
        name = f"{label}_{digest(fields)}"
        return name if name in self._files else self.put(name, fields)

    def FindFileByName(self, name: str) -> DescriptorFile:  # noqa: N802 - the library's name
        """The file of that name. Raises: KeyError."""
        return self._files[name.removesuffix(".proto")]

    def FindFileContainingSymbol(self, name: str) -> DescriptorFile:  # noqa: N802 - the library's name
        """The file that declares a message. Raises: KeyError."""
        return self._files[name]

    def FindMessageTypeByName(self, name: str) -> DescriptorFile:  # noqa: N802 - the library's name
        """Always raises KeyError: no message has extensions, and none becomes an object of Python."""
        raise KeyError(name)


# -- descriptor.proto


def _file(name: str, fields: Mapping[str, str]) -> bytes:
    """The descriptor of a file with one message."""
    package, _, short = name.rpartition(".")
    value_types: set[str] = set()
    encoded, entries = [text(1, short)], set[str]()
    for index, (field, kind) in enumerate(sorted(fields.items()), 1):
        if not _IDENTIFIER.fullmatch(field):
            continue
        entry = "".join(segment[:1].upper() + segment[1:] for segment in field.split("_")) + "Entry"
        if kind.startswith("map(") and entry not in entries and entry not in fields:
            entries.add(entry)
            value = _value_type(parameters(kind)[1])
            encoded += [_field(field, index, f".{name}.{entry}", repeated=True), _entry(entry, value)]
        else:
            repeated = kind.startswith("list(")
            value = _value_type(parameters(kind)[0] if repeated else kind)
            encoded.append(_field(field, index, value, repeated=repeated))
        value_types.add(value)
    own = {value for value in value_types if value not in _SCALARS and not value.startswith(".")} - {name}
    imports = [text(3, path) for path in (*_FILES, *(f"{message_name}.proto" for message_name in sorted(own)))]
    options = message(7, integer(11, 1))  # Names that differ in underscores only are no conflict.
    head = [text(1, f"{name}.proto"), *([text(2, package)] if package else [])]
    return b"".join((*head, *imports, message(4, *encoded, options)))


def _entry(name: str, value: str) -> bytes:
    """The message of a map's entries."""
    return message(3, text(1, name), _field("key", 1, "string"), _field("value", 2, value), message(7, integer(7, 1)))


def _value_type(kind: str) -> str:
    """The type of a field's value, or of an item: a list or map in it has no inner types."""
    if kind.startswith("optional("):
        return _KNOWN["dyn"]
    return _KNOWN.get(kind.partition("(")[0], kind)


def _field(name: str, number: int, kind: str, *, repeated: bool = False) -> bytes:
    encoded = [text(1, name), integer(3, number), integer(4, _REPEATED if repeated else _OPTIONAL)]
    if kind in _SCALARS:
        return message(2, *encoded, integer(5, _SCALARS[kind]))
    return message(2, *encoded, integer(5, _MESSAGE), text(6, kind if kind.startswith(".") else f".{kind}"))
