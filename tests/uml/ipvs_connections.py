"""Servers and clients with long-lived connections, and the state of mode ``ipvs`` in operators' tools."""

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace
from tests.cases.service_table import ADDRESSES, NODE
from tests.kernel.service_namespaces import (
    by_name,
    inside,
    path,
)

from podwire.kernel import comparison, netns
from podwire.proxy.dataplane import OWNER
from podwire.proxy.dataplanes.ipvs.dataplane import IpvsDataPlane
from podwire.proxy.servicemap import NodeFacts, ResolvedEndpoint, ResolvedPort
from podwire.state import drift
from podwire.state.share import Share

PODS = ("one", "two", "far")
_PATIENCE_S = 20.0


@contextlib.contextmanager
def another(facts: NodeFacts = NODE) -> Iterator[IpvsDataPlane]:
    """A second instance of the data plane, as after a restart of the agent."""
    with contextlib.closing(IpvsDataPlane(facts, path("node"))) as created:
        yield created


def share(plane: Any) -> Share:
    desired = plane.desired()
    return Share(
        part="proxy",
        protocol=OWNER.route_protocol,
        alias=OWNER.alias_prefix,
        desired=desired,
    )


def differences(plane: Any) -> list[str]:
    return list(drift.render(comparison.compare([share(plane)], path("node"))))


def ipvsadm(*arguments: str) -> str:
    return inside("node", "ipvsadm", *arguments)


def web(*pods: str, port: int = 8080) -> tuple[ResolvedPort, ...]:
    """The Service at 10.96.0.10:80 with these pods."""
    (result,) = by_name("ClusterIP").resolved()["default/web"]
    endpoints = tuple(ResolvedEndpoint(ADDRESSES[pod][0], port) for pod in pods)
    serving = frozenset(map(str, endpoints))
    return (replace(result, cluster_endpoints=endpoints, has_endpoints=bool(pods), serving=serving),)


class OpenConnections:
    """Servers in the pods and clients, both with long-lived connections."""

    def __init__(self, *pods: str) -> None:
        self.listeners: dict[str, socket.socket] = {}
        self.clients: list[tuple[str, socket.socket, socket.socket]] = []
        for pod in pods:
            with netns.inside(path(pod)):
                self.listeners[pod] = socket.create_server((ADDRESSES[pod][0], 9090))

    def __enter__(self) -> "OpenConnections":
        return self

    def __exit__(self, *failure: object) -> None:
        for _, client, peer in self.clients:
            client.close()
            peer.close()
        for listener in self.listeners.values():
            listener.close()

    def connect(self, source: str = "outside", address: str = "10.96.0.10", port: int = 0) -> str:
        """The pod that took a connection."""
        with netns.inside(path(source)):
            client = socket.socket()
        client.settimeout(_PATIENCE_S)
        if port:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind(("0.0.0.0", port))
        client.connect((address, 80))
        ready, _, _ = select.select(list(self.listeners.values()), [], [], _PATIENCE_S)
        pod = next(name for name, listener in self.listeners.items() if listener in ready)
        peer, _ = self.listeners[pod].accept()
        self.clients.append((pod, client, peer))
        return pod

    def talk(self) -> bool:
        """Whether every connection carries data in both directions."""
        for _, client, peer in self.clients:
            for sender, receiver in ((client, peer), (peer, client)):
                receiver.settimeout(_PATIENCE_S)
                sender.sendall(b"still")
                if receiver.recv(5) != b"still":
                    return False
        return True

    def reset(self, pod: str) -> None:
        """Ends the connections to a pod at once."""
        for _, client, peer in [client for client in self.clients if client[0] == pod]:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            peer.close()
        self.clients = [client for client in self.clients if client[0] != pod]


def kept_service(*pods: str) -> tuple[ResolvedPort, ...]:
    return web(*pods, port=9090)


def eventually(check: Callable[[], bool], seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.2)


def shares(connections: OpenConnections, count: int) -> dict[str, int]:
    observed = [connections.connect() for _ in range(count)]
    return {pod: observed.count(pod) for pod in PODS}
