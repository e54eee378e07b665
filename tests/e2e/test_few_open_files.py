"""A cluster whose processes may have 1,024 open files each, as many as shells and containers begin with."""

import json
import subprocess
from pathlib import Path

from tests.e2e.clusters import own_name, run
from tests.e2e.driver import Cluster, deployment, eventually, podwire

from podwire.local import credentials, inventory

_LIMIT = 1024
_FEW, _MORE, _PODS = 4, 20, 300
_PROCESSES = ("apiserver", "controller", "agent-node-1", "kubelet-node-1")


def test_the_limit_is_enough_for_three_hundred_pods() -> None:
    """Counted is what each pod more costs each process, with all pods on one node."""
    name = own_name("files")
    limited = ["prlimit", f"--nofile={_LIMIT}:{_LIMIT}", "setpriv", "--bounding-set=-sys_resource"]
    command = [*limited, "--inh-caps=-sys_resource", *podwire(), "up", "--name", name, "--nodes", "1", "-f", "-"]
    manifest = deployment("web", replicas=_FEW)
    made = subprocess.run(command, input=manifest, capture_output=True, text=True, timeout=180, check=False)
    try:
        assert made.returncode == 0, made.stdout + made.stderr
        assert "open files" not in made.stdout + made.stderr
        cluster = Cluster(name, str(credentials.kubeconfig_path(inventory.existing(name), "admin")))
        pids = {process: _pid(name, process) for process in _PROCESSES}
        assert {_allowed(pid) for pid in pids.values()} == {_LIMIT}
        cluster.rolled_out("web")
        few = {process: _open(pid) for process, pid in pids.items()}
        cluster.kubectl("scale", "deployment", "web", f"--replicas={_MORE}")
        eventually(lambda: cluster.get("deployment", "web")["status"].get("readyReplicas") == _MORE, within=120)
        more = {process: _open(pid) for process, pid in pids.items()}
        expected = {p: few[p] + (_PODS - _FEW) * (more[p] - few[p]) / (_MORE - _FEW) for p in pids}
        assert max(expected.values()) < _LIMIT, (few, more, expected)
    finally:
        run("down", "--name", name)


def _pid(name: str, process: str) -> int:
    record = Path(inventory.existing(name).run) / "processes" / f"{process}.json"
    return int(json.loads(record.read_text())["pid"])


def _allowed(pid: int) -> int:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(int(line.split()[4]) for line in lines if line.startswith("Max open files"))


def _open(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
