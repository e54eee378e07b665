"""One cluster for the whole session; tests use it through the real kubectl.

``PODWIRE_E2E_KUBECONFIG`` names the kubeconfig of a running cluster to use in place of a new one.
"""

import gc
import os
import shutil
import sys
from collections.abc import Generator, Iterator
from itertools import count
from pathlib import Path

import pytest
from tests import longest_first
from tests.e2e import leftovers, shared_clusters, warm_commands
from tests.e2e.clusters import PAIR, done, run, running, server
from tests.e2e.connection import Connection
from tests.e2e.driver import Cluster
from tests.e2e.handwritten_endpoints import manifest
from tests.e2e.shared_clusters import NAMES, SharedClusters, in_groups

_GIVEN = "PODWIRE_E2E_KUBECONFIG"
_LONGEST = (
    "test_upgrade_apply.py",
    "test_upgrade_local.py",
    "test_service_mode_under_load.py",
    "test_api_away.py",
    "test_gateway_api.py",
    "test_documented_commands.py",
    "test_changing_a_running_cluster.py",
    "test_backends.py",
    "test_chart_gateway.py",
    "test_chart.py",
    "test_chart_alone.py",
    "test_why.py",
    "test_refusals.py",
    "test_migrate.py",
    "test_gateway.py",
    "test_network_policy.py",
    "test_pytest_plugin.py",
    "test_service_settings.py",
    "test_conformance.py",
    "test_probe_command.py",
    "test_segments_and_families.py",
    "test_load_balancer.py",
    "test_what_a_user_sees.py",
    "test_machine_as_it_was.py",
    "test_every_kubectl.py",
    "test_client_libraries.py",
)
_NUMBERS = count()
_FAILED = pytest.StashKey[bool]()
_SHARED = SharedClusters()
_SETTINGS = """
nodes: 2
metrics: {resolutionS: 3}
autoscaler: {syncPeriodS: 2}
"""
# kubectl and Helm of `make setup`, after those of the machine.
os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    shared_clusters.mark(items)
    longest_first.sort(items, Path(__file__).parent, in_groups(_LONGEST))


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests themselves, and all that they import, are not searched for garbage again and again."""
    gc.collect()
    gc.freeze()
    if session.config.getoption("forks", 0) > 1:
        warm_commands.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remembers that a test failed, for the fixtures that are removed after it."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None]:
    """Removes shared clusters after their last test."""
    try:
        yield
    finally:
        _SHARED.end_all_but(nextitem.path if nextitem is not None else None)


def pytest_sessionfinish() -> None:
    """Removes the clusters of tests that were interrupted."""
    _SHARED.end_all_but(None)


@pytest.fixture(autouse=True)
def _leftovers_of_failures_removed(request: pytest.FixtureRequest) -> Iterator[None]:
    if "cluster" not in request.fixturenames or _GIVEN in os.environ:
        yield
        return
    cluster = request.getfixturevalue("cluster")
    before = leftovers.known(cluster.api)
    yield
    if request.node.stash.get(_FAILED, False):
        leftovers.remove(cluster.api, before)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two nodes, which is removed after the session."""
    if shutil.which("kubectl") is None:
        pytest.fail("kubectl is not installed; `make setup` installs it")
    home = tmp_path_factory.mktemp("home")
    if value := os.environ.get(_GIVEN):
        own = home / "config"
        shutil.copy(value, own)
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
        done("up", "--name", name, "--state-dir", str(state), "--config", str(settings))
        text = done("kubeconfig", "--name", name, "--text")
        own = home / "config"
        own.write_text(text)
        yield Cluster(name, str(own))
    finally:
        run("down", "--name", name, timeout=120)


@pytest.fixture(scope="module")
def services_cluster() -> Cluster:
    """Two nodes with three servers behind a Service, and a client, for files that disturb Services."""
    return _SHARED.enter("services", running(NAMES["services"], "--nodes", "2", stdin=manifest()))


@pytest.fixture(scope="module")
def guarded_cluster() -> Cluster:
    """Two nodes with a database and a client on each, for files that write policies."""
    databases = "".join(server(f"db-{n}", f"node-{n}", f"app: db, name: db-{n}") for n in (1, 2))
    clients = server("web", "node-1") + server("other", "node-2")
    cluster = _SHARED.enter("guarded", running(NAMES["guarded"], "--nodes", "2", stdin=databases + clients))
    cluster.ready("db-1", "db-2", "web", "other")
    return cluster


@pytest.fixture(scope="module")
def pair_cluster() -> Cluster:
    """Two nodes with a server on each behind the Service ``both``, and a client."""
    return _SHARED.enter("pair", running(NAMES["pair"], "--nodes", "2", stdin=PAIR))


@pytest.fixture(scope="module")
def small_cluster() -> Cluster:
    """One node, for files about commands."""
    return _SHARED.enter("small", running(NAMES["small"], "--nodes", "1"))


def _take_down_what_was_left() -> None:
    """Removes clusters of earlier sessions that were killed before they could remove them."""
    for folder in Path("/run/podwire").glob("e2e-*"):
        owner = folder.name.removeprefix("e2e-")
        if owner.isdecimal() and not Path("/proc", owner).exists():
            run("down", "--name", folder.name, timeout=120)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for one test; it is deleted after the test. The number tells tests with long names apart."""
    word = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[:36].strip("-")
    name = f"t-{word}-{os.getpid()}-{next(_NUMBERS)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    cluster.api.do("POST", "/api/v1/namespaces", body)
    yield name
    cluster.api.ask("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Connection:
    """A connection to the API as the cluster's administrator."""
    return cluster.api
