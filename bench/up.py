"""Time to a working local cluster, time to Ready of many pods, and what the processes cost.

Each run takes the cluster down first. ``up`` ends when every pod of examples/shop is Ready and the connectivity table
is green; its exit status is checked. Needs root and a prepared machine (``make setup``).

    python -m bench.up [--runs 3] [--only shop,twenty,pods,hundred,idle]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PODWIRE = str(Path(sys.executable).with_name("podwire"))
NAME = "bench"
IDLE_S = 10.0

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


def podwire(*words: str) -> str:
    """Runs a command of podwire and returns its output."""
    done = subprocess.run([PODWIRE, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"podwire {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def kubectl(*words: str) -> str:
    """Runs kubectl against the benchmark's cluster."""
    environment = {**os.environ, "KUBECONFIG": podwire("kubeconfig", "--name", NAME).strip()}
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def timed(action: Callable[[], object]) -> float:
    """Seconds that ``action`` took."""
    before = time.perf_counter()
    action()
    return time.perf_counter() - before


def fresh_up(*words: str) -> Callable[[], float]:
    """A measurement of ``podwire up`` on a machine without this cluster."""

    def measure() -> float:
        podwire("down", "--name", NAME)
        return timed(lambda: podwire("up", "--name", NAME, *words))

    return measure


def pods() -> float:
    """Seconds from apply to Ready of 100 one-container pods on three running nodes."""
    podwire("down", "--name", NAME)
    podwire("up", "--name", NAME, "--nodes", "3")
    kubectl("-n", "kube-system", "rollout", "status", "deployment/podwire-dns")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(PODS)
        file.flush()
        return timed(lambda: podwire("up", "--name", NAME, "--nodes", "3", "-f", file.name))


def processes() -> dict[str, int]:
    """The pid of each component of the benchmark's cluster."""
    folder = Path("/run/podwire") / NAME / "processes"
    return {file.stem: json.loads(file.read_text())["pid"] for file in folder.glob("*.json")}


def ticks(pid: int) -> int:
    """CPU time of a process in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def resident_mb(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sizes["Rss"] / 1024, sizes["Pss"] / 1024


def idle() -> None:
    """Prints memory and idle CPU of every kind of component, with the example application running."""
    podwire("down", "--name", NAME)
    podwire("up", "--name", NAME, "--nodes", "3", "-f", "examples/shop")
    time.sleep(IDLE_S)
    pids = processes()
    before = {name: ticks(pid) for name, pid in pids.items()}
    time.sleep(IDLE_S)
    hertz = os.sysconf("SC_CLK_TCK")
    for name, pid in sorted(pids.items()):
        cpu = (ticks(pid) - before[name]) / hertz / IDLE_S * 100
        rss, pss = resident_mb(pid)
        print(f"| {name}, idle | RSS {rss:.0f} MB, PSS {pss:.0f} MB, {cpu:.1f} % of a core |")


MEASUREMENTS: dict[str, tuple[str, Callable[[], float]]] = {
    "shop": (
        "up, 3 nodes, examples/shop Ready, table green (aim 3 s)",
        fresh_up("--nodes", "3", "-f", "examples/shop", "--probe"),
    ),
    "twenty": (
        "up, 20 nodes, examples/shop Ready, table green (aim 10 s)",
        fresh_up("--nodes", "20", "-f", "examples/shop", "--probe"),
    ),
    "pods": ("100 one-container pods on 3 nodes, apply to Ready (aim 5 s)", pods),
    "hundred": ("up, 100 nodes Ready (aim 30 s)", fresh_up("--nodes", "100")),
}


def main() -> None:
    """Runs the chosen measurements and prints a row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default=",".join([*MEASUREMENTS, "idle"]))
    given = parser.parse_args()
    chosen = given.only.split(",")
    try:
        for key, (label, measure) in MEASUREMENTS.items():
            if key in chosen:
                seconds = [measure() for _ in range(given.runs)]
                spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
                print(f"| {label} | {statistics.median(seconds):.2f} s ({spread}, {given.runs} runs) |", flush=True)
        if "idle" in chosen:
            idle()
    finally:
        podwire("down", "--name", NAME)


if __name__ == "__main__":
    main()
