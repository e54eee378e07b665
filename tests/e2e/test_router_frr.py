"""FRR on the router between two segments, whose nodes route by BGP."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.clusters import done, own_name, run, running, server, topology
from tests.e2e.driver import Cluster, eventually
from tests.e2e.test_segments_and_families import answer

from podwire.local.fabric.frr import PROGRAMS, VTYSH
from podwire.runtime.process import start_ticks

NAME = own_name("frr")
CONFIG = """
nodes: 2
segments: 2
podCIDRs: [10.244.0.0/16, "fd44::/48"]
serviceCIDRs: [10.96.0.0/16, "fd96::/112"]
routing: {{backend: bgp}}
router: {{daemon: {daemon}}}
"""
LEFT_BY_FRR = Path("/var/tmp/frr")
"""The folder that FRR makes for its processes."""

pytestmark = pytest.mark.skipif(not Path(PROGRAMS["bgpd"]).exists(), reason="needs FRR (Debian: frr)")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "cluster.yaml"


@pytest.fixture(scope="module")
def routed(config: Path) -> Iterator[Cluster]:
    """Two nodes on two segments, with a server on each."""
    config.write_text(CONFIG.format(daemon="frr"))
    with running(NAME, "--config", str(config), stdin=server("one", "node-1") + server("two", "node-2")) as cluster:
        yield cluster
        processes = [process(cluster, name) for name in PROGRAMS]
    eventually(lambda: not any(map(start_ticks, processes)))


def folder(cluster: Cluster) -> Path:
    return Path(topology(cluster).run, "router")


def vtysh(cluster: Cluster, question: str) -> str:
    command = [VTYSH, "--vty_socket", str(folder(cluster)), "-c", question]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def established(cluster: Cluster) -> dict[str, int]:
    """The neighbours of the router with a session, and the port of each connection."""
    output = vtysh(cluster, "show bgp neighbors json")
    peers: dict[str, Any] = json.loads(output) if output.startswith("{") else {}
    sessions = {key: peer for key, peer in peers.items() if isinstance(peer, dict)}
    return {key: peer["portForeign"] for key, peer in sessions.items() if peer.get("bgpState") == "Established"}


def nodes(cluster: Cluster) -> set[str]:
    """The addresses of the nodes, of both families."""
    return {
        address["address"]
        for node in cluster.get("nodes")["items"]
        for address in node["status"]["addresses"]
        if address["type"] == "InternalIP"
    }


def reaches(cluster: Cluster) -> bool:
    """Whether the pods of the two segments reach each other by both families."""
    addresses = [item["ip"] for item in cluster.get("pod", "two")["status"]["podIPs"]]
    return [answer(cluster, "one", address).get("pod") for address in addresses] == ["two", "two"]


def process(cluster: Cluster, name: str) -> int:
    """The number of a process of the cluster that runs; 0: it does not run."""
    processes = json.loads(run("status", "--name", cluster.name, "-o", "json").stdout)["processes"]
    return next((int(entry["pid"]) for entry in processes if entry["name"] == name and entry["running"]), 0)


def test_pods_of_two_segments_meet_through_frr(routed: Cluster) -> None:
    eventually(lambda: set(established(routed)) == nodes(routed))
    eventually(lambda: reaches(routed))
    routes = done("exec", "--name", routed.name, "router", "--", "ip", "-j", "-d", "route")
    pods = {route["dst"]: route["protocol"] for route in json.loads(routes) if route["dst"].startswith("10.244.")}
    assert set(pods.values()) == {"bgp"} and len(pods) == 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_process_is_replaced_and_routes_come_back(routed: Cluster, name: str) -> None:
    eventually(lambda: set(established(routed)) == nodes(routed))
    before = {program: process(routed, program) for program in PROGRAMS}
    os.kill(before[name], signal.SIGKILL)
    eventually(lambda: process(routed, name) not in (0, before[name]))
    eventually(lambda: set(established(routed)) == nodes(routed))
    eventually(lambda: reaches(routed))


def test_a_changed_file_is_followed_by_the_sessions_that_exist(routed: Cluster) -> None:
    eventually(lambda: set(established(routed)) == nodes(routed))
    sessions, file = established(routed), folder(routed) / "bgpd.conf"
    text, entry = file.read_text(), "ip prefix-list accepted4 seq 15 permit 10.99.0.0/16 le 32\n"
    for desired in (text.replace("router bgp", f"{entry}router bgp"), text):
        file.write_text(desired)
        subprocess.run([sys.executable, "-m", "podwire.local.fabric.frrprocess", str(file)], check=True, env={})
        assert (entry in vtysh(routed, "show running-config")) == (entry in desired)
    assert established(routed) == sessions


def test_the_router_of_a_running_cluster_gets_another_program(routed: Cluster, config: Path) -> None:
    frr = {name: process(routed, name) for name in PROGRAMS}
    assert all(frr.values())
    try:
        config.write_text(CONFIG.format(daemon="bird"))
        done("up", "--name", routed.name, "--config", str(config))
        assert process(routed, "router") and not any(process(routed, name) for name in PROGRAMS)
        eventually(lambda: reaches(routed))
        assert not any((LEFT_BY_FRR / f"{name}.{pid}").exists() for name, pid in frr.items())
    finally:
        config.write_text(CONFIG.format(daemon="frr"))
        done("up", "--name", routed.name, "--config", str(config))
    eventually(lambda: set(established(routed)) == nodes(routed))
    eventually(lambda: reaches(routed))
    assert not process(routed, "router")


def test_a_single_segment_has_no_router(config: Path) -> None:
    file = config.parent / "alone.yaml"
    file.write_text("segments: 1\nrouter: {daemon: frr}\n")
    refused = run("up", "--name", own_name("alone"), "--config", str(file))
    assert (refused.returncode, "router.daemon: 1 segment has no router" in refused.stderr) == (2, True)
