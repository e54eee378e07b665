"""``podwire up --backend NAME`` for every backend: on a new cluster, on a running one under traffic, and refused.

Backends that this machine cannot run have the same test in ``tests/uml/test_up_backends.py``.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.clusters import (
    PAIR,
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
    up,
)
from tests.e2e.driver import Cluster, eventually, podwire
from tests.kernel.datagram_stream import Stream
from tests.kernel.routing_nodes import Pod

from podwire.kernel.features import Features
from podwire.local.backendcheck import lack_of
from podwire.routing.registry import BACKENDS

LACKS = {name: lack_of(name, Features().lacks) for name in BACKENDS}
RUNS = [name for name in BACKENDS if not LACKS[name]]
ROUTED_BY_THE_NETWORK = ("none", "cloudroutes")
"""Backends that leave packets to routes of the network, which the test has in place of it."""
DEVICES = {
    "bgp": "eth0",
    "bridge": "podwire-bridge",
    "cloudroutes": "eth0",
    "hostgw": "eth0",
    "macvlan": "eth0",  # plain routes, since pods of a local cluster have policies
    "none": "eth0",
    "ovs": "podwire-ovs",
    "udp": "podwire-udp",
    "vxlan": "podwire-vxlan",
    "wireguard": "podwire-wg",
}
"""The device by which packets to another node leave."""
NODES = ("node-1", "node-2")
PROGRAMS = {"bgp": "/usr/sbin/bird", "ovs": "/usr/sbin/ovs-vswitchd", "wireguard": "/usr/bin/wireguard-go"}


@contextmanager
def network_routes(cluster: Cluster) -> Iterator[None]:
    """Routes to the pods of the other node that the network has, worse than every route of podwire."""
    nodes = {node["metadata"]["name"]: node for node in cluster.get("nodes")["items"]}
    routes = [
        (name, nodes[other]["spec"]["podCIDR"], "via", nodes[other]["status"]["addresses"][0]["address"])
        for name, other in (NODES, NODES[::-1])
    ]
    for node, *route in routes:
        in_node(cluster, node, "ip", "route", "add", *route, "proto", "static", "metric", "9999")
    yield
    for node, *route in routes:
        in_node(cluster, node, "ip", "route", "del", *route, "proto", "static", "metric", "9999")


def paths(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """By direction, the backend and the device of packets between the two nodes, as ``podwire probe`` reads them."""
    output = done("probe", "--name", cluster.name, "--from", "one", "--to", "two", "--routes", "-o", "json")
    results = [json.loads(line) for line in output.splitlines()]
    assert results[0]["reached"] and results[0]["source_seen"] == address_of(cluster, "one"), results
    routes = [result["nodeRoute"] for result in results if "nodeRoute" in result]
    return {route["node"]: (route["backend"], route["device"]) for route in routes}


def expect_traffic(cluster: Cluster, backend: str) -> None:
    """Pods reach each other and the Service by the backend."""
    assert {n["metadata"]["annotations"]["podwire.io/routing"] for n in cluster.get("nodes")["items"]} == {backend}
    assert paths(cluster)["node-1"] == (backend, DEVICES[backend])
    for source in ("one", "two"):
        assert run("probe", "--name", cluster.name, "--from", source, "--to", "svc/both").returncode == 0


@pytest.mark.parametrize("backend", RUNS)
def test_a_new_cluster_has_the_backend(backend: str) -> None:
    with running(own_name(backend), "--nodes", "2", "--backend", backend, stdin=PAIR) as cluster:
        if backend not in ROUTED_BY_THE_NETWORK:
            expect_traffic(cluster, backend)
            return
        with network_routes(cluster):
            expect_traffic(cluster, backend)


@pytest.fixture(scope="module")
def walking() -> Iterator[Cluster]:
    with running(own_name("backends"), "--nodes", "2", stdin=PAIR) as cluster:
        yield cluster


def lost_by(cluster: Cluster, backend: str) -> int:
    """The number of datagrams that are lost while the cluster changes to a backend."""
    one, two = (Pod(netns_of(cluster, name), address_of(cluster, name)) for name in ("one", "two"))
    streams = [Stream(one, two), Stream(two, one)]
    up(cluster.name, "--backend", backend)
    eventually(lambda: paths(cluster)["node-1"] == (backend, DEVICES[backend]), every=0.3)
    return sum(stream.lost() + stream.refused for stream in streams)


def test_a_cluster_walks_over_all_backends_under_traffic(walking: Cluster) -> None:
    before, losses = identities(walking), {}
    service = str(walking.get("service", "both")["spec"]["clusterIP"])
    routed = [name for name in RUNS if name in ROUTED_BY_THE_NETWORK]
    with flows(walking, [("one", "two"), ("two", "one"), ("one", service)]) as connections:
        for backend in (name for name in RUNS if name not in (*routed, "vxlan")):
            losses[backend] = lost_by(walking, backend)
        with network_routes(walking):
            for backend in (*routed, "vxlan"):
                losses[backend] = lost_by(walking, backend)
        for connection in connections:
            connection.go_on()
    print(f"lost datagrams by change to: {losses}")
    assert set(losses) == set(RUNS)
    assert not any(losses.values()), losses
    assert [connection.problems for connection in connections] == [[], [], []]
    assert identities(walking) == before


DAMAGE = """
nft list tables | grep podwire- | while read -r _ family name; do nft delete table $family $name; done
ip link del podwire-vxlan
ip route flush proto 113
sysctl -qw net.ipv4.ip_forward=0
"""


def test_all_that_others_delete_is_back_within_two_seconds(walking: Cluster) -> None:
    """All tables, the device with its addresses, routes, neighbours and forwarding entries, and a parameter."""
    up(walking.name, "--backend", "vxlan")
    times, damages = [], []
    for _ in range(4):
        eventually(lambda: not drift(walking, "node-1"))
        in_node(walking, "node-1", "sh", "-c", DAMAGE)
        damaged, began = drift(walking, "node-1"), time.monotonic()
        damages.append(len(damaged))
        eventually(lambda: not drift(walking, "node-1"), every=0.02)
        times.append(time.monotonic() - began)
        assert run("probe", "--name", walking.name, "--from", "one", "--to", "two").returncode == 0
    print(f"everything was back after {', '.join(f'{seconds:.2f} s' for seconds in times)}")
    assert max(damages) > 5, "differences that were left when the kernel had been read"
    assert min(times) < 2, "others use the processor, too"


@pytest.mark.parametrize("backend", [name for name in BACKENDS if LACKS[name]])
def test_a_backend_that_the_kernel_lacks_is_refused(walking: Cluster, backend: str) -> None:
    fresh = own_name("refused")
    for name in (fresh, walking.name):
        refused = run("up", "--name", name, "--backend", backend)
        assert (refused.returncode, refused.stdout) == (2, "")
        problem = f"podwire up: routing.backend: {backend}: {LACKS[backend]}; this machine can run "
        assert refused.stderr == f"{problem}{', '.join(RUNS)}\n"
    assert not Path("/run/podwire", fresh).exists()
    unchanged(walking)


@pytest.mark.parametrize("backend", PROGRAMS)
def test_a_backend_whose_program_is_missing_is_refused(walking: Cluster, backend: str) -> None:
    program = os.path.realpath(PROGRAMS[backend])
    command = 'mount --bind /dev/null "$1" && shift && exec "$@"'
    for name in (own_name("refused"), walking.name):
        arguments = ["unshare", "--mount", "sh", "-c", command, "sh", program]
        arguments += [*podwire(), "up", "--name", name, "--backend", backend]
        refused = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"routing.backend: {backend}: the program {Path(PROGRAMS[backend]).name} is not in" in refused.stderr
        assert "in Debian's package " in refused.stderr
    unchanged(walking)


def unchanged(cluster: Cluster) -> None:
    """The nodes still use their backend, and the configuration has it, too."""
    assert run("probe", "--name", cluster.name, "--from", "one", "--to", "two").returncode == 0
    assert "nodes ready" in done("up", "--name", cluster.name)
