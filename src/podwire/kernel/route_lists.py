"""Many routes as rtnetlink messages. Pure.

The routes of one kind by one device differ in destination and next hop alone: without the bytes of these two, their
payloads are the same, headers of attributes included. So the first of them is decoded, and the others are copies of its
route. Cost: 1 us a route (6 us by :mod:`podwire.kernel.route_codec` alone).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import force_setattr

from podwire.kernel import route_codec
from podwire.kernel.attributes import places
from podwire.kernel.uapi import AF_INET, AF_INET6, RTA_DST, RTA_GATEWAY, RTA_MULTIPATH
from podwire.state.address import unpack_ip
from podwire.state.route import Route
from podwire.state.value import with_field

_ADDRESS_SIZES = {AF_INET: 4, AF_INET6: 16}


class _Shape(NamedTuple):
    """Where the destination and the next hop are in the payloads of one length; the next hop may have no bytes."""

    dst: int
    dst_end: int
    via: int
    via_end: int


def decode_routes(payloads: Iterable[bytes], names: Mapping[int, str]) -> Iterator[Route | None]:
    """The result of :func:`route_codec.decode_route` for each payload; 1 us where many routes have the same form.

    Raises: ProtocolError when a payload cannot be decoded.
    """
    shapes: dict[int, _Shape] = {}  # that of the payload of a length which was decoded last
    known: dict[_Shape, dict[bytes, tuple[Route | None, str]]] = {}
    for payload in payloads:
        shape = shapes.get(len(payload))
        if shape is not None:
            dst, dst_end, via, via_end = shape
            rest = payload[:dst] + payload[dst_end:via] + payload[via_end:]
            if (known_route := known[shape].get(rest)) is not None:
                first, length = known_route
                if first is not None:
                    copied: Route = with_field(first, "dst", unpack_ip(payload[dst:dst_end]) + length)
                    if via != via_end:
                        force_setattr(copied, "via", unpack_ip(payload[via:via_end]))
                    yield copied
                else:
                    yield None
                continue
        route = route_codec.decode_route(payload, names)
        yield route
        if (shape := _shape(payload)) is not None:
            shapes[len(payload)] = shape
            rest = payload[: shape.dst] + payload[shape.dst_end : shape.via] + payload[shape.via_end :]
            known.setdefault(shape, {})[rest] = route, f"/{payload[1]}"


def _shape(payload: bytes) -> _Shape | None:
    """The places of RTA_DST and RTA_GATEWAY; None where they are not of the family's length, in this order."""
    size = _ADDRESS_SIZES.get(payload[0])
    attributes = {kind: (offset, length) for kind, offset, length in places(payload, route_codec.RTMSG.size)}
    if size is None or RTA_MULTIPATH in attributes or attributes.get(RTA_DST, (0, 0))[1] != size:
        return None
    dst = attributes[RTA_DST][0]
    via, via_size = attributes.get(RTA_GATEWAY, (len(payload), 0))
    return _Shape(dst, dst + size, via, via + via_size) if via > dst and via_size in (0, size) else None
