"""Nodes that come, go and change: the kernel holds after a run that reads nothing what a full run would leave."""

import os
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.fakes.clock import FakeClock

from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.machine import OWNER, KernelMachine
from podwire.routing.nodes import RoutingFacts, peer_of
from podwire.routing.plan import plan
from podwire.routing.router import Router
from podwire.routing.settings import RoutingSettings
from podwire.routing.tables import INGRESS
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import AbsentTable, Table
from podwire.state.nft_diff import diff
from podwire.state.route import Address

BACKENDS = ("vxlan", "hostgw", "bridge", "udp")
"""Those that need no program to hold the kernel's state."""
NUMBERS = st.integers(1, 30)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A namespace with an underlay."""
    path = tmp_path / f"growth-{os.getpid()}"
    netns.create(path)
    with Netlink(path) as netlink:
        addresses = (Address("eth0", "10.89.0.1/24"), Address("eth0", "fd89::1/64"))
        network.apply(netlink, NetworkState((Link("eth0", "bridge"),), addresses), OwnerMark(114)).check()
    yield path
    netns.delete(path)


def node(number: int, version: int, backend: str) -> Node:
    """The Node of a number; versions differ in address and pod CIDRs."""
    cidrs = (f"10.244.{number * 4 + version}.0/24", f"fd44:0:0:{number * 4 + version}::/64")
    mac = f"02:00:00:00:{version:02x}:{number:02x}"
    details = {"mac": mac, "bridge": {"mac": mac}, "udp": {"port": 7000 + version}}
    texts = (f"10.89.0.{number * 4 + version + 1}", f"fd89::{number * 4 + version + 1}")
    return Node(
        metadata=ObjectMeta(
            name=f"node-{number}", annotations=RoutingFacts(backend, ("hostgw", backend), details).annotations()
        ),
        spec=NodeSpec(pod_cidr=cidrs[0], pod_cidrs=cidrs),
        status=NodeStatus(addresses=tuple(NodeAddress(type="InternalIP", address=text) for text in texts)),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[dict[int, tuple[int, str]]]:
    """The nodes by number, with version and backend, after each of some changes."""
    numbers, backends = st.sets(NUMBERS, max_size=20), st.sampled_from(BACKENDS[:2])
    nodes = {number: (0, draw(backends)) for number in sorted(draw(numbers))}
    history = [dict(nodes)]
    for _ in range(draw(st.integers(1, 4))):
        for number in draw(st.lists(NUMBERS, min_size=1, max_size=4)):
            version, backend = draw(st.integers(-1, 3)), draw(st.sampled_from(BACKENDS))
            nodes.pop(number, None)
            if version >= 0:
                nodes[number] = version, backend
        history.append(dict(nodes))
    return history


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(), st.lists(st.sampled_from(BACKENDS), min_size=1, max_size=3))
def test_following_leaves_what_a_full_run_leaves(
    place: Path, history: list[dict[int, tuple[int, str]]], backends: list[str]
) -> None:
    nodes = {"node-0": node(0, 0, backends[0])}
    machine = KernelMachine(place)
    router = Router("node-0", lambda: nodes, machine, FakeClock())
    router.cidrs = (ip_network("10.244.0.0/17"), ip_network("fd44::/56"))
    try:
        for at, turn in enumerate(history):
            router.configure(RoutingSettings(backend=backends[at % len(backends)]))
            nodes = {"node-0": nodes["node-0"], **{f"node-{n}": node(n, *item) for n, item in turn.items()}}
            router.reconcile(full=not at)
            assert router.problem == ""
            check(place, router, nodes, frozenset(() if machine.lacks(INGRESS) else (INGRESS,)))
    finally:
        machine.close()


def check(place: Path, router: Router, nodes: Mapping[str, Node], features: frozenset[str]) -> None:
    """Compares the kernel with the plan, and with a plan that was made from nothing."""
    me, _ = router.own.look()
    assert me is not None and router.plan is not None
    me = replace(me, features=features)
    peers = [peer_of(item) for name, item in sorted(nodes.items()) if name != me.name]
    fresh = plan(me, peers, router.settings, router.settings.load(), router.cidrs)
    assert (router.plan.state, router.plan.values) == (fresh.state, fresh.values)
    with Netlink(place) as netlink, Nft(place) as nft:
        assert str(network.plan(netlink, router.plan.state, OWNER)) == ""
        for value in router.applied.values:
            if isinstance(value, AbsentTable):
                assert nft.read(value.family, value.name) is None
            elif isinstance(value, Table):
                assert not diff(nft.read(value.family, value.name), value)
