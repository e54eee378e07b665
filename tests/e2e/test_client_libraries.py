"""Public client libraries against a cluster: list, watch, logs, exec, port-forward, create, patch and delete.

Each library runs in a program of its own, in ``tests/e2e/libraries``, with the versions that are pinned in
``requirements/libraries``. All use one cluster and two pods.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.clusters import server
from tests.e2e.driver import Cluster, shell_pod
from tests.e2e.libraries import installed

_PROGRAM_S = 100
_NAMESPACE = f"libraries-{os.getpid()}"
_CHECKS = {"objects", "list", "watch", "log", "exec", "exec with input", "port-forward"}

PROGRAMS = {
    "kubernetes-28": ("official", _CHECKS),
    "kubernetes-31": ("official", _CHECKS),
    "kubernetes-34": ("official", _CHECKS),
    "kubernetes": ("official", _CHECKS),
    "kubernetes_asyncio": ("asynchronous", _CHECKS),
    "kr8s": ("kr8s_program", _CHECKS),
    "lightkube": ("lightkube_program", _CHECKS - {"port-forward"} | {"field selector"}),
    "kopf": ("kopf_program", {"objects", "events"}),
}
"""Python libraries by the name of their requirements, with their programs and the checks that these make.

``kubernetes`` is the newest version, which is installed in the environment of the tests.
"""


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> Iterator[str]:
    """A namespace with the pods that the programs expect."""
    cluster.kubectl("create", "namespace", _NAMESPACE)
    cluster.apply(shell_pod("box", "echo first; echo second; sleep 3600") + server("web"), "-n", _NAMESPACE)
    cluster.ready("box", "web", namespace=_NAMESPACE)
    yield _NAMESPACE
    cluster.run(["kubectl", "delete", "namespace", _NAMESPACE, "--wait=false"])


def _results(cluster: Cluster, command: list[str], **environment: str) -> Any:
    """What a program reports."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_PROGRAM_S,
        check=False,
        cwd=installed.ROOT,
        env={**cluster.environment(), **environment},
    )
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


@pytest.mark.parametrize("library", PROGRAMS)
def test_python_libraries_work(cluster: Cluster, pods: str, library: str) -> None:
    program, expected = PROGRAMS[library]
    environment = {} if library == "kubernetes" else {"PYTHONPATH": str(installed.python_library(library))}
    command = [sys.executable, "-m", f"tests.e2e.libraries.{program}", pods]
    assert _results(cluster, command, **environment) == dict.fromkeys(expected, "ok")


def test_the_javascript_library_works(cluster: Cluster, pods: str) -> None:
    program = installed.ROOT / "tests/e2e/libraries/node_program.mjs"
    command = [str(installed.node()), str(program), str(installed.npm_packages()), pods]
    assert _results(cluster, command) == dict.fromkeys(_CHECKS, "ok")
