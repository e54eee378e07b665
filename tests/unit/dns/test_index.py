"""Changes of one slice: the same answers as from the beginning, at the cost of the slice."""

import sys
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.dns import wire
from podwire.dns.index import RecordIndex
from podwire.dns.records import ServiceRecords
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointConditions, EndpointPort, EndpointSlice, Service, ServiceSpec

LABELS = {"kubernetes.io/service-name": "db"}


def a_slice(name: str, endpoints: tuple[Endpoint, ...], port: int = 80) -> EndpointSlice:
    meta = ObjectMeta(name=name, namespace="shop", labels=LABELS)
    return EndpointSlice(metadata=meta, endpoints=endpoints, ports=(EndpointPort(name="http", port=port),))


def headless() -> Service:
    return Service(metadata=ObjectMeta(name="db", namespace="shop"), spec=ServiceSpec(cluster_ip="None"))


def filled(count: int) -> RecordIndex:
    """A headless Service with ``count`` endpoints in slices of 100."""
    index = RecordIndex()
    index.set_service("shop/db", headless(), 1)
    for number in range(count // 100):
        endpoints = tuple(Endpoint(addresses=(f"10.{number}.0.{i}",)) for i in range(100))
        index.set_slice(f"shop/db-{number}", a_slice(f"db-{number}", endpoints), 1)
    return index


def calls_of_a_change(count: int) -> int:
    """The number of function calls that one changed endpoint of ``count`` costs."""
    index = filled(count)
    endpoints = tuple(Endpoint(addresses=(f"10.0.0.{i if i else 200}",)) for i in range(100))
    changed, calls = a_slice("db-0", endpoints), 0

    def count_call(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_call)
    try:
        index.set_slice("shop/db-0", changed, 2)
    finally:
        sys.setprofile(None)
    return calls


def test_changed_endpoint_costs_its_slice_and_not_the_service() -> None:
    assert calls_of_a_change(10_000) < 2 * calls_of_a_change(100)


_ENDPOINTS = st.builds(
    Endpoint,
    addresses=st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1"]), max_size=2).map(tuple),
    conditions=st.builds(EndpointConditions, ready=st.sampled_from([True, None, False])),
    hostname=st.sampled_from([None, "a", "b"]),
)
_SLICES = st.none() | st.builds(
    lambda endpoints, port: a_slice("x", tuple(endpoints), port),
    st.lists(_ENDPOINTS, max_size=4),
    st.sampled_from([80, 81]),
)


def summary(records: ServiceRecords | None) -> object:
    """All that is answered about a Service, without order."""
    if records is None:
        return None
    rings = [records.ring(qtype, 5) for qtype in (wire.A, wire.AAAA)]
    names = [(host, records.host(host)) for host in sorted(records.host_names())]
    hosts = [(host, set(n.addresses.v4 + n.addresses.v6), set(n.targets)) for host, n in names if n is not None]
    addresses = [
        sorted(ring.data[at : at + ring.step] for at in range(0, len(ring.data), ring.step)) for ring in rings if ring
    ]
    return records.present, addresses, sorted(records.targets, key=str), hosts, records.port_names


@settings(max_examples=60)
@given(changes=st.lists(st.tuples(st.sampled_from("abc"), _SLICES), max_size=12), clustered=st.booleans())
def test_changes_give_the_answers_of_a_fresh_start(
    changes: list[tuple[str, EndpointSlice | None]], clustered: bool
) -> None:
    service = Service(metadata=headless().metadata, spec=ServiceSpec(cluster_ip="10.0.0.1" if clustered else "None"))
    index, fresh = RecordIndex(), RecordIndex()
    for each in (index, fresh):
        each.set_service("shop/db", service, 1)
    for name, endpoint_slice in changes:
        index.set_slice(f"shop/{name}", endpoint_slice, 1)
    for name, endpoint_slice in dict(changes).items():
        fresh.set_slice(f"shop/{name}", endpoint_slice, 1)
    assert summary(index.records["shop", "db"]) == summary(fresh.records["shop", "db"])
    assert {a: set(b) for a, b in index.reverse.items()} == {a: set(b) for a, b in fresh.reverse.items()}
    for name in "abc":
        index.set_slice(f"shop/{name}", None, 2)
    index.set_service("shop/db", None, 2)
    assert not index.reverse and not index.records


@pytest.mark.parametrize("address_type", ["IPv4", "FQDN"])
def test_slice_of_names_makes_an_alias(address_type: str) -> None:
    index = RecordIndex()
    index.set_service("shop/db", headless(), 1)
    endpoints = (Endpoint(addresses=("db.example.com",)),)
    meta = ObjectMeta(name="db-1", namespace="shop", labels=LABELS)
    index.set_slice("shop/db-1", EndpointSlice(metadata=meta, address_type=address_type, endpoints=endpoints), 1)
    records = index.records["shop", "db"]
    assert (records.present, records.alias) == (
        (True, b"\x02db\x07example\x03com\x00") if address_type == "FQDN" else (False, b"")
    )
