"""A small cluster for tests of the agent: a fabric, an API server, and node namespaces with an agent process each."""

import asyncio
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.request import urlopen

from tests.kernel import warm_processes
from tests.kernel.routing_nodes import ip_batch

from podwire.cni import program
from podwire.embedded.apiserver import certificates
from podwire.errors import ApiUnreachable, NotFound
from podwire.http.fetch import fetch
from podwire.kernel import comparison, netns
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.resources import NAMESPACES, NODES
from podwire.runtime.children import stop_recorded
from podwire.runtime.clock import SystemClock
from podwire.state import share
from podwire.state.drift import Difference
from podwire.state.share import Share

SERVE = """
import asyncio, sys
from pathlib import Path
from podwire.embedded.apiserver.server import run
from podwire.embedded.apiserver.settings import ApiServerSettings
d = Path(sys.argv[1])
asyncio.run(run(ApiServerSettings(listen=("10.89.0.1:6443",), state=d / "state.db", certificate=d / "srv.crt",
    key=d / "srv.key", client_ca=d / "ca.crt", signing_key=d / "srv.key")))
"""
AGENT = """
import asyncio, sys
from pathlib import Path
from podwire.agent import config, daemon
from podwire.runtime.clock import SystemClock
asyncio.run(daemon.run(config.load(Path(sys.argv[1])), SystemClock()))
"""


def inside(place: Path, *command: str) -> str:
    with netns.inside(place):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def eventually(check: Callable[..., Any], seconds: float = 30.0) -> Any:
    """The first true value of ``check``; pauses between checks are as long as a check, since others need processors."""
    until = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        try:
            if value := check():
                return value
        except (OSError, AssertionError, ApiUnreachable, NotFound):
            if time.monotonic() > until:
                raise
        now = time.monotonic()
        assert now < until, "not within the time"
        time.sleep(max(0.02, min(now - began, 0.5)))


class Process(Protocol):
    """A program that a test runs and ends."""

    @property
    def pid(self) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> object: ...


class Machine:
    """Fabric, API server, node namespaces and the agents in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fabric = root / "fabric"
        self.processes: dict[str, Process] = {}
        netns.create(self.fabric)
        ip_batch(
            self.fabric,
            "link set lo up",
            "link add br0 address 02:00:00:00:00:01 type bridge",
            "link set br0 up",
            "address add 10.89.0.1/24 dev br0",
        )
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

    def spawn(self, name: str, place: Path, code: str, argument: Path, *, warm: bool = True) -> None:
        """Runs a program in a namespace, as a fork or with an interpreter of its own."""
        file = self.root / f"{name}.log"
        if warm:
            self.processes[name] = warm_processes.spawn(place, code, str(argument), log=file)
            return
        with file.open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["nsenter", f"--net={place}", sys.executable, "-c", code, str(argument)],
                stderr=log,
                stdout=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def start_api(self) -> None:
        self.spawn("api", self.fabric, SERVE, self.root)
        eventually(lambda: self.api("list", NAMESPACES), 60)

    def api(self, verb: str, *arguments: Any, **more: Any) -> Any:
        async def call() -> Any:
            client = Client(load_kubeconfig(self.kubeconfig), SystemClock())
            try:
                return await getattr(client, verb)(*arguments, **more) or True
            finally:
                await client.close()

        with netns.inside(self.fabric):
            return asyncio.run(call())

    def add_node(self, number: int, parts: tuple[str, ...] = ("cni", "routing"), *, start: bool = True) -> None:
        name, place = f"node-{number}", self.root / f"node-{number}"
        netns.create(place)
        ip_batch(
            self.fabric,
            f"link add n{number} type veth peer name eth0 netns {place}",
            f"link set n{number} master br0 up",
        )
        ip_batch(
            place,
            "link set lo up",
            "link set eth0 up",
            f"address add 10.89.0.{10 + number}/24 dev eth0",
            "route add default via 10.89.0.1",
        )
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
        if start:
            self.start_agent(name)

    def start_agent(self, name: str, *, warm: bool = True) -> None:
        self.spawn(name, self.root / name, AGENT, self.root / f"{name}.yaml", warm=warm)

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ready(self, name: str) -> bool:
        with netns.inside(self.root / name), urlopen("http://127.0.0.1:9440/readyz", timeout=10) as answer:
            return bool(answer.status == 200)

    def state(self, name: str) -> list[Share]:
        return share.parse(fetch(self.root / f"{name}-run/agent.sock", "/state"))

    def drift(self, name: str) -> list[Difference]:
        return self.drift_at(self.root / f"{name}-run/agent.sock", name)

    def drift_at(self, agent: Path, name: str) -> list[Difference]:
        return list(comparison.compare(share.parse(fetch(agent, "/state")), self.root / name))

    def pod(self, node: str, name: str, arguments: str = "") -> str:
        place = self.root / "pods" / name
        netns.create(place)
        environment = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": f"c-{name}",
            "CNI_NETNS": str(place),
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": arguments,
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
        for folder in self.root.glob("*-run/*/children"):  # BIRD, the keeper of the backend udp, ...
            asyncio.run(stop_recorded(folder))
        for place in [*(self.root / "pods").glob("*"), *self.root.glob("node-?"), self.fabric]:
            netns.delete(place)
