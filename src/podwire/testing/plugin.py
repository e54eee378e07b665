"""The pytest plugin: a cluster as a fixture, and an explanation of each failed assertion about connections.

pytest loads the plugin when podwire is installed (entry point ``pytest11``). It costs nothing when no test uses a
cluster, because only the fixture imports the other modules. With pytest-xdist every worker has its own cluster.
"""

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from podwire.testing.cluster import Cluster

_REMAINING_CLUSTERS = pytest.StashKey[list[str]]()
_REACH = "podwire.testing.reachability"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the plugin."""
    group = parser.getgroup("podwire", "clusters for tests of manifests")
    group.addoption("--podwire-nodes", type=int, default=2, metavar="N", help="Nodes of the cluster.  [default: 2]")
    group.addoption(
        "--podwire-config", metavar="FILE", help="Configuration of the cluster, as of `podwire up --config`."
    )
    group.addoption("--podwire-keep", action="store_true", help="Keep the cluster running after the tests.")


@pytest.fixture(scope="session")
def podwire_session_cluster(request: pytest.FixtureRequest) -> "Iterator[Cluster]":
    """A cluster for all tests; what they apply stays until the end."""
    from podwire.testing import lifecycle

    options = request.config.option
    name = lifecycle.kept_name() if options.podwire_keep else lifecycle.free_name()
    session_cluster = _brought_up(name, options.podwire_nodes, options.podwire_config)
    try:
        yield session_cluster
    finally:
        session_cluster.close()
        if options.podwire_keep:
            request.config.stash.setdefault(_REMAINING_CLUSTERS, []).append(name)
        else:
            lifecycle.down(name)


def _brought_up(name: str, nodes: int, config: str | None) -> "Cluster":
    """A new cluster; when the creation fails, the tests report only the reason."""
    from podwire.errors import PodwireError
    from podwire.testing import lifecycle

    try:
        starting = lifecycle.StartingCluster(name, nodes, config)
        from podwire.testing.cluster import Cluster  # meanwhile

        return Cluster(starting.topology())
    except PodwireError as failure:
        problem = str(failure)
    pytest.fail(problem, pytrace=False)


@pytest.fixture
def podwire_cluster(podwire_session_cluster: "Cluster") -> "Iterator[Cluster]":
    """The cluster of all tests; objects that a test creates are deleted after the test."""
    with podwire_session_cluster.restored():
        yield podwire_session_cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Clears the last result of an earlier test."""
    if reach := sys.modules.get(_REACH):
        reach.JUDGED.set(None)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows below a failed assertion the results of its connections, and the policies that decided.

    For an error of podwire, such as an unknown target or a pod that does not become Ready, only the line of the test is
    shown, without podwire's own frames.
    """
    errors, reach = sys.modules.get("podwire.errors"), sys.modules.get(_REACH)
    own = (*((errors.PodwireError,) if errors else ()), *((reach.Undecided,) if reach else ()))
    if call.excinfo is not None and call.excinfo.errisinstance(own):
        _end_in_the_test(call.excinfo)
    report = yield
    if reach and report.when == "call" and call.excinfo is not None and call.excinfo.errisinstance(AssertionError):
        judged = reach.JUDGED.get()
        if judged is not None and not call.excinfo.errisinstance(reach.Undecided):
            report.sections.append(("podwire", str(judged)))
    return report


def _end_in_the_test(error: pytest.ExceptionInfo[BaseException]) -> None:
    """Removes podwire's own frames from the traceback of an error."""
    last = error.tb
    while (frame := last.tb_next) is not None:
        name = str(frame.tb_frame.f_globals.get("__name__"))
        if name.startswith("podwire.testing.") and name != __name__:
            last.tb_next = None
            error.value.__cause__ = None
        else:
            last = frame


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints how to inspect and how to remove a cluster that was kept."""
    for name in config.stash.get(_REMAINING_CLUSTERS, []):
        terminalreporter.write_line(f"cluster {name} is kept; use it with: podwire kubeconfig --name {name}")
        terminalreporter.write_line(f"remove it with: podwire down --name {name}")
