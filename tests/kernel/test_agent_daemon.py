"""The agent as a process against an API server: two nodes, a switch by ConfigMap, kill -9 under traffic."""

import asyncio
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from podwire.agent import comparison
from podwire.apiserver import certificates
from podwire.cni import program
from podwire.errors import ApiUnreachable, NotFound
from podwire.kernel import netns
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.resources import CONFIGMAPS, NAMESPACES, NODES
from podwire.observe.fetch import fetch
from podwire.runtime.clock import SystemClock
from podwire.state import share
from podwire.state.drift import Difference
from podwire.state.share import Share

SERVE = """
import asyncio, sys
from pathlib import Path
from podwire.apiserver.server import run
from podwire.apiserver.settings import Settings
d = Path(sys.argv[1])
asyncio.run(run(Settings(listen=("10.89.0.1:6443",), state=d / "state.db", certificate=d / "srv.crt",
    key=d / "srv.key", client_ca=d / "ca.crt", signing_key=d / "srv.key")))
"""
AGENT = """
import asyncio, sys
from pathlib import Path
from podwire.agent import config, daemon
from podwire.runtime.clock import SystemClock
asyncio.run(daemon.run(config.load(Path(sys.argv[1])), SystemClock()))
"""
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


def inside(place: Path, *command: str) -> str:
    done = subprocess.run(["nsenter", f"--net={place}", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def eventually(check: Callable[[], Any], seconds: float = 10.0) -> Any:
    until = time.monotonic() + seconds
    while True:
        try:
            if value := check():
                return value
        except (OSError, AssertionError, ApiUnreachable, NotFound):
            if time.monotonic() > until:
                raise
        assert time.monotonic() < until, "not within the time"
        time.sleep(0.02)


class Machine:
    """Fabric, API server, node namespaces and the agents in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fabric = root / "fabric"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        netns.create(self.fabric)
        for command in (
            "ip link set lo up",
            "ip link add br0 type bridge",
            "ip link set br0 up",
            "ip address add 10.89.0.1/24 dev br0",
        ):
            inside(self.fabric, *command.split())
        self._certify()
        self.start_api()

    def _certify(self) -> None:
        now = datetime.datetime.now(datetime.UTC)
        authority = certificates.make_authority("test", now)
        server = certificates.issue(authority, "apiserver", [], ["10.89.0.1"], "server", now)
        admin = certificates.issue(authority, "admin", ["system:masters"], [], "client", now)
        for name, pair in (("ca", authority), ("srv", server), ("adm", admin)):
            (self.root / f"{name}.crt").write_bytes(pair.certificate)
            (self.root / f"{name}.key").write_bytes(pair.key)
        paths = {name: str(self.root / name) for name in ("ca.crt", "adm.crt", "adm.key")}
        cluster = {"server": "https://10.89.0.1:6443", "certificate-authority": paths["ca.crt"]}
        user = {"client-certificate": paths["adm.crt"], "client-key": paths["adm.key"]}
        self.kubeconfig = self.root / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "a",
                    "clusters": [{"name": "a", "cluster": cluster}],
                    "users": [{"name": "a", "user": user}],
                    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                }
            )
        )

    def spawn(self, name: str, place: Path, code: str, argument: Path) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["nsenter", f"--net={place}", sys.executable, "-c", code, str(argument)],
                stderr=log,
                stdout=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def start_api(self) -> None:
        self.spawn("api", self.fabric, SERVE, self.root)
        eventually(lambda: self.api("list", NAMESPACES), 20)

    def api(self, verb: str, *arguments: Any, **more: Any) -> Any:
        async def call() -> Any:
            client = Client(load_kubeconfig(self.kubeconfig), SystemClock())
            try:
                return await getattr(client, verb)(*arguments, **more) or True
            finally:
                await client.close()

        with netns.inside(self.fabric):
            return asyncio.run(call())

    def add_node(self, number: int, parts: tuple[str, ...] = ("cni", "routing")) -> None:
        name, place = f"node-{number}", self.root / f"node-{number}"
        netns.create(place)
        inside(
            self.fabric, "ip", "link", "add", f"n{number}", "type", "veth", "peer", "name", "eth0", "netns", str(place)
        )
        inside(self.fabric, "ip", "link", "set", f"n{number}", "master", "br0", "up")
        for command in (
            "ip link set lo up",
            "ip link set eth0 up",
            f"ip address add 10.89.0.{10 + number}/24 dev eth0",
            "ip route add default via 10.89.0.1",
        ):
            inside(place, *command.split())
        address = {"type": "InternalIP", "address": f"10.89.0.{10 + number}"}
        cidr = f"10.244.{number}.0/24"
        self.api(
            "create",
            NODES,
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name},
                "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
            },
        )
        self.api("patch", NODES, name, {"status": {"addresses": [address]}}, subresource="status")
        (self.root / f"{name}.yaml").write_text(
            json.dumps(
                {
                    "nodeName": name,
                    "kubeconfig": str(self.kubeconfig),
                    "parts": list(parts),
                    "runDir": str(self.root / f"{name}-run"),
                    "stateDir": str(self.root / f"{name}-state"),
                    "clusterCIDRs": ["10.244.0.0/16"],
                    "health": {"port": 9440},
                }
            )
        )
        self.start_agent(name)

    def start_agent(self, name: str) -> None:
        self.spawn(name, self.root / name, AGENT, self.root / f"{name}.yaml")

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ready(self, name: str) -> bool:
        with netns.inside(self.root / name), urlopen("http://127.0.0.1:9440/readyz", timeout=1) as answer:
            return bool(answer.status == 200)

    def state(self, name: str) -> list[Share]:
        return share.parse(fetch(self.root / f"{name}-run/agent.sock", "/state"))

    def drift(self, name: str) -> list[Difference]:
        return list(comparison.compare(self.state(name), self.root / name))

    def pod(self, node: str, name: str) -> str:
        place = self.root / "pods" / name
        netns.create(place)
        environment = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": f"c-{name}",
            "CNI_NETNS": str(place),
            "CNI_IFNAME": "eth0",
            "PODWIRE_CNI_SOCKET": str(self.root / f"{node}-run" / "cni.sock"),
        }
        done = subprocess.run(
            [str(program.path())],
            env=environment,
            capture_output=True,
            check=False,
            input=b'{"cniVersion": "1.0.0", "name": "podwire"}',
        )
        assert done.returncode == 0, done.stdout
        return str(json.loads(done.stdout)["ips"][0]["address"].partition("/")[0])

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for place in [*(self.root / "pods").glob("*"), *self.root.glob("node-?"), self.fabric]:
            netns.delete(place)


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
    one.settimeout(3)
    one.connect((address, 7))
    return one


def echo(one: socket.socket) -> bool:
    one.sendall(b"x")
    return one.recv(1) == b"x"


def annotations(machine: Machine, node: str) -> dict[str, str]:
    found: dict[str, str] = machine.api("get", NODES, node)["metadata"].get("annotations", {})
    return found


@pytest.mark.slow
def test_parts_run_alone(machine: Machine) -> None:
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
def test_two_agents(machine: Machine) -> None:
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

    node = machine.api("get", NODES, "node-1")
    assert annotations(machine, "node-1")["podwire.io/routing"] == "vxlan"
    conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
    assert conditions["NetworkUnavailable"] == "False"

    # what it should hold can be read, and does not differ from what the kernel holds; what somebody takes comes back
    held = machine.state("node-1")
    texts = [str(one) for one in held]
    assert [one.part for one in held] == ["cni", "cni", "routing"]
    assert "route 10.244.1.2/32 dev" in texts[0] and "address 10.244.1.2/32 dev eth0" in texts[1]
    assert "neighbour 10.244.2.1 lladdr" in texts[2] and "table inet podwire-masquerade" in texts[2]
    assert machine.drift("node-1") == []
    inside(machine.root / "node-1", "ip", "route", "del", "10.244.1.2/32")
    eventually(lambda: "10.244.1.2 " in inside(machine.root / "node-1", "ip", "route"), 3)
    assert machine.drift("node-1") == []

    # somebody removes the device
    inside(machine.root / "node-1", "ip", "link", "del", "podwire-vxlan")
    started = time.monotonic()
    assert echo(talk)
    assert time.monotonic() - started < 2

    # the cluster's settings change
    def settings(backend: str) -> dict[str, Any]:
        meta = {"name": "podwire-config", "namespace": "kube-system"}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"routing.backend": backend}}

    machine.api("create", CONFIGMAPS, settings("hostgw"), "kube-system")
    gone = ("node-1", "node-2")
    eventually(lambda: all("podwire-vxlan" not in inside(machine.root / n, "ip", "link") for n in gone))
    assert echo(talk)
    assert annotations(machine, "node-2")["podwire.io/routing"] == "hostgw"
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

    # idle: next to nothing
    status = Path(f"/proc/{machine.processes['node-1'].pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    before = cpu_seconds(machine.processes["node-1"].pid)
    time.sleep(3)
    assert cpu_seconds(machine.processes["node-1"].pid) - before < 0.1
    assert resident < 50 * 1024
    print("agent RSS KiB", resident)
    server.stdout.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
