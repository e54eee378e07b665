"""Changes by Service: what is committed is exactly what turns the old contents into the new ones."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kernel.nft_elements import element_encoder
from podwire.proxy.dataplanes.nftables.affinity import ENDPOINTS as ENDPOINTS_OF_A_LIST
from podwire.proxy.dataplanes.nftables.contents import Contents
from podwire.proxy.dataplanes.nftables.layout import TABLE, NftablesLayout, Shape
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort
from podwire.state.nft import Element
from podwire.state.nft_diff import AddElements, DeleteElements, RestoreElements, Transaction, diff, replacement
from podwire.state.nft_types import HOST_ORDER

NODE = NodeFacts(name="n1", addresses=("192.168.99.1",), pod_cidrs=("10.0.0.0/8",), service_cidrs=("172.30.0.0/16",))
LAYOUT = NftablesLayout("ip", NODE)

ENDPOINTS = st.lists(
    st.builds(ResolvedEndpoint, st.integers(1, 8).map("10.0.0.{}".format), st.just(8080), st.booleans()),
    max_size=5,
    unique_by=lambda endpoint: endpoint.address,
).map(tuple)


@st.composite
def ports(draw: st.DrawFn, number: int) -> tuple[ResolvedPort, ...]:
    if draw(st.integers(0, 4)) == 0:
        return ()
    endpoints = draw(ENDPOINTS)
    return (
        ResolvedPort(
            service=f"default/s{number}",
            port_name="http",
            protocol="tcp",
            family="ip",
            port=80,
            cluster_ip=f"172.30.0.{number}",
            node_port=draw(st.sampled_from((0, 30080, 30081))),
            external_ips=draw(st.sampled_from(((), ("203.0.113.7",)))),
            external_local=draw(st.booleans()),
            internal_local=draw(st.booleans()),
            cluster_endpoints=endpoints,
            local_endpoints=tuple(e for e in endpoints if e.local),
            has_endpoints=bool(endpoints),
            affinity_s=draw(st.sampled_from((0, 0, 600))),
        ),
    )


CHANGES = st.lists(st.integers(1, 4).flatmap(lambda n: ports(n).map(lambda p: (f"default/s{n}", p))), max_size=12)


class Kernel:
    """Sets that refuse what the kernel refuses."""

    def __init__(self) -> None:
        self.sets: dict[str, dict[bytes, Element]] = {}

    def commit(self, transaction: Transaction) -> None:
        for operation in transaction.operations:
            if isinstance(operation, DeleteElements):
                for key in operation.elements:
                    del self.sets[operation.set.name][key]
            elif isinstance(operation, AddElements):
                entries = self.sets.setdefault(operation.set.name, {})
                assert not entries.keys() & operation.elements.keys()
                entries.update(operation.elements)


def full(sets: Mapping[str, Mapping[bytes, Element]]) -> dict[str, dict[bytes, Element]]:
    return {name: dict(entries) for name, entries in sets.items() if entries}


@given(CHANGES)
def test_transactions_lead_to_the_contents(changes: list[tuple[str, tuple[ResolvedPort, ...]]]) -> None:
    contents, kernel = Contents(LAYOUT), Kernel()
    for service, expected in changes:
        kernel.commit(contents.change({service: expected}))
        assert full(kernel.sets) == full(contents.elements())
    again = Contents(LAYOUT, contents.table())
    table = again.load(dict(changes))
    if not contents.conflicts():
        assert full(again.elements()) == full(contents.elements())
        assert full(
            {declared.name: declared.elements for declared in table.sets if declared.name in again.elements()}
        ) == full(again.elements())
    remaining = dict.fromkeys(dict(changes), ())
    kernel.sets = full(again.elements())
    kernel.commit(again.change(remaining))
    assert full(kernel.sets) == {}


def written(transaction: Transaction) -> dict[tuple[str, bytes], bytes]:
    """The elements that a transaction writes, as the kernel takes them."""
    result: dict[tuple[str, bytes], bytes] = {}
    for operation in transaction.operations:
        if isinstance(operation, RestoreElements):
            result.update({(operation.set.name, key): data for key, data in operation.elements.items()})
        elif isinstance(operation, AddElements):
            encode = element_encoder(operation.set)
            elements = operation.elements.items()
            result.update({(operation.set.name, key): encode(key, element, False) for key, element in elements})
    return result


@given(CHANGES, CHANGES)
def test_deleted_table_is_written_with_all_elements(
    first: list[tuple[str, tuple[ResolvedPort, ...]]], changes: list[tuple[str, tuple[ResolvedPort, ...]]]
) -> None:
    contents = Contents(LAYOUT)
    contents.load(dict(first))
    for service, expected in changes:
        contents.change({service: expected})
    assert written(contents.replaced()) == written(replacement(contents.table()))


def test_many_services_keep_no_encoded_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podwire.proxy.dataplanes.nftables.contents.MOST", 1)
    contents = Contents(LAYOUT)
    contents.load({"default/s1": resolved_service(1, 2)})
    assert any(isinstance(operation, RestoreElements) for operation in contents.replaced().operations)
    contents.change({"default/s2": resolved_service(2, 2)})
    contents.change({"default/s1": ()})
    assert contents.replaced() == replacement(contents.table())


@given(CHANGES)
def test_nothing_is_left_when_every_service_is_gone(changes: list[tuple[str, tuple[ResolvedPort, ...]]]) -> None:
    contents, kernel = Contents(LAYOUT), Kernel()
    for service, expected in changes:
        kernel.commit(contents.change({service: expected}))
    kernel.commit(contents.change({service: () for service, _ in changes}))
    assert full(kernel.sets) == {}


def resolved_service(number: int, endpoints: int, node_port: int = 0) -> tuple[ResolvedPort, ...]:
    chosen = tuple(ResolvedEndpoint(f"10.0.0.{index}", 8080) for index in range(1, endpoints + 1))
    return (
        ResolvedPort(
            service=f"default/s{number}",
            port_name="",
            protocol="tcp",
            family="ip",
            port=80,
            cluster_ip=f"172.30.0.{number}",
            cluster_endpoints=chosen,
            has_endpoints=bool(chosen),
            node_port=node_port,
        ),
    )


def test_one_endpoint_more_or_less_is_one_element() -> None:
    contents = Contents(LAYOUT)
    contents.change({"default/s1": resolved_service(1, 2), "default/s2": resolved_service(2, 3)})
    come = "add element endpoints { 172.30.0.1 . tcp . 80 . 2 : 10.0.0.3 . 8080 }  # ip podwire-proxy"
    assert str(contents.change({"default/s1": resolved_service(1, 3)})) == come
    assert str(contents.change({"default/s1": resolved_service(1, 2)})) == come.replace("add", "delete")


def test_twice_as_many_endpoints_are_another_chain() -> None:
    contents = Contents(LAYOUT)
    contents.change({"default/s1": resolved_service(1, 4)})
    assert str(contents.change({"default/s1": resolved_service(1, 5)})).splitlines()[-3:] == [
        'delete element services { 172.30.0.1 . tcp . 80 comment "default/s1" : goto cluster-4 }  # ip podwire-proxy',
        'add element services { 172.30.0.1 . tcp . 80 comment "default/s1" : goto cluster-8 }  # ip podwire-proxy',
        "add element endpoints { 172.30.0.1 . tcp . 80 . 4 : 10.0.0.5 . 8080 }  # ip podwire-proxy",
    ]
    assert "services" not in str(contents.change({"default/s1": resolved_service(1, 4)}))
    assert "goto cluster-4" in str(contents.change({"default/s1": resolved_service(1, 3)}))


def affine(endpoints: int, **fields: Any) -> tuple[ResolvedPort, ...]:
    (port,) = resolved_service(1, endpoints, 30080)
    return (msgspec.structs.replace(port, affinity_s=600, **fields),)


def lists(contents: Contents) -> dict[str, set[int]]:
    """The lists that the slots of each map belong to."""
    result: dict[str, set[int]] = {}
    for name in ("affinity-slots", "affinity-node-port-slots"):
        marks = (int.from_bytes(element.data, HOST_ORDER) for element in contents.elements()[name].values())
        result[name] = {contents.compiler.marks.split(mark)[0] for mark in marks}
    return result


def test_every_way_in_to_a_port_shares_its_list() -> None:
    contents = Contents(LAYOUT)
    more = msgspec.structs.replace(affine(2)[0], port=81, port_name="more", node_port=30081)
    contents.change({"default/s1": (*affine(2, external_ips=("203.0.113.7",)), more)})
    result = lists(contents)
    assert result["affinity-slots"] == result["affinity-node-port-slots"] == {0, 1}
    contents.change({"default/s1": affine(2, external_ips=("203.0.113.7",))})
    assert lists(contents) == {"affinity-slots": {0}, "affinity-node-port-slots": {0}}


def test_a_local_policy_has_a_list_of_its_own() -> None:
    contents = Contents(LAYOUT)
    here = (ResolvedEndpoint("10.0.0.1", 8080, True),)
    contents.change({"default/s1": affine(2, external_local=True, local_endpoints=here)})
    assert lists(contents)["affinity-node-port-slots"] == {0, 1}
    assert lists(contents)["affinity-slots"] == {0}


def test_too_many_endpoints_are_served_without_affinity() -> None:
    contents = Contents(LAYOUT)
    many = tuple(ResolvedEndpoint(f"10.1.{n >> 8}.{n & 255}", 8080) for n in range(ENDPOINTS_OF_A_LIST + 1))
    contents.change({"default/s1": affine(1, cluster_endpoints=many), "default/s2": resolved_service(2, 1)})
    assert not contents.elements()["affinity-slots"]
    assert len(contents.elements()["endpoints"]) == len(many) + 1
    contents.change({"default/s1": affine(1, cluster_endpoints=many[1:])})
    assert len(contents.elements()["affinity-slots"]) == ENDPOINTS_OF_A_LIST
    assert len(contents.elements()["affinity-endpoints"]) == 2 * ENDPOINTS_OF_A_LIST


def test_a_frontend_belongs_to_the_first_until_it_lets_go() -> None:
    contents = Contents(LAYOUT)
    contents.change({"default/s1": resolved_service(1, 1, 30080)})
    contents.change({"default/s2": resolved_service(2, 2, 30080)})
    (verdict,) = (e.verdict for e in contents.elements()["node-ports"].values())
    assert verdict is not None
    assert verdict.chain == Shape("external", 4, True).chain
    assert contents.conflicts() == ("default/s2",)
    contents.change({"default/s1": resolved_service(1, 2, 30080)})
    assert len(contents.elements()["node-port-endpoints"]) == 2
    contents.change({"default/s1": ()})
    (verdict,) = (e.verdict for e in contents.elements()["node-ports"].values())
    assert verdict is not None
    assert verdict.chain == Shape("external", 4, True).chain
    assert contents.conflicts() == ()


def test_a_restart_takes_the_slots_over() -> None:
    contents = Contents(LAYOUT)
    contents.change({"default/s1": resolved_service(1, 3)})
    gone = resolved_service(1, 3)[0].cluster_endpoints[1:]
    smaller = (
        ResolvedPort(
            service="default/s1",
            port_name="",
            protocol="tcp",
            family="ip",
            port=80,
            cluster_ip="172.30.0.1",
            cluster_endpoints=gone,
            has_endpoints=True,
        ),
    )
    contents.change({"default/s1": smaller})
    table = contents.table()
    again = Contents(LAYOUT, table)
    transaction = diff(table, again.load({"default/s1": smaller}))
    assert not [o for o in transaction.operations if isinstance(o, AddElements | DeleteElements)]


@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_the_constant_part(family: str) -> None:
    table = NftablesLayout(family, NODE).table(frozenset((Shape("cluster", 4),)), {})
    assert (table.family, table.name) == (family, TABLE)
    assert [str(rule) for rule in table.chain("cluster-4").rules][-8:] == [
        f"dnat {family} to {family} daddr . meta l4proto . th dport . numgen random mod {among} map @endpoints"
        for among in (4, 4, 4, 4, 4, 4, 2, 1)
    ]
