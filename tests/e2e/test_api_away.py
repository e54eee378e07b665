"""While the API is silent for longer than a node may be, the network works and no node is given up.

The server is stopped (SIGSTOP): connections stay open and say nothing, which is worse than a server that has gone.
"""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import done, flows, identities, in_node, netns_of, server, topology
from tests.e2e.driver import NOTICED_S, Cluster, eventually

from podwire.dns import wire
from podwire.dns.names import encode_name
from podwire.kernel import netns

AWAY_S = 65.0
PACE_S = 0.1
"""Of the traffic: what would break here, because nobody renews it, stays broken."""


@pytest.fixture
def cluster_of_two(pair_cluster: Cluster) -> Iterator[Cluster]:
    yield pair_cluster
    pair_cluster.kubectl("delete", "pod", "three", "--now", "--ignore-not-found")


@contextmanager
def stopped(cluster: Cluster) -> Iterator[None]:
    """Stops the API server process (SIGSTOP) until the end of the block."""
    record = json.loads((Path(topology(cluster).run) / "processes/apiserver.json").read_text())
    os.kill(int(record["pid"]), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(int(record["pid"]), signal.SIGCONT)


def ready_since(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Whether each node is ready, and since when."""
    return {
        node["metadata"]["name"]: (ready["status"], ready["lastTransitionTime"])
        for node in cluster.get("nodes")["items"]
        for ready in node["status"]["conditions"]
        if ready["type"] == "Ready"
    }


def resolved(namespace: Path, name: str) -> str:
    """The address of a name in cluster DNS; empty when it has none."""
    query = wire.encode(wire.DnsMessage(id=7, flags=wire.RD, name=encode_name(name), qtype=wire.A))
    with netns.inside(namespace):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.settimeout(20)
        sock.connect(("10.96.0.10", 53))
        sock.send(query)
        records = wire.parse_message(sock.recv(4096)).answer
    return ".".join(str(byte) for record in records for byte in record.head + record.tail)


def seen_ready(cluster: Cluster) -> list[Any]:
    slices = cluster.get("endpointslices", "-l", "kubernetes.io/service-name=both")["items"]
    return [endpoint["conditions"]["ready"] for endpoint_slice in slices for endpoint in endpoint_slice["endpoints"]]


def test_a_silent_api(cluster_of_two: Cluster) -> None:
    cluster = cluster_of_two
    address = cluster.get("service", "both")["spec"]["clusterIP"]
    client = netns_of(cluster, "client")
    before, nodes = identities(cluster), ready_since(cluster)
    with flows(cluster, [("one", "two"), ("two", "one"), ("client", address)], PACE_S) as all_of_them:
        with stopped(cluster):
            until = time.monotonic() + AWAY_S
            assert cluster.run(["kubectl", "get", "nodes", "--request-timeout=2s"]).returncode != 0
            # What somebody takes away meanwhile comes back: agents need no API to hold what they know.
            done("exec", "--name", cluster.name, "node-1", "ip", "link", "delete", "podwire-vxlan")
            eventually(lambda: "podwire-vxlan" in in_node(cluster, "node-1", "ip", "-br", "link"), within=NOTICED_S)
            while time.monotonic() < until:
                assert resolved(client, "both.default.svc.cluster.local") == address
                time.sleep(1)
        cluster.kubectl("get", "nodes", "--request-timeout=30s")
        # Nobody was given up, then or later, and what is wanted now is done by everybody.
        for _ in range(20):
            assert ready_since(cluster) == nodes
            assert seen_ready(cluster) == [True, True]
            time.sleep(0.5)
        cluster.apply(server("three", "node-1", "tier: web"))
        cluster.ready("three")
        eventually(lambda: "three" in all_of_them[2].answered_by)
    assert [flow.problems for flow in all_of_them] == [[], [], []]
    assert {name: result for name, result in identities(cluster).items() if name != "three"} == before
    done("probe", "--name", cluster.name)
