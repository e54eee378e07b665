"""Packets that are lost while nodes change their routing backend: every pair of backends that this kernel can run."""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from tests.kernel.datagram_stream import Stream, until
from tests.kernel.routing_nodes import ECHO_SERVER, Cluster, Pod, Talk

from podwire.routing.registry import BACKENDS
from podwire.routing.router import QUIET_S
from podwire.routing.settings import RoutingSettings

LEAVES_ROUTES = ("none", "cloudroutes")
"""The backends that leave packets to routes of the network, which these nodes do not have."""

QUEUED = "ovs"
"""The backend whose packets wait in queues of 1,000 packets for a process."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes."""
    created = Cluster(tmp_path, 2)
    yield created
    created.close()


def circuit(names: Sequence[str]) -> list[str]:
    """A walk from the first name back to it that takes each step between two names once, in each direction."""
    walk = list(names[:1])
    for at in range(1, len(names)):
        walk += [names[at], *(name for other in names[1:at] for name in (other, names[at])), names[0]]
    return walk


def usable(cluster: Cluster) -> list[str]:
    """The backends that this kernel can run, the default one first."""
    features = {name: backend.feature for name, backend in RoutingSettings().load().items()}
    lacks = {name: feature and cluster.all[0].machine.lacks(feature) for name, feature in features.items()}
    names = [name for name in BACKENDS if not lacks[name] and name not in LEAVES_ROUTES]
    return sorted(names, key=lambda name: name != "vxlan")


def switch(cluster: Cluster, backend: str) -> None:
    """Switches node by node, as agents do that learn of the change one after the other."""
    for node in cluster.all:
        node.router.configure(RoutingSettings(backend=backend))
        run(cluster)
    until(lambda: run(cluster) == {backend})
    run(cluster)


def run(cluster: Cluster) -> set[str]:
    """Runs each node once; the backends by which they send."""
    for node in cluster.all:
        node.reconcile()
    time.sleep(QUIET_S)
    return {name for node in cluster.all if node.router.plan for name in node.router.plan.senders.values()}


def lost(pods: Sequence[Pod], cluster: Cluster, backend: str) -> int:
    """The number of lost datagrams, of both directions, in a switch to the backend; full queues are left out."""
    streams = [Stream(pods[0], pods[1], 0.001), Stream(pods[1], pods[0], 0.001)]
    switch(cluster, backend)
    number = sum(stream.lost() + stream.refused for stream in streams)
    return number - (queue_drops(cluster) if backend == QUEUED else 0)


def queue_drops(cluster: Cluster) -> int:
    """The packets that the kernel dropped because ovs-vswitchd did not run for the time of a full queue (1,000)."""
    links = [link for node in cluster.all for link in json.loads(node.shows("ip", "-j", "-s", "link"))]
    return sum(link["stats64"]["tx"]["dropped"] for link in links if link["ifname"] in ("podwire-ovs", "podwire-ovs-u"))


def test_a_circuit_has_every_pair_once() -> None:
    names = ["a", "b", "c", "d"]
    walk = circuit(names)
    steps = list(pairwise(walk))
    assert sorted(steps) == sorted((name, other) for name in names for other in names if name != other)


def test_switches_between_all_backends_lose_no_datagram(cluster: Cluster) -> None:
    walk = circuit(usable(cluster))
    cluster.configure(RoutingSettings(backend=walk[0]))
    cluster.settle()
    pods = [node.pod(f"p{node.number}") for node in cluster.all]
    with pods[0].running(ECHO_SERVER), pods[1].running(ECHO_SERVER):
        talks = [Talk(pods[0], pods[1], 0.02), Talk(pods[1], pods[0], 0.02)]
        losses = {f"{before} to {after}": lost(pods, cluster, after) for before, after in pairwise(walk)}
        again = [talk.end() for talk in talks]
    losing = {step: number for step, number in losses.items() if number}
    print(f"{len(losses)} switches, lost datagrams: {losing or 'none'}; TCP segments sent again: {sum(again)}")
    assert len(losses) >= 30
    assert losing == {}
