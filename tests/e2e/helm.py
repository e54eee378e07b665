"""Helm as the e2e tests use it: as a process."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.driver import Cluster


class Helm:
    """Helm in one namespace, with its files in a folder of the test."""

    def __init__(self, cluster: Cluster, namespace: str, home: Path) -> None:
        if shutil.which("helm") is None:
            pytest.fail("helm is not installed; `make setup` installs it")
        self._cluster, self._namespace = cluster, namespace
        self._folders: dict[str, Any] = {
            f"HELM_{subject}_HOME": str(home / subject.lower()) for subject in ("CACHE", "CONFIG", "DATA")
        }

    def __call__(self, *arguments: str) -> str:
        """The output of Helm; fails the test when the exit status is not 0."""
        done = self._cluster.run(["helm", "-n", self._namespace, *arguments], **self._folders)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *arguments: str) -> str:
        """The standard error of a Helm that fails."""
        done = self._cluster.run(["helm", "-n", self._namespace, *arguments], **self._folders)
        assert done.returncode != 0, done.stdout
        return done.stderr
