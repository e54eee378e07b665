"""A cluster whose nodes claim blocks of pools: packets to own and borrowed addresses, by several routing backends."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.clusters import done, drift, flows, netns_of, own_name, run, running, server
from tests.e2e.driver import Cluster, deployment, eventually

from podwire.kernel import netns
from podwire.local import inventory

NAME = own_name("blocks")
CONFIG = """
nodes: 3
podCIDRs: [10.244.0.0/27, "fd44::/120"]
serviceCIDRs: [10.96.0.0/16, "fd96::/112"]
ipam: {mode: blocks, blockSizes: [29, 125]}
"""
WEB = 11
"""A node has ten addresses when each of the others has a block, so some of the pods borrow."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four blocks of five addresses for three nodes; most pods are on node-1, which has to borrow."""
    config = tmp_path_factory.mktemp("config") / "cluster.yaml"
    config.write_text(CONFIG)
    with running(NAME, "--config", str(config), stdin=server("on-2", "node-2") + server("on-3", "node-3")) as cluster:
        cluster.apply(deployment("web", replicas=WEB).replace("    spec:\n", "    spec:\n      nodeName: node-1\n"))
        eventually(lambda: len(web_pods(cluster)) == WEB)
        yield cluster


def pid_of(process: str) -> int:
    record = json.loads((Path(inventory.existing(NAME).run) / "processes" / f"{process}.json").read_text())
    return int(record["pid"])


def kill(process: str) -> int:
    pid = pid_of(process)
    os.kill(pid, signal.SIGKILL)
    return pid


def web_pods(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """The addresses of the ready pods of the Deployment, by name."""
    pods = cluster.get("pods", "-l", "app=web")["items"]
    return {
        pod["metadata"]["name"]: tuple(ip["ip"] for ip in pod["status"]["podIPs"])
        for pod in pods
        if any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))
    }


def ranges(cluster: Cluster, node: str) -> list[str]:
    annotations = cluster.get("node", node)["metadata"]["annotations"]
    return str(annotations["podwire.io/pod-blocks"]).split(",")


def answer(cluster: Cluster, source: str, address: str) -> str:
    """The name of the pod that answers at an address; empty without an answer."""
    with netns.inside(netns_of(cluster, source)):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with sock:
        sock.settimeout(5)
        try:
            sock.connect((address, 80))
            sock.sendall(b"podwire-probe\n")
            return str(json.loads(sock.makefile().readline())["pod"])
        except (OSError, ValueError):
            return ""


def borrowed(cluster: Cluster) -> dict[str, str]:
    """The name of the pod with each borrowed address."""
    lent = {address for block in cluster.get("ipamblocks")["items"] for address in block["spec"].get("lent", {})}
    return {ip: name for name, addresses in web_pods(cluster).items() for ip in addresses if ip in lent}


def test_nodes_have_blocks_and_no_pod_cidr(small: Cluster) -> None:
    claimed = {block["spec"]["cidr"]: block["spec"]["node"] for block in small.get("ipamblocks")["items"]}
    for node in ("node-1", "node-2", "node-3"):
        assert not small.get("node", node)["spec"].get("podCIDRs")
        for cidr in ranges(small, node):
            assert claimed.get(cidr, node) == node
    assert sum("/29" in cidr for cidr in claimed) == 4
    assert borrowed(small)


@pytest.mark.parametrize("backend", ["vxlan", "hostgw", "udp", "bgp", "ovs", "wireguard"])
def test_own_and_borrowed_addresses_answer(small: Cluster, backend: str) -> None:
    done("up", "--name", NAME, "--backend", backend)
    targets = {ip: name for name, addresses in web_pods(small).items() for ip in addresses}
    assert len(targets) == 2 * WEB
    for source in ("on-2", "on-3"):
        for address, name in targets.items():
            assert eventually(lambda source=source, address=address: answer(small, source, address)) == name
    for name in borrowed(small).values():
        for ip in (ip["ip"] for pod in ("on-2", "on-3") for ip in small.get("pod", pod)["status"]["podIPs"]):
            assert eventually(lambda name=name, ip=ip: answer(small, name, ip)).startswith("on-")
    for node in ("node-1", "node-2", "node-3"):
        eventually(lambda node=node: not drift(small, node))


def test_killed_agents_lose_no_packet_of_borrowed_addresses(small: Cluster) -> None:
    name = next(iter(borrowed(small).values()))
    with flows(small, [("on-2", name), ("on-3", name), (name, "on-2")]) as traffic:
        for node in ("node-1", "node-2", "node-3"):
            killed = kill(f"agent-{node}")
            eventually(lambda killed=killed, node=node: pid_of(f"agent-{node}") != killed)
            for flow in traffic:
                flow.go_on(20)
        assert [flow.problems for flow in traffic] == [[], [], []]
    for node in ("node-1", "node-2", "node-3"):
        eventually(lambda node=node: not drift(small, node))


def test_ipam_shows_who_has_which_address(small: Cluster) -> None:
    report = json.loads(eventually(lambda: done("ipam", "--name", NAME, "-o", "json")))
    assert report["leaks"] == []
    rows = {row["address"]: row for row in report["addresses"]}
    for name, addresses in web_pods(small).items():
        assert {(rows[ip]["pod"], rows[ip]["node"]) for ip in addresses} == {(f"default/{name}", "node-1")}
    states = {row["cidr"]: row["state"] for row in report["ranges"]}
    assert {states[f"{ip}/32"].partition(" from ")[0] for ip in borrowed(small)} == {"borrowed"}
    text = done("ipam", "--name", NAME, "--addresses")
    assert all(ip in text for ip in rows)


def test_ipam_releases_only_what_nobody_uses(small: Cluster) -> None:
    used = ranges(small, "node-2")[0]
    refused = run("ipam", "--name", NAME, "--release", used)
    assert refused.returncode == 2
    assert f"{used}: node node-2 has it" in refused.stderr
    orphan = {
        "apiVersion": "podwire.io/v1alpha1",
        "kind": "IPAMBlock",
        "metadata": {"name": "fd44-0000-0000-0000-0000-0000-0000-00f8-125"},
        "spec": {"cidr": "fd44::f8/125", "pool": "default-ipv6-ippool", "node": "node-9", "confirmed": True},
    }
    small.apply(json.dumps(orphan))
    leaking = run("ipam", "--name", NAME)
    assert leaking.returncode == 1
    assert "leak: block fd44::f8/125: its node node-9 does not exist" in leaking.stdout
    assert "deleted the block fd44::f8/125 of node-9" in done("ipam", "--name", NAME, "--release", "fd44::f8/125")
    assert run("ipam", "--name", NAME, "--release", "fd44::f8/125").returncode == 2
    assert run("ipam", "--name", NAME, "--release", "something").returncode == 2
