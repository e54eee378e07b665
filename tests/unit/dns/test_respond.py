"""Requests to replies: flags, sizes, refusals, rotation."""

import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.dns.respond import Reply, UpstreamQuery, respond
from podwire.dns.zone import Zone, ZoneOptions
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServiceSpec


def make_zone(count: int = 3) -> Zone:
    zone = Zone(ZoneOptions())
    zone.index.set_namespace("shop", present=True)
    zone.index.set_service(
        "shop/db", Service(metadata=ObjectMeta(name="db", namespace="shop"), spec=ServiceSpec(cluster_ip="None")), 1
    )
    zone.index.set_slice(
        "shop/db-1",
        EndpointSlice(
            metadata=ObjectMeta(name="db-1", namespace="shop", labels={"kubernetes.io/service-name": "db"}),
            endpoints=tuple(Endpoint(addresses=(f"10.244.0.{i + 1}",)) for i in range(count)),
            ports=(EndpointPort(name="sql", port=5432),),
        ),
        1,
    )
    zone.index.mark_synced()
    return zone


def exchange(zone: Zone, query: dns.message.Message, udp: int = 1232) -> dns.message.Message:
    outcome = respond(zone, query.to_wire(), udp_ceiling=udp)
    assert isinstance(outcome, Reply)
    return dns.message.from_wire(outcome.data)


def test_flags_of_an_answer() -> None:
    query = dns.message.make_query("DB.shop.svc.cluster.local", "A")
    query.flags |= dns.flags.CD | dns.flags.AD
    reply = exchange(make_zone(), query)
    assert reply.flags == dns.flags.QR | dns.flags.AA | dns.flags.RD | dns.flags.CD
    assert reply.question == query.question
    assert reply.answer[0].name.to_text() == "DB.shop.svc.cluster.local."


@pytest.mark.parametrize(
    ("edns", "udp", "limit"), [(None, 1232, 512), (100, 1232, 512), (1232, 4096, 1232), (4096, 1232, 1232)]
)
def test_a_long_answer_is_cut_to_the_smaller_limit(edns: int | None, udp: int, limit: int) -> None:
    query = dns.message.make_query("db.shop.svc.cluster.local", "A")
    if edns is not None:
        query.use_edns(0, payload=edns)
    outcome = respond(make_zone(100), query.to_wire(), udp_ceiling=udp)
    assert isinstance(outcome, Reply)
    reply = dns.message.from_wire(outcome.data)
    assert len(outcome.data) <= limit < len(outcome.data) + 16
    assert reply.flags & dns.flags.TC
    assert reply.edns == (-1 if edns is None else 0)


def test_over_tcp_nothing_is_cut() -> None:
    outcome = respond(make_zone(200), dns.message.make_query("db.shop.svc.cluster.local", "A").to_wire())
    assert isinstance(outcome, Reply)
    assert len(dns.message.from_wire(outcome.data).answer[0]) == 200


def test_only_glue_left_out_is_not_truncation() -> None:
    reply = exchange(make_zone(8), dns.message.make_query("db.shop.svc.cluster.local", "SRV"))
    assert len(reply.answer[0]) == 8
    assert not reply.flags & dns.flags.TC


def test_transfers_and_other_classes_are_refused() -> None:
    zone = make_zone()
    for name, kind, klass in [("cluster.local", "AXFR", "IN"), ("version.bind", "TXT", "CH")]:
        query = dns.message.make_query(name, kind, klass)
        outcome = respond(zone, query.to_wire())
        assert isinstance(outcome, Reply)
        assert dns.message.from_wire(outcome.data, ignore_trailing=True).rcode() == dns.rcode.REFUSED


def test_other_opcodes_are_not_implemented() -> None:
    query = dns.message.make_query("cluster.local", "SOA")
    query.set_opcode(dns.opcode.NOTIFY)
    outcome = respond(make_zone(), query.to_wire())
    assert isinstance(outcome, Reply) and len(outcome.data) == 12
    reply = dns.message.from_wire(outcome.data)
    assert (reply.rcode(), reply.opcode(), reply.id) == (dns.rcode.NOTIMP, dns.opcode.NOTIFY, query.id)


def test_a_later_version_of_edns_is_refused() -> None:
    query = dns.message.make_query("db.shop.svc.cluster.local", "A")
    query.use_edns(1, payload=1232)
    assert exchange(make_zone(), query).rcode() == dns.rcode.BADVERS


def test_broken_requests_get_formerr_or_no_reply() -> None:
    zone = make_zone()
    query = dns.message.make_query("db.shop.svc.cluster.local", "A").to_wire()
    assert respond(zone, b"") is None
    assert respond(zone, query[:11]) is None
    assert respond(zone, query[:2] + b"\x80" + query[3:]) is None
    broken = respond(zone, query[:-3])
    assert isinstance(broken, Reply) and broken.data[:2] == query[:2] and broken.data[3] & 0xF == dns.rcode.FORMERR


@given(st.binary(max_size=200))
def test_noise_is_answered_or_dropped(data: bytes) -> None:
    outcome = respond(make_zone(1), data, udp_ceiling=512)
    if isinstance(outcome, Reply):
        assert outcome.data[:2] == data[:2] and outcome.data[2] & 0x80


def test_foreign_names_are_to_be_asked_upstream() -> None:
    assert isinstance(respond(make_zone(), dns.message.make_query("example.com", "A").to_wire()), UpstreamQuery)
