"""CNI ADD and DEL, one after the other and eight at a time, beside the reference plugins ptp and bridge.

In turns, in a node namespace of their own: each plugin is executed as a container runtime does it, for a namespace that
exists already. podwire is measured with its compiled program and with the one in Python; the agent's CNI part runs in a
process of its own with the address ledger on disk (an `fdatasync` for each ADD). ptp and bridge come with host-local
from Debian's package `containernetworking-plugins`; without it they are left out. podwire is also measured with a
hostPort for each pod, and bridge with portmap and firewall (iptables) behind it. A DEL of podwire ends when the pod's
address is out of the network and may be given out later; the device goes in the background. "/bin/true" is a program
that does nothing, executed in the same way: every other number contains as much. The aims are multiples of what the
plugins bridge and host-local need: ADD at most 0.2, DEL at most 0.05, the rate of eight at a time at least 5. ADD with
a hostPort should need at most 1.2 of what it needs without.

Each second the agent compares those sysctls of pods whose changes the kernel does not report: the last rows have the
CPU time of one comparison; the aim is 0.3 % of one processor.

    sudo python -m bench.cni [--quick]
"""

import asyncio
import gc
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from bench import podsysctls
from bench.alone import run_alone
from bench.executions import Call, Execution, run_all
from bench.table import Row

from podwire.cni import program
from podwire.cni.service import CniService, CniSettings
from podwire.cni.wiring import WiringFacts
from podwire.kernel import netns
from podwire.runtime.clock import SystemClock

_WIDTH = 8
_FIRST_PORT = 20000
_REST_S = 0.8
"""Until the devices of deleted pods are gone in the background, so that the next measurement does not wait for them."""
_PLUGINS = Path("/usr/lib/cni")
_SHIM = Path(program.__file__).with_name("shim.py")


_REFERENCE = "bridge + host-local"
_AIMS = {"ADD 1 by 1": 0.2, "DEL 1 by 1": 0.05, f"ADD {_WIDTH} at a time: rate": 5.0}
"""The aims, as multiples of what the reference needs."""

_PORT_AIM = 1.2
"""The aim of ADD with a hostPort, as a multiple of ADD without."""
_WITH_PORT = "podwire with hostPort"

Conf = dict[str, Any]


class Plugin:
    """What is measured: programs with their configurations, which run one after the other, and an environment.

    With ``ports`` each pod has a hostPort of its own.
    """

    def __init__(self, name: str, programs: list[tuple[list[str], Conf]], env: dict[str, str]) -> None:
        self.name = name
        self.programs = programs
        self.env = env
        self.ports = False
        self._results: dict[str, Any] = {}

    def with_ports(self) -> "Plugin":
        """The same with hostPorts."""
        self.ports = True
        return self

    def call(self, verb: str, container: str, netns_path: Path) -> Call:
        """One request: as libcni makes it, each program gets the result of the one before."""
        more: Conf = {}
        if self.ports:
            port = {"hostPort": _FIRST_PORT + int(netns_path.name[1:]), "containerPort": 80, "protocol": "tcp"}
            more = {"runtimeConfig": {"portMappings": [port]}}
        environment = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(netns_path),
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME={container}",
            **self.env,
        }
        previous = self._results.pop(container, None) if verb == "DEL" else None
        for command, conf in self.programs if verb == "ADD" else reversed(self.programs):
            document = json.dumps(conf | more | ({"prevResult": previous} if previous else {})).encode()
            status, output = yield Execution(command, environment, document)
            if status:
                raise SystemExit(f"{self.name} {verb}: {output.decode()}")
            if verb == "ADD" and output:
                previous = json.loads(output)
        if verb == "ADD":
            self._results[container] = previous


def serve(node: Path, root: Path, ready: Event) -> None:
    """The CNI part of an agent, in the node's namespace."""
    netns.enter(node)
    gc.freeze()  # As the agent does behind its imports.

    async def body() -> None:
        service = CniService(CniSettings(socket=root / "cni.sock", database=root / "ipam.db"), SystemClock())
        service.recover()
        service.set_node(WiringFacts(cidrs=("10.244.0.0/16",)))
        async with asyncio.TaskGroup() as group:
            group.create_task(service.run())
            group.create_task(service.delete_detached())
            group.create_task(service.forget_stale())
            await asyncio.sleep(0.05)
            ready.set()

    asyncio.run(body())


def measure(plugin: Plugin, netns_paths: list[Path]) -> dict[str, float]:
    """Medians in milliseconds and rates per second of one plugin."""
    figures: dict[str, float] = {}
    for width, label in ((1, "1 by 1"), (_WIDTH, f"{_WIDTH} at a time")):
        for verb in ("ADD", "DEL"):
            names = [f"{width}-{netns_path.name}" for netns_path in netns_paths]
            started = time.perf_counter()
            used = run_all(
                (plugin.call(verb, name, path) for name, path in zip(names, netns_paths, strict=True)), width
            )
            figures[f"{verb} {label}, ms"] = statistics.median(used)
            figures[f"{verb} {label}, 99th percentile, ms"] = sorted(used)[int(len(used) * 0.99) - 1]
            figures[f"{verb} {label}: rate, /s"] = len(netns_paths) / (time.perf_counter() - started)
        time.sleep(_REST_S)
    return figures


def plugins_of(root: Path, directory: Path) -> list[Plugin]:
    """What is measured in turns, podwire first."""
    own: Conf = {"cniVersion": "1.0.0", "name": "podwire", "type": "podwire-cni"}
    env = {"PODWIRE_CNI_SOCKET": str(root / "cni.sock")}
    compiled = ([str(program.path())], own)
    plugins = [
        Plugin("podwire", [compiled], env),
        Plugin(_WITH_PORT, [compiled], env).with_ports(),
        Plugin("podwire, program in Python", [(["/usr/bin/python3", "-I", "-S", str(_SHIM)], own)], env),
    ]
    if not (directory / "ptp").exists():
        print("bench.cni: no ptp and bridge; install containernetworking-plugins", file=sys.stderr)
        return plugins
    more: dict[str, Conf] = {"ptp": {}, "bridge": {"bridge": "reference0", "isGateway": True}}
    references = {}
    for number, (name, fields) in enumerate(more.items()):
        ipam = {"type": "host-local", "subnet": f"10.{245 + number}.0.0/16", "dataDir": str(root / name)}
        conf = {"cniVersion": "1.0.0", "name": f"reference-{name}", "type": name, "ipam": ipam, **fields}
        references[name] = ([str(directory / name)], conf)
        plugins.append(Plugin(f"{name} + host-local", [references[name]], {"CNI_PATH": str(directory)}))
    common: Conf = {"cniVersion": "1.0.0", "name": "reference-bridge"}
    portmap = ([str(directory / "portmap")], common | {"type": "portmap", "snat": True})
    firewall = ([str(directory / "firewall")], common | {"type": "firewall", "backend": "iptables"})
    chain = Plugin(
        "bridge + host-local + portmap + firewall",
        [references["bridge"], portmap, firewall],
        {"CNI_PATH": str(directory), "PATH": os.environ["PATH"]},
    )
    plugins.append(chain.with_ports())
    plugins.append(Plugin("/bin/true", [(["/bin/true"], common)], {}))
    return plugins


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run with 16 pods."""
    pods, runs = (16, 1) if quick else (64, 5)
    with tempfile.TemporaryDirectory(prefix="podwire-bench-") as folder:
        root = Path(folder)
        node = root / "node"
        netns.create(node)
        netns_paths = [root / "pods" / f"p{number}" for number in range(pods)]
        for netns_path in netns_paths:
            netns.create(netns_path)
        ready = multiprocessing.get_context("spawn").Event()
        agent = multiprocessing.get_context("spawn").Process(target=serve, args=(node, root, ready), daemon=True)
        agent.start()
        netns.enter(node)
        try:
            if not ready.wait(20):
                raise SystemExit("the agent did not start")
            plugins = plugins_of(root, _PLUGINS)
            results = [[measure(plugin, netns_paths) for plugin in plugins] for _ in range(runs)]
        finally:
            agent.kill()
            agent.join()
            for netns_path in (*netns_paths, node):
                netns.delete(netns_path)
    with tempfile.TemporaryDirectory(prefix="podwire-bench-") as folder:
        compared = podsysctls.rows(Path(folder), quick)
    rows = [_row(label, plugins, results) for label in results[0][0]]
    return [*rows, with_port(rows[0]), *compared]


def with_port(add: Row) -> Row:
    """ADD with a hostPort as a row of its own, with its aim; ``add`` is ADD one by one, with hostPorts as a peer."""
    values = dict(add.peers)[_WITH_PORT]
    return Row(f"{add.what}, with hostPort", add.unit, values, aim=_PORT_AIM * statistics.median(add.values))


def _row(label: str, plugins: list[Plugin], results: list[list[dict[str, float]]]) -> Row:
    columns = [tuple(result[number][label] for result in results) for number in range(len(plugins))]
    peers = dict(zip((plugin.name for plugin in plugins[1:]), columns[1:], strict=True))
    subject, _, unit = label.rpartition(", ")
    return Row(subject, unit, columns[0], tuple(peers.items()), _aim(subject, peers.get(_REFERENCE)))


def _aim(subject: str, reference: Sequence[float] | None) -> float | None:
    """The aim of a row, by what the reference needed in the same run."""
    factor = _AIMS.get(subject)
    return factor * statistics.median(reference) if factor is not None and reference else None


if __name__ == "__main__":
    run_alone("cni", __doc__, run)
