"""Many neighbours and forwarding entries as rtnetlink messages. Pure.

Those of one device differ in addresses alone: without these, and without the kernel's times and counters, their
payloads are the same, headers of attributes included. So the first of them is decoded, and the others are copies of its
value. Cost: 2 us a value (8 us by :mod:`podwire.kernel.route_codec` alone).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import force_setattr

from podwire.kernel import route_codec
from podwire.kernel.attributes import spans
from podwire.kernel.uapi import NDA_CACHEINFO, NDA_DST, NDA_LLADDR, NDA_PROBES
from podwire.state.address import unpack_ip, unpack_mac
from podwire.state.route import Fdb, Neighbour

T = TypeVar("T", Neighbour, Fdb)
_COUNTED = (NDA_CACHEINFO, NDA_PROBES)
Fields = Mapping[int, tuple[str, Callable[[bytes], str]]]
"""By type of attribute, the field that has its value, and the function that makes the text."""


class _Shape(NamedTuple):
    """The layout of the payloads of one length: the bytes that many have in common, and the position of each field."""

    rest: Callable[[bytes], Any]
    fields: tuple[tuple[str, slice, Callable[[bytes], str]], ...]


def decode_neighbours(payloads: Iterable[bytes], names: Mapping[int, str]) -> Iterator[Neighbour | None]:
    """The result of :func:`route_codec.decode_neighbour` for each payload.

    Raises: ProtocolError when a payload cannot be decoded.
    """
    fields: Fields = {NDA_DST: ("ip", unpack_ip), NDA_LLADDR: ("mac", unpack_mac)}
    return _decode(payloads, fields, lambda payload: route_codec.decode_neighbour(payload, names))


def decode_fdb(payloads: Iterable[bytes], names: Mapping[int, str]) -> Iterator[Fdb | None]:
    """The result of :func:`route_codec.decode_fdb` for each payload.

    Raises: ProtocolError when a payload cannot be decoded.
    """
    fields: Fields = {NDA_DST: ("dst", unpack_ip), NDA_LLADDR: ("mac", unpack_mac)}
    return _decode(payloads, fields, lambda payload: route_codec.decode_fdb(payload, names))


def _decode(
    payloads: Iterable[bytes],
    fields: Fields,
    decode: Callable[[bytes], T | None],
) -> Iterator[T | None]:
    shapes: dict[int, _Shape] = {}  # by length: the layout of the payload that was decoded last
    known: dict[Any, T | None] = {}
    for payload in payloads:
        shape = shapes.get(len(payload))
        if shape is not None and (key := (len(payload), shape.rest(payload))) in known:
            first: Any = known[key]
            if first is not None:
                copy = first.__copy__()
                for field, place, unpack in shape.fields:
                    force_setattr(copy, field, unpack(payload[place]))
                yield copy
            else:
                yield None
            continue
        value = decode(payload)
        yield value
        shape = _shape(payload, fields)
        if value is None or all(getattr(value, field) == unpack(payload[at]) for field, at, unpack in shape.fields):
            shapes[len(payload)] = shape
            known[len(payload), shape.rest(payload)] = value


def _shape(payload: bytes, fields: Fields) -> _Shape:
    rest, varying, start = [], [], 0
    for kind, offset, size in spans(payload, route_codec.NDMSG.size):
        if kind in fields or kind in _COUNTED:
            rest.append(slice(start, offset))
            start = offset + size
            if kind in fields:
                varying.append((fields[kind][0], slice(offset, offset + size), fields[kind][1]))
    return _Shape(itemgetter(*rest, slice(start, None)), tuple(varying))
