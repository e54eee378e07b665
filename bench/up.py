"""Time to a working local cluster, time to Ready of many pods, and what the processes cost.

Each run takes the cluster down first. An `up` with the example ends when every pod of `examples/shop` is Ready and
the connectivity table is green, which its exit status says. Memory is that of each process by itself (RSS, pages that
it shares with the others included) and, as "share", with shared pages divided among those who share them (PSS). Idle
is measured over twenty seconds, with the example running. A cluster for tests is that of `podwire.testing`: the time
begins with the Python interpreter of the test and ends when the block begins, then when the first connection of a pod
to a Service by name is made, with the five pods and the policies of `examples/guarded`. Python's modules are compiled
beforehand, as an installation does it.

    sudo python -m bench.up [--quick]
"""

import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.alone import ROOT, run_alone
from bench.machine import cpu_s, resident_mb
from bench.table import Row

PODWIRE = str(Path(sys.executable).with_name("podwire"))
NAME = "bench"
IDLE_S = 20.0

PODS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: 100
  selector: {matchLabels: {app: many}}
  template:
    metadata: {labels: {app: many}}
    spec:
      containers:
        - name: web
          image: nginx
          ports: [{containerPort: 80}]
"""


TEST = """
import time
from podwire.testing.cluster import cluster
with cluster(nodes=2) as c:
    print(time.perf_counter())
    c.apply("examples/guarded/k8s")
    assert c.pod("shop/web").reaches("api:http")
    print(time.perf_counter())
"""


def podwire(*arguments: str) -> str:
    """Runs a command of podwire and returns its output."""
    done = subprocess.run([PODWIRE, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"podwire {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def kubectl(*arguments: str) -> str:
    """Runs kubectl against the benchmark's cluster."""
    environment = {**os.environ, "KUBECONFIG": podwire("kubeconfig", "--name", NAME).strip()}
    return subprocess.run(["kubectl", *arguments], capture_output=True, text=True, check=True, env=environment).stdout


def timed(action: Callable[..., object]) -> float:
    """Seconds that ``action`` took."""
    before = time.perf_counter()
    action()
    return time.perf_counter() - before


def fresh_up(*arguments: str) -> float:
    """Seconds of ``podwire up`` on a machine without this cluster."""
    podwire("down", "--name", NAME)
    return timed(lambda: podwire("up", "--name", NAME, *arguments))


def repeated_up() -> float:
    """Seconds of an ``up`` that finds everything there."""
    return timed(lambda: podwire("up", "--name", NAME, "--nodes", "3", "-f", "examples/shop", "--probe"))


def many_pods() -> float:
    """Seconds from apply to Ready of 100 one-container pods on three running nodes."""
    podwire("down", "--name", NAME)
    podwire("up", "--name", NAME, "--nodes", "3")
    kubectl("-n", "kube-system", "rollout", "status", "deployment/podwire-dns")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(PODS)
        file.flush()
        return timed(lambda: podwire("up", "--name", NAME, "--nodes", "3", "-f", file.name))


def down() -> float:
    """Seconds of ``podwire down`` of what runs."""
    return timed(lambda: podwire("down", "--name", NAME))


def for_tests() -> tuple[float, float]:
    """Seconds to a cluster of two nodes for tests, and until a connection is made in it."""
    begun = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", TEST], capture_output=True, text=True, check=True, cwd=ROOT)
    ready, reached = (float(word) - begun for word in done.stdout.split())
    return ready, reached


def processes() -> dict[str, int]:
    """The pid of each component of the benchmark's cluster."""
    folder = Path("/run/podwire") / NAME / "processes"
    return {file.stem: json.loads(file.read_text())["pid"] for file in folder.glob("*.json")}


def idle() -> list[Row]:
    """Memory and idle CPU of every kind of component, with the example application running."""
    fresh_up("--nodes", "3", "-f", "examples/shop")
    time.sleep(IDLE_S)
    pids = processes()
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    time.sleep(IDLE_S)
    shares = {name: (cpu_s(pid) - before[name]) / IDLE_S * 100 for name, pid in pids.items()}
    rows = []
    for kind in ("agent", "kubelet", "controller", "apiserver"):
        mine = [name for name in pids if name.partition("-")[0] == kind]
        sizes = [resident_mb(pids[name]) for name in mine]
        aims = (50.0, 1.0) if kind == "agent" else (None, None)
        rows.append(Row(f"{kind}: RSS", "MB", tuple(rss for rss, _ in sizes), aim=aims[0]))
        rows.append(Row(f"{kind}: share of memory", "MB", tuple(pss for _, pss in sizes)))
        rows.append(Row(f"{kind}: CPU of a core, idle", "%", tuple(shares[name] for name in mine), aim=aims[1]))
    return rows


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run each and no hundred nodes."""
    runs = range(1 if quick else 5)
    few = range(1 if quick else 3)
    shop = ("-f", "examples/shop", "--probe")
    compileall.compile_dir(ROOT / "src", quiet=2)
    try:
        three, again, away = [], [], []
        for _ in runs:
            three.append(fresh_up("--nodes", "3", *shop))
            again.append(repeated_up())
            away.append(down())
        two = tuple(fresh_up("--nodes", "2") for _ in runs)
        podwire("down", "--name", NAME)
        tests = [for_tests() for _ in runs]
        twenty = tuple(fresh_up("--nodes", "20", *shop) for _ in few)
        rows = [
            Row("up, 3 nodes, example Ready, table green", "s", tuple(three), aim=3),
            Row("the same again, nothing to do", "s", tuple(again)),
            Row("down", "s", tuple(away)),
            Row("up, 2 nodes Ready", "s", two, aim=2),
            Row("a cluster of 2 nodes for tests", "s", tuple(ready for ready, _ in tests), aim=2),
            Row("the same, until a connection is made in it", "s", tuple(reached for _, reached in tests)),
            Row("up, 20 nodes, example Ready, table green", "s", twenty, aim=10),
            Row("100 pods of one container on 3 nodes, apply to Ready", "s", tuple(many_pods() for _ in runs), aim=5),
        ]
        if not quick:
            hundred = tuple(fresh_up("--nodes", "100") for _ in few)
            rows.append(Row("up, 100 nodes Ready", "s", hundred, aim=30))
            shares = [resident_mb(pid)[1] for pid in processes().values()]
            rows.append(Row("100 nodes: share of memory of all processes", "MB", (sum(shares),)))
        return rows + idle()
    finally:
        podwire("down", "--name", NAME)


if __name__ == "__main__":
    run_alone("up", __doc__, run)
