"""Services that change while they serve, with real packets through every data plane."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.cases.service_table import NODE, parse_case
from tests.kernel.kernel_dataplanes import every_plane, opened
from tests.kernel.service_namespaces import LATE_S, PATIENCE_S, PODS, World, path, traffic
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import netns
from podwire.proxy.modes import open_dataplane
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


@pytest.fixture(params=every_plane())
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[Any]:
    service_owner = ServiceOwner(opened(request.param))
    yield service_owner
    service_owner.remove()
    service_owner.close()


def web(**spec: object) -> tuple[ResolvedPort, ...]:
    """The ports of a Service with the endpoints one and two."""
    service = {"name": "web", "clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}], **spec}
    endpoints = {"web": [{"pod": "one"}, {"pod": "two"}]}
    case = parse_case({"name": "web", "services": [service], "endpoints": endpoints, "packets": []})
    return case.resolved()["default/web"]


def test_a_service_may_change_in_every_way(world: World, plane: Any) -> None:
    other = tuple(msgspec.structs.replace(port, service="default/other") for port in web(clusterIP="10.96.0.77"))
    plane.load({"default/other": other, "default/web": web()})

    def at(address: str, port: int = 80, *, expected: bool = True) -> bool:
        result = world.connect("outside", address, port, patience_s=LATE_S if expected else PATIENCE_S)[0]
        return result in PODS

    def becomes(expected: str, **spec: object) -> None:
        plane.update({"default/web": web(**spec)})
        assert at("10.96.0.77")
        positions = {
            "http": ("10.96.0.10", 80),
            "more": ("10.96.0.10", 81),
            "elsewhere": ("10.96.0.20", 80),
            "node": ("192.168.99.1", 30080),
        }
        results = (name for name, place in positions.items() if at(*place, expected=name in expected.split()))
        assert " ".join(results) == expected

    http, more = {"name": "http", "port": 80}, {"name": "more", "port": 81}
    becomes("http")
    becomes("http more", ports=[http, more])
    becomes("http node", type="NodePort", ports=[http | {"nodePort": 30080}])
    becomes("more", ports=[more])
    becomes("", type="ExternalName")
    becomes("elsewhere", clusterIP="10.96.0.20")
    becomes("", clusterIP="None")
    becomes("http")
    empty = tuple(msgspec.structs.replace(p, cluster_endpoints=(), has_endpoints=False) for p in web())
    plane.update({"default/web": empty})
    assert world.connect("outside", "10.96.0.10", 80)[0] == "refused"
    assert at("10.96.0.77")


def test_no_data_plane_keeps_the_resolved_services(plane: Any) -> None:
    services = {"default/web": web()}

    def references() -> int:
        return sys.getrefcount(services["default/web"])

    before = references()
    plane.plane.load(services)
    assert references() == before
    plane.plane.update(services, services)
    assert references() == before
    plane.plane.heal(services)
    assert references() == before


def test_an_established_connection_outlives_its_endpoint_s_removal(world: World, plane: Any) -> None:
    ports = web()
    with netns.inside(path("one")), socket.create_server(("10.180.0.1", 9090)) as listener:
        (port,) = ports
        there = msgspec.structs.replace(port, cluster_endpoints=(ResolvedEndpoint("10.180.0.1", 9090, True),))
        plane.load({"default/web": (there,)})
        with netns.inside(path("far")):
            client = socket.create_connection(("10.96.0.10", 80), 20)
        peer, _ = listener.accept()
        with client, peer:
            plane.update({"default/web": (port,)})
            assert world.connect("far", "10.96.0.10", 80)[0] in PODS
            plane.load({"default/web": ()})
            for sender, receiver in ((client, peer), (peer, client)):
                receiver.settimeout(20)
                sender.sendall(b"still")
                assert receiver.recv(5) == b"still"


def test_settings_change_under_traffic(world: World, plane: Any) -> None:
    """Each changed setting takes effect, gives the same rules as a start with it, and loses no connection."""
    services = {"default/web": web(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}])}
    plane.load(services, NODE)

    def at_node_port(*, expected: bool = True) -> bool:
        patience_s = LATE_S if expected else PATIENCE_S
        return world.connect("outside", "192.168.99.1", 30080, patience_s=patience_s)[0] in PODS

    with traffic(world, "far", "10.96.0.10") as results:
        assert at_node_port()
        for change, answers in (
            ({"masquerade_bit": 20}, True),
            ({"masquerade_all": True}, True),
            ({"pod_cidrs": ()}, True),
            ({"pod_interface": "far"}, True),
            ({"node_port_ranges": ("198.51.100.0/24", "::/0")}, False),
            ({}, True),
        ):
            facts = msgspec.structs.replace(NODE, **change)
            plane.load(services, facts)
            assert at_node_port(expected=answers) == answers, change
            desired = [str(item) for item in plane.desired()]
            with contextlib.closing(open_dataplane(plane.name, facts, path("node"))) as again:
                assert not any(again.load(services, facts)), change
                assert [str(item) for item in again.desired()] == desired
        deadline = time.monotonic() + 20
        while len(results) <= 20:
            assert time.monotonic() < deadline, "too few connections"
            time.sleep(0.01)
    assert set(results) <= set(PODS)
