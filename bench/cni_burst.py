"""A burst of 100 pods through containerd, 16 at a time, with podwire and with the reference plugins.

Each network has a containerd of its own, in a namespace that stands for a node. A pod is a sandbox of CRI with one
static program that waits; its time contains the shim and runc, which take most of it and are the same for all. The
agent's CNI part runs in a process of its own. Debian's packages containerd, runc and containernetworking-plugins are
needed.

    sudo python -m bench.cni_burst [--quick]
"""

import json
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.alone import run_alone
from bench.cni import serve
from bench.table import Row
from tests.kernel.containerd import Containerd

from podwire.agent.config import CniSection
from podwire.cni import program
from podwire.kernel import netns

_AT_A_TIME = 16
_FIRST_PORT = 20000
_PLUGINS = Path("/usr/lib/cni")
_READY_S = 60.0
_BRIDGE = {
    "type": "bridge",
    "bridge": "reference0",
    "isGateway": True,
    "ipam": {"type": "host-local", "subnet": "10.245.0.0/16"},
}
_CHAIN = (
    {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}},
    {"type": "firewall", "backend": "iptables"},
)


class Network(NamedTuple):
    """A network configuration; with ``ports`` each pod has a hostPort of its own."""

    name: str
    conflist: bytes
    ports: bool = False


def networks() -> list[Network]:
    """What is measured in turns, podwire first."""

    def chain(*plugins: dict[str, Any]) -> bytes:
        return json.dumps({"cniVersion": "1.0.0", "name": "reference", "plugins": plugins}).encode()

    own = CniSection().conflist
    return [
        Network("podwire", own),
        Network("podwire with hostPort", own, ports=True),
        Network("bridge + host-local", chain(_BRIDGE)),
        Network("bridge + host-local + portmap + firewall", chain(_BRIDGE, *_CHAIN), ports=True),
    ]


@contextmanager
def running(root: Path, place: Path, network: Network) -> Iterator[Containerd]:
    """A containerd whose node is ready with a network; its pods are removed at the end."""
    runtime = Containerd(root, place, root.parent / "cni.sock")
    try:
        for name in ("bridge", "host-local", "portmap", "firewall"):
            (runtime.bin_dir / name).symlink_to(_PLUGINS / name)
        program.write_configuration(runtime.conf_dir, network.conflist)
        until = time.monotonic() + _READY_S
        while not runtime.network_ready():
            if time.monotonic() > until:
                raise SystemExit(f"bench.cni_burst: no network {network.name}\n{runtime.log.read_text()[-2000:]}")
            time.sleep(0.02)
        yield runtime
    finally:
        for sandbox in runtime.pods():
            runtime.remove_pod(sandbox)
        runtime.stop()


def burst(runtime: Containerd, network: Network, pods: int) -> dict[str, float]:
    """Rates and medians of one burst, and of its removal."""
    figures: dict[str, float] = {}

    def start(number: int) -> str:
        port = ({1: 0, 2: 80, 3: _FIRST_PORT + number},) if network.ports else ()
        return runtime.run_pod(f"pod-{number}", *port, uid=f"u-{number}")

    def run(label: str, action: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        used: list[float] = []

        def timed(item: Any) -> Any:
            begun = time.perf_counter()
            result = action(item)
            used.append((time.perf_counter() - begun) * 1000)
            return result

        begun = time.perf_counter()
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            results = list(threads.map(timed, items))
        figures[f"{label}: rate, /s"] = len(items) / (time.perf_counter() - begun)
        figures[f"{label}, ms"] = statistics.median(used)
        return results

    sandboxes = run("start of a pod", start, list(range(pods)))
    run("removal of a pod", runtime.remove_pod, sandboxes)
    if left := runtime.pods():
        raise SystemExit(
            f"bench.cni_burst: {network.name}: {len(left)} pods are left\n{runtime.log.read_text()[-2000:]}"
        )
    return figures


def measure(folder: Path, network: Network, pods: int) -> dict[str, float]:
    """One burst on a new node."""
    place = folder / "node"
    netns.create(place)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    agent = context.Process(target=serve, args=(place, folder, ready), daemon=True)
    agent.start()
    try:
        if not ready.wait(20):
            raise SystemExit("the agent did not start")
        with running(folder / "c", place, network) as runtime:
            return burst(runtime, network, pods)
    finally:
        agent.kill()
        agent.join()
        netns.delete(place)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one burst of 16 pods for each network."""
    missing = [name for name in ("containerd", "runc") if not shutil.which(name)]
    missing += [str(_PLUGINS / name) for name in ("bridge", "portmap") if not (_PLUGINS / name).exists()]
    if missing:
        raise SystemExit(f"bench.cni_burst: {', '.join(missing)} is missing; run make setup")
    pods, runs = (16, 1) if quick else (100, 3)
    measured = networks()
    results: list[list[dict[str, float]]] = []
    for _ in range(runs):
        results.append([])
        for network in measured:
            with tempfile.TemporaryDirectory(prefix="podwire-burst-") as folder:
                results[-1].append(measure(Path(folder), network, pods))
    return [_row(label, measured, results) for label in results[0][0]]


def _row(label: str, measured: list[Network], results: list[list[dict[str, float]]]) -> Row:
    columns = [tuple(result[number][label] for result in results) for number in range(len(measured))]
    subject, _, unit = label.rpartition(", ")
    peers = zip((network.name for network in measured[1:]), columns[1:], strict=True)
    return Row(subject, unit, columns[0], tuple(peers))


if __name__ == "__main__":
    run_alone("cni_burst", __doc__, run)
