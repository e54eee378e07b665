"""The agent as a process against an API server: two nodes, a switch by ConfigMap, kill -9 under traffic."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.agent_cluster import Machine, eventually, inside
from tests.kernel.pod_servers import serving
from tests.kernel.routing_nodes import ECHO_SERVER
from tests.kernel.test_agent_policy import add

from podwire.kernel import netns
from podwire.kube.resources import CONFIGMAPS, EVENTS, NODES

ECHO_ADDRESS = "10.244.2.2"


def connect(machine: Machine, pod: str, address: str) -> socket.socket:
    with netns.inside(machine.root / "pods" / pod):
        item = socket.socket()
    item.settimeout(20)
    item.connect((address, 7))
    return item


def echo(sock: socket.socket) -> bool:
    sock.sendall(b"x")
    return sock.recv(1) == b"x"


def annotations(machine: Machine, node: str) -> dict[str, str]:
    result: dict[str, str] = machine.api("get", NODES, node)["metadata"].get("annotations", {})
    return result


def conditions(machine: Machine, node: str) -> dict[str, str]:
    return {item["type"]: item["status"] for item in machine.api("get", NODES, node)["status"].get("conditions", ())}


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


BOTH = ("node-1", "node-2")


def run_two_nodes(machine: Machine) -> None:
    """Two ready nodes with the pods ``a`` and ``b``."""
    machine.add_node(1)
    machine.add_node(2)
    for name in BOTH:
        eventually(lambda name=name: machine.ready(name))
    assert (machine.pod("node-1", "a"), machine.pod("node-2", "b")) == ("10.244.1.2", ECHO_ADDRESS)


def check_state_and_repair(machine: Machine) -> None:
    """The desired state can be read and equals the kernel's; a deleted route comes back."""
    shares = machine.state("node-1")
    texts = [str(share) for share in shares]
    assert [share.part for share in shares] == ["cni", "cni", "routing"]
    assert "route 10.244.1.2/32 dev" in texts[0] and "address 10.244.1.2/32 dev eth0" in texts[1]
    assert "neighbour 10.244.2.1 lladdr" in texts[2] and "table inet podwire-masquerade" in texts[2]
    eventually(lambda: not machine.drift("node-1"))
    inside(machine.root / "node-1", "ip", "route", "del", "10.244.1.2/32")
    eventually(lambda: "10.244.1.2 " in inside(machine.root / "node-1", "ip", "route"))
    eventually(lambda: not machine.drift("node-1"))


def switch_backends(machine: Machine, check: Callable[[], None]) -> None:
    """Switches the backend by ConfigMap: to another one, to an unknown one, which changes nothing, and back."""

    def settings(backend: str) -> dict[str, Any]:
        meta = {"name": "podwire-config", "namespace": "kube-system"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"routing.backend": backend}}

    def shown(*command: str) -> str:
        return "".join(inside(machine.root / name, "ip", *command) for name in BOTH)

    machine.api("create", CONFIGMAPS, settings("hostgw"), "kube-system")
    eventually(lambda: "podwire-vxlan" not in shown("link"))
    check()
    eventually(lambda: annotations(machine, "node-2").get("podwire.io/routing") == "hostgw")
    machine.api("update", CONFIGMAPS, settings("nonsense"), "kube-system", name="podwire-config")
    time.sleep(0.2)
    check()
    machine.api("update", CONFIGMAPS, settings("vxlan"), "kube-system", name="podwire-config")
    eventually(lambda: "via 10.89.0.1" not in shown("route", "show", "root", "10.244.0.0/16"))
    check()


def kill_and_start_without_api(machine: Machine, check: Callable[[], None]) -> None:
    """Kills agents and API server; an agent that starts while the API is away adds pods."""
    for name in BOTH:
        machine.kill(name)
    check()
    machine.kill("api")
    machine.start_agent("node-1", warm=False)  # whose memory is measured
    assert eventually(lambda: machine.pod("node-1", "c")) == "10.244.1.3"
    check()
    machine.start_agent("node-2")
    machine.start_api()
    for name in BOTH:
        eventually(lambda name=name: machine.ready(name))
    check()


@pytest.mark.slow
def test_two_agents_route_switch_and_survive_kills(machine: Machine) -> None:
    run_two_nodes(machine)
    with serving(machine.root / "pods/b", ECHO_SERVER), connect(machine, "a", ECHO_ADDRESS) as talk:

        def check() -> None:
            assert echo(talk), "the connection goes on"

        check()
        eventually(lambda: annotations(machine, "node-1").get("podwire.io/routing") == "vxlan")
        eventually(lambda: conditions(machine, "node-1").get("NetworkUnavailable") == "False")
        check_state_and_repair(machine)
        inside(machine.root / "node-1", "ip", "link", "del", "podwire-vxlan")
        check()  # the device comes back long before the periodic check each 30 s
        switch_backends(machine, check)
        kill_and_start_without_api(machine, check)
        with connect(machine, "c", ECHO_ADDRESS) as fresh:
            assert echo(fresh)
    check_idle_use(machine.processes["node-1"].pid)


def check_idle_use(pid: int) -> None:
    """An idle agent uses almost no processor, and less than 50 MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    eventually(lambda: cpu_of_a_second(pid) < 0.04)
    assert resident < 50 * 1024
    print("agent RSS KiB", resident)


def cpu_of_a_second(pid: int) -> float:
    before = cpu_seconds(pid)
    time.sleep(1)
    return cpu_seconds(pid) - before


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_full_disk_is_reported_until_there_is_room(machine: Machine) -> None:
    machine.add_node(1, ("cni", "routing"), start=False)
    state = machine.root / "node-1-state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "podwire-test", str(state)], check=True)

    def fallback() -> str:
        return annotations(machine, "node-1").get("podwire.io/fallback", "")

    try:
        machine.start_agent("node-1")
        eventually(lambda: machine.ready("node-1"))
        assert add(machine, "first")[0] == 0
        filler = state / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1024))
        refused = next(answer for number in range(40) if (answer := add(machine, f"p{number}"))[0])
        assert refused[1]["code"] == 5
        eventually(lambda: f"{state}/ipam.db" in fallback())
        eventually(lambda: any(x["reason"] == "StateNotWritten" for x in machine.api("list", EVENTS, "default").items))
        filler.unlink()
        eventually(lambda: not fallback())
        assert add(machine, "last")[0] == 0
    finally:
        machine.kill("node-1")
        subprocess.run(["umount", "-l", str(state)], check=True)
