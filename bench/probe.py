"""Connectivity with real packets: nine pods with each other on four ports.

Each run is the whole command `podwire probe`, from its start to the printed table: 9 x 8 x 4 attempts over TCP and UDP,
each answered by the pod that was meant (the exit status says so). Pods are on three nodes.

    sudo python -m bench.probe [--quick]
"""

import tempfile
from pathlib import Path

from bench import up
from bench.alone import run_alone
from bench.table import Row

ATTEMPTS = 9 * 8 * 4

PODS = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: nine}
spec:
  replicas: 9
  selector: {matchLabels: {app: nine}}
  template:
    metadata: {labels: {app: nine}}
    spec:
      containers:
        - name: web
          image: nginx
          ports: [{containerPort: 80}, {containerPort: 81}, {containerPort: 82}, {containerPort: 5353, protocol: UDP}]
"""


def everyone() -> str:
    """A probe of the pods among themselves; an attempt is a line."""
    return up.podwire(
        "probe", "--name", up.NAME, "--from", "default/app=nine", "--to", "default/app=nine", "-o", "json"
    )


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one run."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            manifest = Path(folder) / "nine.yaml"
            manifest.write_text(PODS)
            up.fresh_up("--nodes", "3", "-f", str(manifest))
        result = len(everyone().splitlines())
        if result != ATTEMPTS:
            raise SystemExit(f"{result} attempts, expected {ATTEMPTS}")
        seconds = tuple(up.timed(everyone) for _ in range(1 if quick else 9))
        return [Row(f"9 pods with each other on 4 ports, {ATTEMPTS} attempts", "s", seconds, aim=1)]
    finally:
        up.podwire("down", "--name", up.NAME)


if __name__ == "__main__":
    run_alone("probe", __doc__, run)
