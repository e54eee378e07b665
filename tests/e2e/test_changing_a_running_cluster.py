"""A running cluster changes its routing backend and its number of nodes without loss of traffic."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import (
    address_of,
    done,
    drift,
    flows,
    identities,
    in_node,
    netns_of,
    own_name,
    run,
    running,
    server,
    up,
)
from tests.e2e.driver import Cluster, deployment, eventually
from tests.e2e.traffic import Traffic
from tests.kernel.datagram_stream import Stream
from tests.kernel.routing_nodes import Pod

from podwire.kernel import netns
from podwire.kernel.features import Features
from podwire.routing.registry import BACKENDS
from podwire.runtime.childrecord import read_record

NAME = own_name("change")
BULK = 4 << 20
NO_BIRD = Features().lacks("bird")


@pytest.fixture(scope="module")
def changing() -> Iterator[Cluster]:
    """Two nodes, a server on each, and a Service of both."""
    service = """
---
apiVersion: v1
kind: Service
metadata: {name: both}
spec: {selector: {tier: web}, ports: [{port: 80}]}
"""
    manifest = server("one", "node-1", "tier: web") + server("two", "node-2", "tier: web") + service
    with running(NAME, "--nodes", "2", stdin=manifest) as cluster:
        yield cluster


def service_address(cluster: Cluster) -> str:
    return str(cluster.get("service", "both")["spec"]["clusterIP"])


def pairs(cluster: Cluster) -> list[tuple[str, str]]:
    return [("one", "two"), ("two", "one"), ("one", service_address(cluster))]


def announced(cluster: Cluster) -> set[str]:
    """The routing backend that each node announces."""
    return {n["metadata"]["annotations"].get("podwire.io/routing", "") for n in cluster.get("nodes")["items"]}


def settle(cluster: Cluster, backend: str) -> None:
    """Waits until all nodes use the backend and the kernel of the first node holds its state."""
    device = {"wireguard": "podwire-wg", "hostgw": "eth0", "bgp": "eth0"}.get(backend, f"podwire-{backend}")
    eventually(lambda: announced(cluster) == {backend})
    cidr = cluster.get("node", "node-2")["spec"]["podCIDR"]
    eventually(lambda: f"dev {device} " in in_node(cluster, "node-1", "ip", "route", "show", cidr))


def go_on(all_of_them: list[Traffic]) -> None:
    """Waits until each flow has made more connections."""
    for flow in all_of_them:
        flow.go_on()


def put_right(cluster: Cluster) -> None:
    """Restores the backend of the fixture after a test that failed."""
    if announced(cluster) != {"vxlan"}:
        up(cluster.name, "--backend", "vxlan")
        settle(cluster, "vxlan")


def statuses(cluster: Cluster) -> list[str]:
    """The ROUTING column of ``podwire status``."""
    rows = done("status", "--name", cluster.name).splitlines()
    at = rows[0].index("ROUTING")
    return [row[at:].split()[0] for row in rows[1:] if row.startswith("node-")]


def set_data(cluster: Cluster, **data: str) -> None:
    patch = json.dumps({"data": {key.replace("_", "."): text for key, text in data.items()}})
    cluster.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "-p", patch)


def exchange(cluster: Cluster, source: str, target: str) -> int:
    """The number of bytes that arrive when a pod sends :data:`BULK` bytes to another pod."""
    start, end, address = netns_of(cluster, source), netns_of(cluster, target), address_of(cluster, target)
    with netns.inside(end):
        listener = socket.create_server((address, 0))
    received = 0

    def take() -> None:
        nonlocal received
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(60)
            while piece := sock.recv(1 << 18):
                received += len(piece)

    thread = threading.Thread(target=take)
    with listener, netns.inside(start):
        listener.settimeout(60)
        thread.start()
        with socket.create_connection(listener.getsockname()[:2], timeout=60) as sock:
            sock.sendall(bytes(BULK))
        thread.join(60)
    return received


@pytest.mark.parametrize("way", ["configmap", "up"])
def test_the_backend_is_switched_there_and_back_under_traffic(changing: Cluster, way: str) -> None:
    before = identities(changing)
    put_right(changing)
    with flows(changing, pairs(changing)) as running_flows:
        for backend in ("hostgw", "bridge", "wireguard", "ovs", "udp", "vxlan")[:: 5 if way == "configmap" else 1]:
            if way == "configmap":
                set_data(changing, routing_backend=backend)
            else:
                up(changing.name, "--backend", backend)
            settle(changing, backend)
            go_on(running_flows)
            assert set(statuses(changing)) == {backend}
    assert [flow.problems for flow in running_flows] == [[], [], []]
    assert identities(changing) == before


def process(*path: str) -> int:
    """The number of a process from its record in the folder of the cluster; 0 when the process does not run."""
    record = read_record(Path("/run/podwire", NAME, *path))
    return record.pid if record is not None and record.running else 0


@pytest.mark.skipif(bool(NO_BIRD), reason=NO_BIRD)
def test_bird_and_its_agent_may_be_killed_under_traffic(changing: Cluster) -> None:
    agent, bird = ("processes", "agent-node-1.json"), ("nodes", "node-1", "routing", "children", "bird.json")
    put_right(changing)
    with flows(changing, pairs(changing)) as running_flows:
        try:
            up(changing.name, "--backend", "bgp")
            settle(changing, "bgp")
            first = process(*bird)
            os.kill(first, signal.SIGKILL)
            eventually(lambda: process(*bird) not in (0, first))
            second, old_agent = process(*bird), process(*agent)
            os.kill(old_agent, signal.SIGKILL)
            eventually(lambda: process(*agent) not in (0, old_agent))
            eventually(lambda: not drift(changing, "node-1", "routing"))
            assert process(*bird) == second, "the new agent has adopted it"
            go_on(running_flows)
        finally:
            put_right(changing)
        eventually(lambda: process(*bird) == 0)
    assert [flow.problems for flow in running_flows] == [[], [], []]


@pytest.mark.parametrize("backend", ["vxlan", "hostgw", "bridge", "udp", "wireguard", "ovs"])
def test_killed_and_ended_agents_lose_no_packet(changing: Cluster, backend: str) -> None:
    records = [("processes", f"agent-node-{number}.json") for number in (1, 2)]
    item, two = (Pod(netns_of(changing, name), address_of(changing, name)) for name in ("one", "two"))
    up(changing.name, "--backend", backend)
    settle(changing, backend)
    with flows(changing, pairs(changing)) as running_flows:
        streams = [Stream(item, two), Stream(two, item)]
        before = [process(*record) for record in records]
        for agent, ends in zip(before, (signal.SIGKILL, signal.SIGTERM), strict=True):
            os.kill(agent, ends)
        eventually(lambda: all(process(*r) not in (0, agent) for r, agent in zip(records, before, strict=True)))
        for node in ("node-1", "node-2"):
            eventually(lambda node=node: not drift(changing, node, "routing"))
        go_on(running_flows)
        losses = [(stream.lost(), stream.refused) for stream in streams]
    print(f"{backend}: {sum(stream.sent for stream in streams)} datagrams, lost and refused {losses}")
    assert losses == [(0, 0), (0, 0)]
    assert [flow.problems for flow in running_flows] == [[], [], []]


def modes(cluster: Cluster) -> set[str]:
    """The data planes of Services that the nodes announce."""
    return {n["metadata"]["annotations"].get("podwire.io/proxy", "") for n in cluster.get("nodes")["items"]}


@pytest.mark.parametrize("way", ["configmap", "up"])
def test_switching_the_service_mode_and_back_keeps_traffic(changing: Cluster, way: str, tmp_path: Path) -> None:
    before = identities(changing)
    put_right(changing)
    with flows(changing, pairs(changing)) as running_flows:
        for mode in ("iptables", "nftables"):
            if way == "configmap":
                set_data(changing, proxy_mode=mode)
            else:
                file = tmp_path / f"{mode}.yaml"
                file.write_text(f"nodes: 2\nproxy: {{mode: {mode}}}\n")
                up(changing.name, "--config", str(file))
            eventually(lambda mode=mode: modes(changing) == {mode})
            go_on(running_flows)
            chains = in_node(changing, "node-1", "iptables", "-t", "nat", "-S")
            assert ("-N KUBE-SERVICES" in chains) == (mode == "iptables")
            assert ("podwire-proxy" in in_node(changing, "node-1", "nft", "list", "tables")) == (mode == "nftables")
            assert done("state", "--name", NAME, "node-1", "--part", "proxy", "--diff") == ""
    assert [flow.problems for flow in running_flows] == [[], [], []]
    assert identities(changing) == before


def test_bulk_traffic_crosses_nodes_with_different_routing_backends(changing: Cluster) -> None:
    try:
        up(changing.name, "--backend", "hostgw")
        settle(changing, "hostgw")
        changing.apply(server("large", "node-1"))
        changing.ready("large")
        assert exchange(changing, "large", "two") == BULK
        up(changing.name, "--backend", "vxlan")
        settle(changing, "vxlan")
        assert exchange(changing, "large", "two") == BULK
        assert exchange(changing, "two", "large") == BULK
    finally:
        changing.kubectl("delete", "pod", "large", "--ignore-not-found")


@pytest.mark.parametrize(
    ("data", "output"),
    [
        ({"routing_backend": "pigeon"}, "routing.backend: 'pigeon' is not a routing backend; expected one of "),
        ({"routing_backend": "a: ["}, "routing.backend: not YAML"),
        ({"routing_port": "many"}, "routing.port: expected a whole number, got a text"),
        ({"routnig_backend": "hostgw"}, "routnig.backend: is not a setting"),
    ],
)
def test_wrong_setting_is_reported_and_last_good_settings_stay(
    changing: Cluster, data: dict[str, str], output: str
) -> None:
    def events() -> list[Any]:
        selector = "involvedObject.kind=Node,involvedObject.name=node-1,reason=SettingsRefused"
        result = changing.get("events", "-A", "--field-selector", selector)["items"]
        return [event for event in result if output in event["message"]]

    put_right(changing)
    with flows(changing, [("one", "two")]) as (flow,):
        set_data(changing, **data)
        try:
            event = eventually(events)[0]
            assert (event["type"], event["source"]["component"]) == ("Warning", "podwire-agent")
            eventually(
                lambda: f"node-1: ConfigMap kube-system/podwire-config: {output}" in done("status", "--name", NAME)
            )
            assert announced(changing) == {"vxlan"}
            go_on([flow])
        finally:
            names = [key.replace("_", ".") for key in data]
            patch = {"data": {**dict.fromkeys(names), "routing.backend": "vxlan"}}
            changing.kubectl("patch", "configmap", "podwire-config", "-n", "kube-system", "-p", json.dumps(patch))
        eventually(lambda: "ConfigMap" not in done("status", "--name", NAME))
    assert flow.problems == []


def test_refused_switch_changes_nothing(changing: Cluster) -> None:
    put_right(changing)
    refused = run("up", "--name", NAME, "--backend", "pigeon")
    assert (refused.returncode, refused.stdout) == (2, "")
    known = ", ".join(BACKENDS)
    assert (
        refused.stderr == f"podwire up: routing.backend: 'pigeon' is not a routing backend; expected one of {known}\n"
    )
    assert set(statuses(changing)) == {"vxlan"}


@pytest.fixture
def grown(changing: Cluster) -> Iterator[Cluster]:
    """The cluster; it has two nodes and two pods again after the test."""
    put_right(changing)
    yield changing
    changing.run(["kubectl", "delete", "deployment/spread", "pod/three", "pod/four", "--ignore-not-found"])
    up(changing.name, "--nodes", "2")
    eventually(lambda: set(identities(changing)) == {"one", "two"})


def test_nodes_come_and_go_under_traffic(grown: Cluster) -> None:
    changing = grown
    changing.apply(deployment("spread", replicas=8))
    changing.rolled_out("spread")
    before = identities(changing)
    with flows(changing, pairs(changing)) as running_flows:
        up(changing.name, "--nodes", "4")
        assert len(statuses(changing)) == 4
        changing.apply(server("three", "node-3") + server("four", "node-4"))
        changing.ready("three", "four")
        # Pods on the nodes that stay are reached from those that came, and pods on the last go with it.
        changing.kubectl("scale", "deployment/spread", "--replicas=16")
        changing.rolled_out("spread")
        assert "node-4" in nodes_of(changing, "spread")
        # One of the Service's endpoints goes with its node: whoever asks for the Service never notices.
        changing.kubectl("label", "pod", "four", "tier=web", "--overwrite")
        eventually(lambda: "four" in running_flows[2].answered_by)
        with flows(changing, [("three", "one"), ("two", "three")]) as newer:
            up(changing.name, "--nodes", "3")
            assert "not found" in changing.refused("get", "pod", "four")
            changing.rolled_out("spread")
            eventually(lambda: nodes_of(changing, "spread") <= {"node-1", "node-2", "node-3"})
            go_on([*running_flows, *newer])
    assert [flow.problems for flow in (*running_flows, *newer)] == [[], [], [], [], []]
    assert statuses(changing) == ["vxlan"] * 3
    after = identities(changing)
    assert [after[name] for name in ("one", "two")] == [before[name] for name in ("one", "two")]
    # What is not said stays: the third node as well as the backend.
    assert "3 nodes ready" in done("up", "--name", NAME)
    for remaining in (
        "/run/podwire/{}/netns/node-4",
        "/run/podwire/{}/nodes/node-4",
        "/var/lib/podwire/{}/nodes/node-4",
    ):
        assert not Path(remaining.format(NAME)).exists()
    assert "node-4" not in in_node(changing, "node-1", "ip", "-o", "neigh")
    assert run("probe", "--name", NAME).returncode == 0


def test_new_nodes_serve_when_up_returns(grown: Cluster) -> None:
    service = grown.get("service", "both")["spec"]["clusterIP"]
    for count in (3, 4):
        output = done("up", "--name", NAME, "--nodes", str(count))
        row = next(line.split() for line in output.splitlines() if line.startswith(f"node-{count} "))
        assert row[1] == "Ready" and "-" not in row[5:], row
        node = f"node-{count}"
        assert '"pod":"' in in_node(grown, node, "curl", "-sS", "--max-time", "2", f"http://{service}/")
        cidr = grown.get("node", node)["spec"]["podCIDR"]
        assert cidr in in_node(grown, "node-1", "ip", "route", "show", cidr)


def nodes_of(cluster: Cluster, app: str) -> set[str]:
    pods = cluster.get("pods", "-l", f"app={app}")["items"]
    return {pod["spec"].get("nodeName", "") for pod in pods if "deletionTimestamp" not in pod["metadata"]}
