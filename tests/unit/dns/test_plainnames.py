"""Replies to plain questions, made from the bytes of the request: the same as those of the zone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.dns.names_of_cluster import fill_cluster

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.dns.plainnames import PlainNames
from podwire.dns.respond import Reply, respond
from podwire.dns.wire import DnsMessage, Edns
from podwire.dns.zone import Zone, ZoneOptions

_LABELS = ("web", "db", "www", "example", "com", "shop", "empty", "svc", "pod", "dns", "cluster", "local", "x\u00e9")


def a_zone(**options: object) -> Zone:
    zone = Zone(ZoneOptions(**options))  # type: ignore[arg-type]
    fill_cluster(zone)
    return zone


ZONE = a_zone()


def same_as_the_zone(data: bytes, udp_size: int = 1232) -> bool:
    """Whether the short way has a reply, which must be that of the zone."""
    outcome = PlainNames(ZONE, udp_size).reply(data)
    if outcome is None:
        return False
    expected = respond(ZONE, data, udp_ceiling=udp_size)
    assert isinstance(expected, Reply)
    assert data[:2] + outcome.tail == expected.data
    assert outcome[1:] == (expected.qtype, expected.dnssec_ok, expected.rcode, expected.zone)
    return True


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("www.example.com.shop.svc.cluster.local", True),
        ("www.example.com.svc.Cluster.Local", False),
        ("www.Example.com.SVC.cluster.local", True),
        ("www.example.com.cluster.local", True),
        ("gone.shop.svc.cluster.local", True),
        ("web.gone.svc.cluster.local", True),
        ("web.shop.svc.cluster.local", True),
        ("WEB.shop.svc.cluster.local", True),
        ("db.shop.svc.cluster.local", False),
        ("gone.web.shop.svc.cluster.local", False),
        ("shop.svc.cluster.local", False),
        ("10-0-0-1.shop.pod.cluster.local", False),
        ("svc.cluster.local", False),
        ("cluster.local", False),
        ("www.example.com", False),
        ("xcluster.local", False),
    ],
)
@pytest.mark.parametrize("edns", [None, Edns(1400), Edns(100, dnssec_ok=True, options=b"\x00\x0a\x00\x02ab")])
@pytest.mark.parametrize("udp_size", [0, 1232])
def test_missing_names_take_the_short_way(name: str, short: bool, edns: Edns | None, udp_size: int) -> None:
    request = wire.encode(DnsMessage(7, wire.RD | wire.CD, encode_name(name), wire.AAAA, edns=edns))
    assert same_as_the_zone(request, udp_size) == short


@pytest.mark.parametrize(
    ("name", "qtype", "short"),
    [
        ("web.shop.svc.cluster.local", wire.A, True),
        ("web.shop.svc.cluster.local", wire.SRV, False),
        ("out.shop.svc.cluster.local", wire.A, False),
        ("db.shop.svc.cluster.local", wire.A, False),
        ("1.0.96.10.in-addr.arpa", wire.PTR, True),
        ("1.0.96.10.IN-ADDR.arpa", wire.PTR, False),
        ("1.0.96.10.in-addr.arpa", wire.A, False),
        ("01.0.96.10.in-addr.arpa", wire.PTR, False),
        ("20.1.244.10.in-addr.arpa", wire.PTR, False),
        ("9.0.96.10.in-addr.arpa", wire.PTR, False),
        ("0.96.10.in-addr.arpa", wire.PTR, False),
    ],
)
@pytest.mark.parametrize("edns", [None, Edns(1400), Edns(100, dnssec_ok=True, options=b"\x00\x0a\x00\x02ab")])
def test_services_and_their_addresses_take_the_short_way(name: str, qtype: int, short: bool, edns: Edns | None) -> None:
    request = wire.encode(DnsMessage(7, wire.RD | wire.CD, encode_name(name), qtype, edns=edns))
    assert same_as_the_zone(request) == short


@given(
    st.lists(st.sampled_from(_LABELS), min_size=1, max_size=7),
    st.sampled_from((wire.A, wire.AAAA, wire.SRV, wire.ANY, wire.AXFR)),
    st.sampled_from((wire.IN, wire.CLASS_ANY, 3)),
    st.integers(0, 0xFFFF),
)
def test_random_questions_have_the_same_reply(labels: list[str], qtype: int, rclass: int, flags: int) -> None:
    name = encode_name(".".join((*labels, "cluster.local")))
    same_as_the_zone(wire.encode(DnsMessage(1, flags, name, qtype, rclass, edns=Edns())))


@given(st.binary(max_size=80), st.integers(0, 80), st.integers(0, 255))
def test_damaged_requests_have_the_same_reply(noise: bytes, at: int, byte: int) -> None:
    name = encode_name("www.example.com.shop.svc.cluster.local")
    data = bytearray(wire.encode(DnsMessage(1, wire.RD, name, wire.A, edns=Edns(options=b"\x00\x03\x00\x00"))))
    data[min(at, len(data) - 1)] = byte
    same_as_the_zone(bytes(data))
    same_as_the_zone(bytes(data) + noise)
    same_as_the_zone(bytes(data[: at + 1]))


@pytest.mark.parametrize(
    "options",
    [{"namespaces": ("shop",)}, {"fallthrough": ("cluster.local",)}, {"hosts": {"a.example": ("192.0.2.1",)}}],
)
def test_zones_with_other_rules_are_asked_themselves(options: dict[str, object]) -> None:
    request = wire.encode(DnsMessage(7, 0, encode_name("gone.shop.svc.cluster.local"), wire.A))
    assert PlainNames(a_zone(**options), 1232).reply(request) is None


def test_before_everything_is_listed_the_zone_is_asked() -> None:
    request = wire.encode(DnsMessage(7, 0, encode_name("gone.shop.svc.cluster.local"), wire.A))
    assert PlainNames(Zone(ZoneOptions()), 1232).reply(request) is None


def test_a_clusterset_below_the_zone_is_asked_from_the_zone() -> None:
    request = wire.encode(DnsMessage(7, 0, encode_name("web.shop.svc.set.cluster.local"), wire.A))
    assert PlainNames(a_zone(clusterset="set.cluster.local"), 1232).reply(request) is None
