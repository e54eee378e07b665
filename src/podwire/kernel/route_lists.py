"""Many routes as rtnetlink messages. Pure.

The routes of one kind by one device differ in destination and next hop alone: without the bytes of these two, their
payloads are the same, headers of attributes included. So the first of them is decoded, and the others are copies of its
route. Cost: 0.5 us a route (6 us by :mod:`podwire.kernel.route_codec` alone).
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import force_setattr

from podwire.kernel import route_codec
from podwire.kernel.attributes import Run, runs, spans
from podwire.kernel.uapi import AF_INET, AF_INET6, RTA_DST, RTA_GATEWAY, RTA_MULTIPATH
from podwire.state.address import unpack_ip
from podwire.state.route import Route

_ADDRESS_SIZES = {AF_INET: 4, AF_INET6: 16}


class _Shape(NamedTuple):
    """The positions of destination and next hop in payloads of one length; the next hop may have no bytes."""

    dst: int
    dst_end: int
    via: int
    via_end: int


def decode_routes(payloads: Iterable[bytes], names: Mapping[int, str]) -> list[Route | None]:
    """The result of :func:`route_codec.decode_route` for each payload; cheap where many routes have the same form.

    Raises: ProtocolError when a payload cannot be decoded.
    """
    return decode_runs(runs(payloads), names)


def decode_runs(dumped: Iterable[Run], names: Mapping[int, str]) -> list[Route | None]:
    """As :func:`decode_routes`, for the answer to a dump.

    Raises: ProtocolError when a payload cannot be decoded.
    """
    routes: list[Route | None] = []
    for run in dumped:
        first = run.data[run.skipped : run.size]
        shape = _shape(first)
        if shape is None:
            routes += (route_codec.decode_route(payload, names) for payload in run.payloads)
        elif _differ_in_addresses(run, shape):
            routes += _copies(run, shape, route_codec.decode_route(first, names))
        else:
            _decode_run(run, shape, names, routes)
    return routes


def _differ_in_addresses(run: Run, shape: _Shape) -> bool:
    """Whether all routes differ in destination and next hop alone."""
    skipped = run.skipped
    dst, via = range(skipped + shape.dst, skipped + shape.dst_end), range(skipped + shape.via, skipped + shape.via_end)
    return run.differ_only_in(dst, via)


def _copies(run: Run, shape: _Shape, first: Any) -> list[Route | None]:
    """The routes of a run that differ from ``first``, its own first route, in addresses alone."""
    if first is None:
        return [None] * run.number
    dst, dst_end, via, via_end = shape
    form = f"{run.skipped + dst}x{dst_end - dst}s{via - dst_end}x{via_end - via}s{run.size - run.skipped - via_end}x"
    hop, length = run.data[run.skipped + via : run.skipped + via_end], f"/{run.data[run.skipped + 1]}"
    routes: list[Route | None] = []
    add, copied = routes.append, first.__copy__
    for target, next_hop in struct.iter_unpack(form, run.data):
        route = copied()
        force_setattr(route, "dst", unpack_ip(target) + length)
        if next_hop != hop:
            force_setattr(route, "via", unpack_ip(next_hop))
        add(route)
    return routes


def _decode_run(run: Run, shape: _Shape, names: Mapping[int, str], routes: list[Route | None]) -> None:
    """Adds the routes of a run of several kinds to ``routes``."""
    dst, dst_end, via, via_end = shape
    payloads = run.payloads
    form = f"{run.skipped}x{dst}s{dst_end - dst}s{via - dst_end}s{via_end - via}s{len(payloads[0]) - via_end}s"
    known: dict[tuple[bytes, ...], tuple[Any, str, bytes]] = {}
    before = between = behind = hop = b""
    first: Any = None
    length = ""
    for payload, (head, target, middle, next_hop, tail) in zip(
        payloads, struct.iter_unpack(form, run.data), strict=True
    ):
        if head != before or middle != between or tail != behind:
            template = known.get((head, middle, tail))
            if template is None:
                decoded = route_codec.decode_route(payload, names)
                routes.append(decoded)
                if _shape(payload) == shape:
                    known[head, middle, tail] = decoded, f"/{payload[1]}", next_hop
                continue
            before, between, behind = head, middle, tail
            first, length, hop = template
        route = first
        if route is not None:
            route = route.__copy__()
            force_setattr(route, "dst", unpack_ip(target) + length)
            if next_hop != hop:
                force_setattr(route, "via", unpack_ip(next_hop))
        routes.append(route)


def _shape(payload: bytes) -> _Shape | None:
    """The places of RTA_DST and RTA_GATEWAY; None where they are not of the family's length, in this order."""
    size = _ADDRESS_SIZES.get(payload[0])
    attributes = {kind: (offset, length) for kind, offset, length in spans(payload, route_codec.RTMSG.size)}
    if size is None or RTA_MULTIPATH in attributes or attributes.get(RTA_DST, (0, 0))[1] != size:
        return None
    dst = attributes[RTA_DST][0]
    via, via_size = attributes.get(RTA_GATEWAY, (len(payload), 0))
    return _Shape(dst, dst + size, via, via + via_size) if via > dst and via_size in (0, size) else None
