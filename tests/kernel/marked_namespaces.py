"""The network namespaces of one process of tests: their names begin with its mark, so that several do not mix."""

import os
import subprocess
from functools import cached_property
from pathlib import Path

from podwire.kernel import netns


def run(*arguments: str) -> str:
    """The output of a command; fails the test when its exit status is not 0."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


class MarkedNamespaces:
    """Namespaces by their names without the mark."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    @cached_property
    def mark(self) -> str:
        """The mark of this process, which processes that a test forks keep.

        Workers that are forks have imported this module before they began, so it follows from the first use.
        """
        return f"{self._prefix}-{os.getpid()}"

    def path(self, name: str) -> Path:
        """The file of a namespace."""
        return Path(f"/run/netns/{self.mark}-{name}")

    def inside(self, name: str, *arguments: str) -> str:
        """The output of a command in a network namespace; ``ip netns exec`` would also make a namespace of mounts."""
        with netns.inside(self.path(name)):
            return run(*arguments)

    def ip(self, name: str | None, *lines: str) -> None:
        """Runs ip(8) once for all lines, in a namespace or (None) in that of this process."""
        arguments = ("ip", *(("-n", f"{self.mark}-{name}") if name else ()), "-batch", "-")
        done = subprocess.run(arguments, input="\n".join(lines), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{lines}: {done.stderr}"
