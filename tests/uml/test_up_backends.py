"""``podwire up --backend NAME`` in the kernel of user-mode Linux, for the backends that others may lack.

The same as ``tests/e2e/test_backends.py`` for all other backends. The guest has no nftables, so Services are those of
iptables. It has one slow processor: a connection gets a minute.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.clusters import PAIR, address_of, done, netns_of, running, up
from tests.e2e.driver import Cluster, eventually
from tests.e2e.traffic import LINE, connect_from

pytestmark = [
    pytest.mark.uml,
    pytest.mark.skipif(
        os.uname().nodename != "uml",
        reason="for the kernel of user-mode Linux: make uml, or scripts/uml pytest tests/uml",
    ),
]
NAME = "guest"
PATIENCE_S = 60.0
WAIT = ("--timeout", "400")
DEVICES = {
    "geneve": "podwire-geneve",
    "ipip": "podwire-ipip",
    "vlan": "podwire-vlan",
    "ipvlan": "eth0",  # plain routes, since pods of a local cluster have policies
}
"""By backend: the device by which packets to another node leave. The first one is that of the new cluster."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        json.dumps({"nodes": 2, "proxy": {"mode": "iptables"}, "routing": {"backend": next(iter(DEVICES))}})
    )
    with running(NAME, "--config", str(file), *WAIT, stdin=PAIR) as started:
        yield started


@contextmanager
def connection(namespace: Path, address: str) -> Iterator[socket.socket]:
    with connect_from(namespace, (address, 80), PATIENCE_S) as sock:
        yield sock


def answer(sock: socket.socket) -> str:
    """The pod at the other end of a connection, which answers one line."""
    sock.sendall(LINE)
    reply = b""
    while not reply.endswith(b"\n"):
        received = sock.recv(4096)
        assert received, "closed by the server"
        reply += received
    return str(json.loads(reply)["pod"])


def path(cluster: Cluster) -> tuple[str, str]:
    """The backend and the device of packets between the nodes, as ``podwire probe`` reads them."""
    output = done("probe", "--name", cluster.name, "--from", "one", "--to", "two", "--routes", "-o", "json")
    route = next(json.loads(line)["nodeRoute"] for line in output.splitlines() if '"nodeRoute"' in line)
    return route["backend"], route["device"]


def test_pods_reach_each_other_by_every_backend(cluster: Cluster) -> None:
    service = str(cluster.get("service", "both")["spec"]["clusterIP"])
    one, two = (netns_of(cluster, name) for name in ("one", "two"))
    addresses = {name: address_of(cluster, name) for name in ("one", "two")}
    with connection(one, addresses["two"]) as staying:
        for backend, device in DEVICES.items():
            up(cluster.name, "--backend", backend, *WAIT)
            eventually(lambda backend=backend, device=device: path(cluster) == (backend, device), within=200, every=1)
            assert answer(staying) == "two", "the connection outlives the change"
            for namespace, target in ((one, "two"), (two, "one")):
                with connection(namespace, addresses[target]) as sock:
                    assert answer(sock) == target
            answered: set[str] = set()
            for _ in range(20):
                with connection(one, service) as sock:
                    answered.add(answer(sock))
            assert answered == {"one", "two"}, "the Service has an endpoint on each node"
