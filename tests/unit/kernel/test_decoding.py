"""Bytes from the kernel that are not state: notifications, tracked flows, refusals."""

import contextlib
import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import KernelError, KernelExists, KernelNotFound, ProtocolError, Unsupported
from podwire.kernel import conntrack, link_codec, monitor, route_codec, rule_codec
from podwire.kernel.attributes import NLMSGHDR, attribute, nested, u8
from podwire.kernel.failure import refusal
from podwire.kernel.monitor import Event
from podwire.kernel.uapi import RTM_DELLINK, RTM_NEWADDR, RTM_NEWNEIGH, RTM_NEWROUTE, RTM_NEWRULE
from podwire.state.link import Link
from podwire.state.route import Address, FibRule, Neighbour, Route

INDEXES = {"eth0": 7}


def datagram(kind: int, body: bytes) -> bytes:
    return NLMSGHDR.pack(NLMSGHDR.size + len(body), kind, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("kind", "body", "event"),
    [
        (RTM_DELLINK, link_codec.encode_add(Link("x", "dummy", index=7), {}), Event("link", True, 7)),
        (
            RTM_NEWADDR,
            route_codec.encode_address(Address("eth0", "10.0.0.1/8", proto=9), INDEXES),
            Event("address", False, 7, 9),
        ),
        (
            RTM_NEWROUTE,
            route_codec.encode_route(Route("10.0.0.0/8", link="eth0", proto=113), INDEXES),
            Event("route", False, 7, 113, "10.0.0.0/8"),
        ),
        (
            RTM_NEWNEIGH,
            route_codec.encode_neighbour(Neighbour("eth0", "10.0.0.1", proto=5), INDEXES),
            Event("neighbour", False, 7, 5),
        ),
        (RTM_NEWRULE, rule_codec.encode_rule(FibRule(1, table=2, proto=6)), Event("rule", False, 0, 6)),
    ],
    ids=["link", "address", "route", "neighbour", "rule"],
)
def test_a_notification_is_an_event(kind: int, body: bytes, event: Event) -> None:
    assert monitor.decode(datagram(kind, body)) == [event]


@given(st.binary(max_size=60), st.sampled_from([RTM_DELLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH]))
def test_a_broken_notification_counts_as_lost(body: bytes, kind: int) -> None:
    events = monitor.decode(datagram(kind, body))
    assert len(events) == 1


def _ends(src: bytes, dst: bytes, sport: int, dport: int) -> bytes:
    ports = attribute(2, sport.to_bytes(2, "big")) + attribute(3, dport.to_bytes(2, "big"))
    return nested(1, attribute(1, src), attribute(2, dst)) + nested(2, u8(1, 17) + ports)


def test_a_translated_flow() -> None:
    client, service, pod = b"\x0a\xf4\0\x02", b"\x0a\x60\0\x0a", b"\x0a\xf4\x01\x03"
    payload = (
        struct.pack("!BBH", 2, 0, 0)
        + attribute(1 | 0x8000, _ends(client, service, 40000, 53))
        + attribute(2 | 0x8000, _ends(pod, client, 5353, 40000))
        + attribute(8, (0x4000).to_bytes(4, "big"))
    )
    flow = conntrack.decode(payload)
    assert str(flow) == ("UDP 10.244.0.2 40000 -> 10.96.0.10 53 reply 10.244.1.3 5353 -> 10.244.0.2 40000")
    assert flow.backend == ("10.244.1.3", 5353)
    assert flow.mark == 0x4000
    assert flow.concerns(["10.244.1.3"]) and flow.concerns(["10.96.0.10"])
    assert not flow.concerns(["10.0.0.1"])
    assert conntrack.decode(payload[:4] + flow.raw).original == flow.original
    assert not flow.redirected, "as IPVS leaves it"
    assert conntrack.decode(payload + attribute(3, (0x3FE).to_bytes(4, "big"))).redirected


@given(st.binary(min_size=4, max_size=80))
def test_bytes_that_are_no_flow(data: bytes) -> None:
    with contextlib.suppress(ProtocolError, ValueError):
        assert repr(conntrack.decode(data))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENODEV, KernelNotFound),
        (errno.ESRCH, KernelNotFound),
        (errno.ENOENT, KernelNotFound),
        (errno.EEXIST, KernelExists),
        (errno.EOPNOTSUPP, Unsupported),
        (errno.EPERM, KernelError),
    ],
)
def test_an_errno_says_what_kind_of_refusal(number: int, kind: type[KernelError]) -> None:
    failure = refusal("add", "route 10.0.0.0/8", number, "the kernel's words")
    assert type(failure) is kind
    assert "route 10.0.0.0/8" in str(failure)
    assert "the kernel's words" in str(failure)
