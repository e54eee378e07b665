"""One cluster for the whole session; tests use it through the real kubectl.

``PODWIRE_E2E_KUBECONFIG`` names the kubeconfig of a running cluster to use in place of a new one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster, podwire

_ROOT = Path(__file__).parents[2]
_UP_S = 180
_SETTINGS = """
nodes: 2
metrics: {resolutionS: 3}
autoscaler: {syncPeriodS: 2}
"""
# kubectl and Helm of `make setup`, after those of the machine.
os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two nodes, which is removed after the session."""
    if shutil.which("kubectl") is None:
        pytest.fail("kubectl is not installed; `make setup` installs it")
    home = tmp_path_factory.mktemp("home")
    if given := os.environ.get("PODWIRE_E2E_KUBECONFIG"):
        own = home / "config"
        shutil.copy(given, own)
        yield Cluster(os.environ.get("PODWIRE_E2E_NAME", "podwire"), str(own))
        return
    if os.geteuid() != 0:
        pytest.fail("e2e tests need root")
    _take_down_what_was_left()
    name = f"e2e-{os.getpid()}"
    state = tmp_path_factory.mktemp("state")
    try:
        settings = home / "cluster.yaml"
        settings.write_text(_SETTINGS)
        up = [*podwire(), "up", "--name", name, "--state-dir", str(state), "--config", str(settings)]
        done = subprocess.run(up, capture_output=True, text=True, timeout=_UP_S, cwd=_ROOT, check=False)
        assert done.returncode == 0, f"{' '.join(up)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        text = subprocess.run(
            [*podwire(), "kubeconfig", "--name", name, "--text"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        own = home / "config"
        own.write_text(text)
        yield Cluster(name, str(own))
    finally:
        subprocess.run([*podwire(), "down", "--name", name], capture_output=True, timeout=120, check=False)


def _take_down_what_was_left() -> None:
    """Removes clusters of earlier sessions that were killed before they could remove them."""
    for folder in Path("/run/podwire").glob("e2e-*"):
        owner = folder.name.removeprefix("e2e-")
        if owner.isdecimal() and not Path("/proc", owner).exists():
            subprocess.run([*podwire(), "down", "--name", folder.name], capture_output=True, timeout=120, check=False)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test; it is deleted after the test."""
    word = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:40].strip("-")
    name = f"t-{word}-{os.getpid()}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.run(["kubectl", "delete", "namespace", name, "--wait=false"])


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Iterator[Connection]:
    """A connection to the API as the cluster's administrator."""
    connection = Connection(cluster.kubeconfig)
    yield connection
    connection.close()
