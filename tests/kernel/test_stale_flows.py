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


@pytest.fixture
def place() -> Iterator[Path]:
    netns.create(PLACE)
    try:
        track(PLACE, range(COUNT))
        yield PLACE
    finally:
        netns.delete(PLACE)
        PLACE.parent.rmdir()


def tracked() -> set[tuple[str, Ends, Ends]]:
    with Conntrack(PLACE) as conntrack:
        return {(flow.protocol, flow.original, flow.reply) for flow in conntrack.flows()}


def test_only_flows_to_a_removed_endpoint_are_deleted(place: Path) -> None:
    before = tracked()
    assert before == {ends(number) for number in range(COUNT)}
    forget = flow_cleaner(lambda: (), place)((service(7, BACKENDS),), (service(7, BACKENDS - 1),))
    assert forget is not None
    gone = {ends(number) for number in stale(COUNT, 7)}
    assert gone
    assert forget() == {"IPv4": len(gone), "IPv6": 0}
    assert before - tracked() == gone
    assert forget() == {"IPv4": 0, "IPv6": 0}


@pytest.mark.parametrize("changed", [3, 40])
def test_flows_of_few_and_of_many_services_are_deleted(place: Path, changed: int) -> None:
    before = tracked()
    services = range(100, 100 + changed)
    forget = flow_cleaner(lambda: (), place)(
        tuple(service(item, BACKENDS) for item in services), tuple(service(item, BACKENDS - 1) for item in services)
    )
    assert forget is not None
    gone = {ends(number) for item in services for number in stale(COUNT, item)}
    assert forget()["IPv4"] == len(gone)
    assert before - tracked() == gone


def test_tcp_flows_are_deleted_on_request(place: Path) -> None:
    before = tracked()
    web = msgspec.structs.replace(service(7, BACKENDS), protocol="tcp")
    forget = flow_cleaner(lambda: (), place, UDP_AND_TCP)((web,), ())
    assert forget is not None
    forget()
    gone = {item for item in before if item[0] == "TCP" and item[1].dst == frontend(7)}
    assert gone
    assert before - tracked() == gone


def test_node_port_flows_are_deleted_at_node_addresses_only(place: Path) -> None:
    """Here a Service address stands for the node's address, and other Services use the same port."""
    before = tracked()
    port = msgspec.structs.replace(service(7, BACKENDS), cluster_ip="10.97.0.1", node_port=53)
    forget = flow_cleaner(lambda: (frontend(8),), place)((port,), ())
    assert forget is not None
    forget()
    gone = {item for item in before if item[0] == "UDP" and item[1].dst == frontend(8)}
    assert gone
    assert before - tracked() == gone


def test_the_kernel_filters_flows_by_protocol_and_target(place: Path) -> None:
    with Conntrack(place) as conntrack:
        to_it = conntrack.flows(protocol="UDP", target=Target(frontend(5), 53))
        assert {flow.original.dst for flow in to_it} == {frontend(5)}
        assert len(to_it) == len([n for n in range(5, COUNT, FRONTENDS) if ends(n)[0] == "UDP"])
        assert conntrack.flows(protocol="UDP", target=Target(frontend(5), 54)) == []
        assert conntrack.flows(protocol="UDP", target=Target("fd00::1", 53)) == []
        anywhere = conntrack.flows(protocol="TCP", target=Target("", 53))
        assert len(anywhere) == len([n for n in range(COUNT) if ends(n)[0] == "TCP"])
