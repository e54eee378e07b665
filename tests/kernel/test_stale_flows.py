"""Among many thousand flows, exactly the stale ones are forgotten."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from bench.flows import BACKENDS, FRONTENDS, ends, frontend, service, stale, track

from podwire.kernel import netns
from podwire.kernel.conntrack import Conntrack, Ends, Target
from podwire.proxy.flows import UDP_AND_TCP, flow_cleaner

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

PLACE = Path(f"/run/pwt-stale-flows-{os.getpid()}/node")
COUNT = 12_000
"""Four flows to the last endpoint of each Service, and one of TCP; many times what is deleted."""


Flows = set[tuple[str, Ends, Ends]]


class Tracked:
    """The flows that a namespace tracks: those of all numbers, but for what a test deletes."""

    def __init__(self) -> None:
        self.all = {ends(number): number for number in range(COUNT)}
        track(PLACE, range(COUNT))
        self._missing: Flows | None = None
        assert self.deleted() == set()

    def deleted(self) -> Flows:
        """The flows that are gone; others than those of the numbers there are none."""
        with Conntrack(PLACE) as conntrack:
            there = {(flow.protocol, flow.original, flow.reply) for flow in conntrack.flows()}
        assert there <= self.all.keys()
        self._missing = self.all.keys() - there
        return self._missing

    def restore(self) -> None:
        """Tracks the flows again that are gone."""
        for flow in self.deleted() if self._missing is None else self._missing:
            track(PLACE, range(self.all[flow], self.all[flow] + 1))
        self._missing = None


@pytest.fixture(scope="module")
def every_flow() -> Iterator[Tracked]:
    netns.create(PLACE)
    try:
        yield Tracked()
    finally:
        netns.delete(PLACE)
        PLACE.parent.rmdir()


@pytest.fixture
def flows(every_flow: Tracked) -> Iterator[Tracked]:
    """All flows; those that a test deletes are tracked again after it."""
    yield every_flow
    every_flow.restore()


def test_only_flows_to_a_removed_endpoint_are_deleted(flows: Tracked) -> None:
    forget = flow_cleaner(lambda: (), PLACE)((service(7, BACKENDS),), (service(7, BACKENDS - 1),))
    assert forget is not None
    gone = {ends(number) for number in stale(COUNT, 7)}
    assert gone
    assert forget() == {"IPv4": len(gone), "IPv6": 0}
    assert flows.deleted() == gone
    assert forget() == {"IPv4": 0, "IPv6": 0}


@pytest.mark.parametrize("changed", [3, 40])
def test_flows_of_few_and_of_many_services_are_deleted(flows: Tracked, changed: int) -> None:
    services = range(100, 100 + changed)
    forget = flow_cleaner(lambda: (), PLACE)(
        tuple(service(item, BACKENDS) for item in services), tuple(service(item, BACKENDS - 1) for item in services)
    )
    assert forget is not None
    gone = {ends(number) for item in services for number in stale(COUNT, item)}
    assert forget()["IPv4"] == len(gone)
    assert flows.deleted() == gone


def test_tcp_flows_are_deleted_on_request(flows: Tracked) -> None:
    web = msgspec.structs.replace(service(7, BACKENDS), protocol="tcp")
    forget = flow_cleaner(lambda: (), PLACE, UDP_AND_TCP)((web,), ())
    assert forget is not None
    forget()
    gone = {item for item in flows.all if item[0] == "TCP" and item[1].dst == frontend(7)}
    assert gone
    assert flows.deleted() == gone


def test_node_port_flows_are_deleted_at_node_addresses_only(flows: Tracked) -> None:
    """Here a Service address stands for the node's address, and other Services use the same port."""
    port = msgspec.structs.replace(service(7, BACKENDS), cluster_ip="10.97.0.1", node_port=53)
    forget = flow_cleaner(lambda: (frontend(8),), PLACE)((port,), ())
    assert forget is not None
    forget()
    gone = {item for item in flows.all if item[0] == "UDP" and item[1].dst == frontend(8)}
    assert gone
    assert flows.deleted() == gone


@pytest.mark.usefixtures("flows")
def test_the_kernel_filters_flows_by_protocol_and_target() -> None:
    with Conntrack(PLACE) as conntrack:
        to_it = conntrack.flows(protocol="UDP", target=Target(frontend(5), 53))
        assert {flow.original.dst for flow in to_it} == {frontend(5)}
        assert len(to_it) == len([n for n in range(5, COUNT, FRONTENDS) if ends(n)[0] == "UDP"])
        assert conntrack.flows(protocol="UDP", target=Target(frontend(5), 54)) == []
        assert conntrack.flows(protocol="UDP", target=Target("fd00::1", 53)) == []
        anywhere = conntrack.flows(protocol="TCP", target=Target("", 53))
        assert len(anywhere) == len([n for n in range(COUNT) if ends(n)[0] == "TCP"])
