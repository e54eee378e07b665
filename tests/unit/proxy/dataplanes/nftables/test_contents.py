"""Changes by Service: what is committed is exactly what turns the old contents into the new ones."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.proxy.dataplanes.nftables.contents import Contents, full_change, keep_slots
from podwire.proxy.dataplanes.nftables.layout import TABLE, Layout, Shape
from podwire.proxy.servicemap import Endpoint, NodeFacts, ServicePort
from podwire.state.nft import Element
from podwire.state.nft_diff import AddElements, DeleteElements, Transaction

NODE = NodeFacts(name="n1", addresses=("192.168.99.1",), pod_cidrs=("10.0.0.0/8",), service_cidrs=("172.30.0.0/16",))
LAYOUT = Layout("ip", NODE)

ENDPOINTS = st.lists(
    st.builds(Endpoint, st.integers(1, 8).map("10.0.0.{}".format), st.just(8080), st.booleans()),
    max_size=5,
    unique_by=lambda endpoint: endpoint.address,
).map(tuple)


@st.composite
def ports(draw: st.DrawFn, number: int) -> tuple[ServicePort, ...]:
    if draw(st.integers(0, 4)) == 0:
        return ()
    endpoints = draw(ENDPOINTS)
    return (
        ServicePort(
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
def test_transactions_lead_to_the_contents(changes: list[tuple[str, tuple[ServicePort, ...]]]) -> None:
    contents, kernel = Contents(LAYOUT), Kernel()
    for service, wanted in changes:
        kernel.commit(contents.change({service: wanted}))
        assert full(kernel.sets) == full(contents.held)
    again = Contents(LAYOUT, contents.table())
    again.change({service: wanted for service, wanted in dict(changes).items() if wanted})
    if not contents.conflicts():
        assert set(full(again.held)) == set(full(contents.held))


@given(CHANGES)
def test_nothing_is_left_when_every_service_is_gone(changes: list[tuple[str, tuple[ServicePort, ...]]]) -> None:
    contents, kernel = Contents(LAYOUT), Kernel()
    for service, wanted in changes:
        kernel.commit(contents.change({service: wanted}))
    kernel.commit(contents.change({service: () for service, _ in changes}))
    assert full(kernel.sets) == {}


@given(ENDPOINTS, ENDPOINTS)
def test_slots_keep_who_stays(before: tuple[Endpoint, ...], wanted: tuple[Endpoint, ...]) -> None:
    after = keep_slots(before, wanted)
    assert sorted(after) == sorted(wanted)
    for place, endpoint in enumerate(after):
        if place < len(before) and before[place] in wanted:
            assert endpoint == before[place]


def one(number: int, endpoints: int, node_port: int = 0) -> tuple[ServicePort, ...]:
    chosen = tuple(Endpoint(f"10.0.0.{index}", 8080) for index in range(1, endpoints + 1))
    return (
        ServicePort(
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


def test_one_endpoint_more_is_two_elements() -> None:
    contents = Contents(LAYOUT)
    contents.change({"default/s1": one(1, 2), "default/s2": one(2, 3)})
    assert str(contents.change({"default/s1": one(1, 3)})).splitlines() == [
        'delete element services { 172.30.0.1 . tcp . 80 comment "default/s1" : goto cluster-2 }  # ip podwire-proxy',
        'add element services { 172.30.0.1 . tcp . 80 comment "default/s1" : goto cluster-3 }  # ip podwire-proxy',
        "add element endpoints { 172.30.0.1 . tcp . 80 . 2 : 10.0.0.3 . 8080 }  # ip podwire-proxy",
    ]


def test_a_frontend_belongs_to_the_first_until_it_lets_go() -> None:
    contents = Contents(LAYOUT)
    contents.change({"default/s1": one(1, 1, 30080)})
    contents.change({"default/s2": one(2, 2, 30080)})
    (verdict,) = (e.verdict for e in contents.held["node-ports"].values())
    assert verdict is not None
    assert verdict.chain == Shape("external", 1, True).chain
    assert contents.conflicts() == ("default/s2",)
    contents.change({"default/s1": one(1, 2, 30080)})
    assert len(contents.held["node-port-endpoints"]) == 2
    contents.change({"default/s1": ()})
    (verdict,) = (e.verdict for e in contents.held["node-ports"].values())
    assert verdict is not None
    assert verdict.chain == Shape("external", 2, True).chain
    assert contents.conflicts() == ()


def test_a_restart_takes_the_slots_over() -> None:
    contents = Contents(LAYOUT)
    contents.change({"default/s1": one(1, 3)})
    gone = one(1, 3)[0].cluster_endpoints[1:]
    smaller = (
        ServicePort(
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
    again.change({"default/s1": smaller})
    transaction = full_change(table, again)
    assert not [o for o in transaction.operations if isinstance(o, AddElements | DeleteElements)]


@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_the_constant_part(family: str) -> None:
    table = Layout(family, NODE).table(frozenset((Shape("cluster", 2),)), {})
    assert (table.family, table.name) == (family, TABLE)
    assert [str(rule) for rule in table.chain("cluster-2").rules][-1] == (
        f"dnat {family} to {family} daddr . meta l4proto . th dport . numgen random mod 2 map @endpoints"
    )
