"""The agent as a process against an API server: two nodes, a switch by ConfigMap, kill -9 under traffic."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside

from podwire.kernel import netns
from podwire.kube.resources import CONFIGMAPS, NODES

ECHO = """
import socket, threading
def serve(one):
    while data := one.recv(65536):
        one.sendall(data)
with socket.create_server(("", 7)) as server:
    print("up", flush=True)
    while True:
        one, _ = server.accept()
        threading.Thread(target=serve, args=(one,), daemon=True).start()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    one = Machine(tmp_path)
    try:
        yield one
    finally:
        one.close()
        for log in tmp_path.glob("*.log"):
            print(log.name, log.read_text()[-3000:])


def connect(machine: Machine, pod: str, address: str) -> socket.socket:
    with netns.inside(machine.root / "pods" / pod):
        one = socket.socket()
    one.settimeout(20)
    one.connect((address, 7))
    return one


def echo(one: socket.socket) -> bool:
    one.sendall(b"x")
    return one.recv(1) == b"x"


def annotations(machine: Machine, node: str) -> dict[str, str]:
    found: dict[str, str] = machine.api("get", NODES, node)["metadata"].get("annotations", {})
    return found


def conditions(machine: Machine, node: str) -> dict[str, str]:
    return {each["type"]: each["status"] for each in machine.api("get", NODES, node)["status"].get("conditions", ())}


@pytest.mark.slow
def test_each_part_runs_alone(machine: Machine) -> None:
    machine.add_node(1, ("cni",))
    machine.add_node(2, ("routing",))
    machine.add_node(3, ("proxy",))
    for name in ("node-1", "node-2", "node-3"):
        eventually(lambda name=name: machine.ready(name))
    assert machine.pod("node-1", "a") == "10.244.1.2"
    assert "podwire-vxlan" not in inside(machine.root / "node-1", "ip", "link")
    assert inside(machine.root / "node-1", "nft", "list", "tables") == ""
    assert "podwire-vxlan" in inside(machine.root / "node-2", "ip", "link")
    assert not (machine.root / "node-2-run" / "cni.sock").exists()
    assert "podwire-vxlan" not in inside(machine.root / "node-3", "ip", "link")
    assert "podwire-proxy" in inside(machine.root / "node-3", "nft", "list", "tables")
    eventually(lambda: annotations(machine, "node-3").get("podwire.io/proxy") == "nftables")


@pytest.mark.slow
def test_a_wrong_configuration_ends_at_once(machine: Machine) -> None:
    place = machine.root / "wrong.yaml"
    place.write_text("nodeName: a\nkubeconfig: /nonexistent\n")
    done = subprocess.run(
        [sys.executable, "-m", "podwire.cli.main", "agent", "--config", str(place)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 2
    assert "/nonexistent" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_two_agents_route_switch_and_survive_kills(machine: Machine) -> None:
    machine.add_node(1)
    machine.add_node(2)
    for name in ("node-1", "node-2"):
        eventually(lambda name=name: machine.ready(name))
    a, b = machine.pod("node-1", "a"), machine.pod("node-2", "b")
    assert (a, b) == ("10.244.1.2", "10.244.2.2")
    server = subprocess.Popen(
        ["nsenter", f"--net={machine.root}/pods/b", sys.executable, "-c", ECHO], stdout=subprocess.PIPE
    )
    machine.processes["server"] = server
    assert server.stdout is not None and server.stdout.readline()
    talk = connect(machine, "a", b)
    assert echo(talk)

    eventually(lambda: annotations(machine, "node-1").get("podwire.io/routing") == "vxlan")
    eventually(lambda: conditions(machine, "node-1").get("NetworkUnavailable") == "False")

    # what it should hold can be read, and does not differ from what the kernel holds; what somebody takes comes back
    held = machine.state("node-1")
    texts = [str(one) for one in held]
    assert [one.part for one in held] == ["cni", "cni", "routing"]
    assert "route 10.244.1.2/32 dev" in texts[0] and "address 10.244.1.2/32 dev eth0" in texts[1]
    assert "neighbour 10.244.2.1 lladdr" in texts[2] and "table inet podwire-masquerade" in texts[2]
    eventually(lambda: not machine.drift("node-1"))
    inside(machine.root / "node-1", "ip", "route", "del", "10.244.1.2/32")
    eventually(lambda: "10.244.1.2 " in inside(machine.root / "node-1", "ip", "route"))
    eventually(lambda: not machine.drift("node-1"))

    # somebody removes the device: it comes back long before the look that is taken every 30 s
    inside(machine.root / "node-1", "ip", "link", "del", "podwire-vxlan")
    assert echo(talk)

    # the cluster's settings change
    def settings(backend: str) -> dict[str, Any]:
        meta = {"name": "podwire-config", "namespace": "kube-system"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"routing.backend": backend}}

    machine.api("create", CONFIGMAPS, settings("hostgw"), "kube-system")
    gone = ("node-1", "node-2")
    eventually(lambda: all("podwire-vxlan" not in inside(machine.root / n, "ip", "link") for n in gone))
    assert echo(talk)
    eventually(lambda: annotations(machine, "node-2").get("podwire.io/routing") == "hostgw")
    machine.api("update", CONFIGMAPS, settings("nonsense"), "kube-system", name="podwire-config")
    time.sleep(0.2)
    assert echo(talk)
    machine.api("update", CONFIGMAPS, settings("vxlan"), "kube-system", name="podwire-config")
    eventually(
        lambda: all(
            "via 10.89.0.1" not in inside(machine.root / n, "ip", "route", "show", "root", "10.244.0.0/16")
            for n in gone
        )
    )
    assert echo(talk)

    # the agent is killed, with the API away it starts and serves
    for name in gone:
        machine.kill(name)
    assert echo(talk)
    machine.kill("api")
    machine.start_agent("node-1")
    c = eventually(lambda: machine.pod("node-1", "c"))
    assert c == "10.244.1.3"
    assert echo(talk)
    machine.start_agent("node-2")
    machine.start_api()
    for name in gone:
        eventually(lambda name=name: machine.ready(name))
    assert echo(talk)
    fresh = connect(machine, "c", b)
    assert echo(fresh)
    fresh.close()
    talk.close()

    # idle: next to nothing, once what follows a start is done
    status = Path(f"/proc/{machine.processes['node-1'].pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    eventually(lambda: cpu_of_a_second(machine.processes["node-1"].pid) < 0.04)
    assert resident < 50 * 1024
    print("agent RSS KiB", resident)
    server.stdout.close()


def cpu_of_a_second(pid: int) -> float:
    before = cpu_seconds(pid)
    time.sleep(1)
    return cpu_seconds(pid) - before


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
