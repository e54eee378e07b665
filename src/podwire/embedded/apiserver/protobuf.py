"""Decodes the protobuf form of Kubernetes objects, which kubectl sends for most of ``kubectl create``.

The body is the magic ``k8s\\0`` and a ``runtime.Unknown`` message: apiVersion and kind, then the object's own
message as bytes. The object's fields are found by number in a packaged table (made from kubectl's own
descriptors, 10 KB), and come out as the JSON form: names as in JSON, inlined structs flattened, bytes as
base64, times, quantities and int-or-strings as their texts. Go writes fields that are not pointers even when
they are zero; such zeros are dropped here, as JSON's omitempty does, except where zero is a value.

Unknown fields are skipped. Only decoding is needed: clients accept JSON answers to protobuf requests. Cost is one pass
over the bytes. Sources: protobuf encoding guide; ``apimachinery/pkg/runtime/generated.proto``.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from struct import unpack
from typing import Any

from podwire.embedded.apiserver.schema import data
from podwire.errors import ApiError
from podwire.runtime.clock import rfc3339, rfc3339_micro

MAGIC = b"k8s\x00"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEPTH = 64
"""Messages nested deeper than this are refused; JSONSchemaProps is the deepest real one."""

MessageFields = Mapping[int, tuple[str, str]]
Wire = tuple[int, int, int | bytes]


def _bad(problem: str) -> ApiError:
    return ApiError(400, "BadRequest", f"error decoding the body as protobuf: {problem}")


def _varint(raw: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if offset >= len(raw) or shift > 63:
            raise _bad("truncated number")
        byte = raw[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7


def scan(raw: bytes) -> Iterator[Wire]:
    """Field number, wire type and raw value of every field of a message, in order.

    Raises: ApiError 400 for bytes that are no message.
    """
    offset = 0
    while offset < len(raw):
        tag, offset = _varint(raw, offset)
        kind = tag & 7
        if kind == _VARINT:
            value, offset = _varint(raw, offset)
            yield tag >> 3, kind, value
            continue
        size = 8 if kind == _FIXED64 else 4 if kind == _FIXED32 else -1
        if kind == _BYTES:
            size, offset = _varint(raw, offset)
        if size < 0:
            raise _bad(f"wire type {kind} is not used by Kubernetes")
        if offset + size > len(raw):
            raise _bad("truncated field")
        yield tag >> 3, kind, raw[offset : offset + size]
        offset += size


@cache
def _tables() -> Mapping[str, MessageFields]:
    tables = data.read("protobuf.json.xz")
    return {
        name: {int(number): (field, kind) for number, (field, kind) in fields.items()}
        for name, fields in tables.items()
    }


def _text(raw: int | bytes) -> str:
    if isinstance(raw, int):
        raise _bad("a text is a number")
    try:
        return raw.decode()
    except UnicodeDecodeError as failure:
        raise _bad("a text is not UTF-8") from failure


def _signed(raw: int | bytes) -> int:
    if isinstance(raw, bytes):
        return int.from_bytes(raw, "little", signed=True)
    return raw - (1 << 64) if raw >> 63 else raw


def _payload(raw: int | bytes) -> bytes:
    if isinstance(raw, int):
        raise _bad("a message is a number")
    return raw


def _double(raw: int | bytes) -> float:
    number: float = unpack("<d", _payload(raw).ljust(8, b"\0")[:8])[0]
    return number


_SCALARS: Mapping[str, Callable[[int | bytes], Any]] = {
    "string": _text,
    "int": _signed,
    "bool": bool,
    "double": _double,
    "bytes": lambda raw: b64encode(_payload(raw)).decode(),
}


def _numbers(raw: bytes) -> dict[int, int | bytes]:
    return {number: value for number, _, value in scan(raw)}


def _instant(raw: bytes) -> datetime | None:
    numbers = _numbers(raw)
    if not numbers:
        return None
    moment = timedelta(seconds=_signed(numbers.get(1, 0)), microseconds=_signed(numbers.get(2, 0)) // 1000)
    try:
        return _EPOCH + moment
    except OverflowError as failure:
        raise _bad("a time is out of range") from failure


def _time(raw: bytes) -> str | None:
    instant = _instant(raw)
    return rfc3339(instant) if instant else None


def _micro_time(raw: bytes) -> str | None:
    instant = _instant(raw)
    return rfc3339_micro(instant) if instant else None


def _quantity(raw: bytes) -> str:
    return _text(_numbers(raw).get(1, b"0"))


def _int_or_string(raw: bytes) -> int | str:
    numbers = _numbers(raw)
    return _text(numbers.get(3, b"")) if numbers.get(1) else _signed(numbers.get(2, 0))


def _embedded(raw: bytes) -> Any:
    """JSON inside protobuf: raw extensions, field sets, values of schemas."""
    text = _payload(_numbers(raw).get(1, b""))
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError as failure:
        raise _bad("embedded JSON is malformed") from failure


def _items(raw: bytes) -> list[str]:
    return [_text(value) for number, _, value in scan(raw) if number == 1]


_SPECIAL: Mapping[str, Callable[[bytes], Any]] = {
    _META + "Time": _time,
    _META + "MicroTime": _micro_time,
    _META + "FieldsV1": _embedded,
    _META + "Verbs": _items,
    "io.k8s.apimachinery.pkg.api.resource.Quantity": _quantity,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _int_or_string,
    "io.k8s.apimachinery.pkg.runtime.RawExtension": _embedded,
    "io.k8s.api.authentication.v1.ExtraValue": _items,
    "io.k8s.api.authorization.v1.ExtraValue": _items,
    "io.k8s.api.certificates.v1.ExtraValue": _items,
}


def _value(kind: str, raw: int | bytes, depth: int) -> Any:
    scalar = _SCALARS.get(kind)
    if scalar is not None:
        return scalar(raw)
    special = _SPECIAL.get(kind)
    return special(_payload(raw)) if special is not None else _message(kind, _payload(raw), depth + 1)


def _entry(kind: str, raw: int | bytes, depth: int) -> tuple[str, Any]:
    """Key and value of one map entry."""
    entry = _numbers(_payload(raw))
    value = entry.get(2, 0 if kind in ("int", "bool", "double") else b"")
    return _text(entry.get(1, b"")), _value(kind, value, depth)


def _packed(kind: str, wire: int, raw: int | bytes, depth: int) -> list[Any]:
    """One or more items of a list; numbers may come packed."""
    if wire == _BYTES and kind in ("int", "bool"):
        out, offset, payload = [], 0, _payload(raw)
        while offset < len(payload):
            value, offset = _varint(payload, offset)
            out.append(_SCALARS[kind](value))
        return out
    return [_value(kind, raw, depth)]


def _message(name: str, raw: bytes, depth: int = 0) -> dict[str, Any]:
    if depth > _DEPTH:
        raise _bad("messages are nested too deeply")
    table = _tables().get(name)
    if table is None:
        raise _bad(f"unknown message {name}")
    out: dict[str, Any] = {}
    for number, wire, value in scan(raw):
        if number in table:
            field, kind = table[number]
            _put(out, field, kind, (wire, value, depth))
    return out


def _put(out: dict[str, Any], field: str, kind: str, content: tuple[int, int | bytes, int]) -> None:
    """Put one decoded field into the object."""
    wire, raw, depth = content
    if kind.startswith("[]"):
        out.setdefault(field, []).extend(_packed(kind[2:], wire, raw, depth))
    elif kind.startswith("{}"):
        key, value = _entry(kind[2:], raw, depth)
        out.setdefault(field, {})[key] = value
    elif kind.startswith("^"):
        out.update(_value(kind[1:], raw, depth))
    else:
        value = _value(kind.lstrip("?"), raw, depth)
        zero = value is None or (value in ("", 0) and kind in _SCALARS)
        if not zero:
            out[field] = value


def _definition(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    name = data.names().get((group, version, kind))
    if name is None and kind == "DeleteOptions":
        return _META + kind
    if name is None:
        raise _bad(f'no kind "{kind}" is registered for version "{api_version}"')
    return name


def decode(raw: bytes) -> dict[str, Any]:
    """The object in an envelope, as its JSON form with apiVersion and kind.

    Raises: ApiError 400 for bytes that are no envelope, a kind that is not known, or a malformed message.
    """
    if not raw.startswith(MAGIC):
        raise _bad("the body does not start with k8s\\0")
    envelope = _numbers(raw[len(MAGIC) :])
    meta = _numbers(_payload(envelope.get(1, b"")))
    api_version, kind = _text(meta.get(1, b"")), _text(meta.get(2, b""))
    if _payload(envelope.get(3, b"")):
        raise _bad("encoded content is not supported")
    body = _message(_definition(api_version, kind), _payload(envelope.get(2, b"")))
    return {"apiVersion": api_version, "kind": kind, **body}
