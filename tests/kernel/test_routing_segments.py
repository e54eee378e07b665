"""Direct routing with each tunnel: a node that changes its segment changes how its peers send to it, without loss."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kernel.datagram_stream import Stream, until
from tests.kernel.routing_nodes import Cluster, ClusterNode

from podwire.kernel.monitor import Event, Monitor
from podwire.routing.settings import RoutingSettings

IN_GUEST = pytest.mark.uml
TUNNELS = ["vxlan", "udp", pytest.param("ipip", marks=IN_GUEST), pytest.param("geneve", marks=IN_GUEST)]
DEVICES = {"vxlan": "podwire-vxlan", "ipip": "podwire-ipip", "geneve": "podwire-geneve", "udp": "podwire-udp"}


@contextmanager
def route_changes(node: ClusterNode) -> Iterator[list[Event]]:
    """The changes of the route to the pods of node 2 meanwhile."""
    monitor = Monitor(node.place, ("route",))
    changes: list[Event] = []
    try:
        yield changes
        changes += (event for event in monitor.read() if event.dst == "10.244.2.0/24")
    finally:
        monitor.close()


@pytest.mark.parametrize("backend", TUNNELS)
def test_a_node_that_changes_its_segment_loses_no_packet(tmp_path: Path, backend: str) -> None:
    """Node 2 leaves the segment of node 4 and joins that of nodes 1 and 3; each node takes the change by itself.

    The tunnels ``ipip`` and ``udp`` receive at one address: what node 1 sends to the old one is not counted there.
    """
    cluster = Cluster(tmp_path, 4, segments=2)
    streams: list[Stream] = []
    try:
        cluster.configure(RoutingSettings(backend=backend, direct_routing=True))
        cluster.settle()
        first, second, _, fourth = cluster.all
        sources = [fourth] if backend in ("ipip", "udp") else [fourth, first]
        streams = [Stream(node.pod(f"from-{node.number}"), second.pod(f"to-{node.number}")) for node in sources]
        arrive(streams)
        assert senders(first)["node-2"] == backend and senders(fourth)["node-2"] == "hostgw"
        with route_changes(first) as far, route_changes(fourth) as near:
            second.join(1)
            for node in (second, first, fourth):
                node.reconcile()
                arrive(streams)
            cluster.settle()
        assert [stream.lost() for stream in streams] == [0] * len(sources)
        assert senders(first)["node-2"] == "hostgw" and senders(fourth)["node-2"] == backend
        assert [event.removed for event in far] == [event.removed for event in near] == [False], "it was replaced"
        assert "via 10.89.1.12 dev eth0" in first.shows("ip", "route", "show", "10.244.2.0/24")
        assert f"dev {DEVICES[backend]} " in fourth.shows("ip", "route", "show", "10.244.2.0/24")
    finally:
        for stream in streams:
            stream.close()
        cluster.close()


def arrive(streams: Sequence[Stream]) -> None:
    """Waits for twenty more packets of each stream."""
    wanted = [stream.arrived + 20 for stream in streams]
    until(lambda: all(stream.arrived > number for stream, number in zip(streams, wanted, strict=True)))


def senders(node: ClusterNode) -> dict[str, str]:
    assert node.router.plan is not None
    return node.router.plan.senders
