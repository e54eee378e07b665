"""Services that change while they serve, with real packets through every data plane."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.kernel.planes import opened
from tests.kernel.serviceworld import PODS, World, path

from podwire.kernel import netns
from podwire.proxy.registry import DATAPLANES, open_dataplane
from podwire.proxy.servicemap import Endpoint, ServicePort
from podwire.testing.servicecases import NODE, parse_case

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


@pytest.fixture(params=DATAPLANES)
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[Any]:
    made = opened(request.param)
    yield made
    made.remove()
    made.close()


def web(**spec: object) -> tuple[ServicePort, ...]:
    """The ports of a Service with the endpoints one and two."""
    service = {"name": "web", "clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}], **spec}
    endpoints = {"web": [{"pod": "one"}, {"pod": "two"}]}
    case = parse_case({"name": "web", "services": [service], "endpoints": endpoints, "packets": []})
    return case.resolved()["default/web"]


def test_a_service_may_change_in_every_way(world: World, plane: Any) -> None:
    other = tuple(msgspec.structs.replace(port, service="default/other") for port in web(clusterIP="10.96.0.77"))
    plane.load({"default/other": other, "default/web": web()})

    def at(address: str, port: int = 80) -> bool:
        found = world.connect("outside", address, port)[0]
        return found in PODS

    def after(**spec: object) -> str:
        plane.update({"default/web": web(**spec)})
        assert at("10.96.0.77")
        places = {
            "http": ("10.96.0.10", 80),
            "more": ("10.96.0.10", 81),
            "elsewhere": ("10.96.0.20", 80),
            "node": ("192.168.99.1", 30080),
        }
        return " ".join(name for name, place in places.items() if at(*place))

    http, more = {"name": "http", "port": 80}, {"name": "more", "port": 81}
    assert after() == "http"
    assert after(ports=[http, more]) == "http more"
    assert after(type="NodePort", ports=[http | {"nodePort": 30080}]) == "http node"
    assert after(ports=[more]) == "more"
    assert after(type="ExternalName") == ""
    assert after(clusterIP="10.96.0.20") == "elsewhere"
    assert after(clusterIP="None") == ""
    assert after() == "http"
    empty = tuple(msgspec.structs.replace(p, cluster_endpoints=(), has_endpoints=False) for p in web())
    plane.update({"default/web": empty})
    assert world.connect("outside", "10.96.0.10", 80)[0] == "refused"
    assert at("10.96.0.77")


def test_an_established_connection_outlives_its_endpoint_s_removal(world: World, plane: Any) -> None:
    ports = web()
    with netns.inside(path("one")), socket.create_server(("10.180.0.1", 9090)) as listener:
        (port,) = ports
        there = msgspec.structs.replace(port, cluster_endpoints=(Endpoint("10.180.0.1", 9090, True),))
        plane.load({"default/web": (there,)})
        with netns.inside(path("far")):
            client = socket.create_connection(("10.96.0.10", 80), 2)
        peer, _ = listener.accept()
        with client, peer:
            plane.update({"default/web": (port,)})
            assert world.connect("far", "10.96.0.10", 80)[0] in PODS
            plane.load({"default/web": ()})
            for sender, receiver in ((client, peer), (peer, client)):
                receiver.settimeout(2)
                sender.sendall(b"still")
                assert receiver.recv(5) == b"still"


def test_settings_change_under_traffic(world: World, plane: Any) -> None:
    """Each change takes effect, is the same as a start with it, and costs no connection."""
    services = {"default/web": web(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}])}
    plane.load(services, NODE)
    results: list[str] = []
    stop = threading.Event()

    def traffic() -> None:
        while not stop.is_set():
            results.append(world.connect("far", "10.96.0.10", 80)[0])

    def at_node_port() -> bool:
        return world.connect("outside", "192.168.99.1", 30080)[0] in PODS

    client = threading.Thread(target=traffic)
    client.start()
    try:
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
            assert at_node_port() == answers, change
            desired = [str(each) for each in plane.desired()]
            with contextlib.closing(open_dataplane(plane.name, facts, path("node"))) as again:
                assert not any(again.load(services, facts)), change
                assert [str(each) for each in again.desired()] == desired
    finally:
        stop.set()
        client.join()
    assert len(results) > 20
    assert set(results) <= set(PODS)
