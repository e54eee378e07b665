"""Creates and removes the clusters of tests.

``podwire up`` creates a cluster in a separate process, so no process of the cluster is a fork of the test run. The name
of a cluster identifies its test run: ``pytest-<pid>-<start time of that process>-<number>``. Clusters of a killed test
run are removed by the next test run on the machine. The database is in memory when ``/dev/shm`` exists, because it is
not needed after a power cut.
"""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from podwire.errors import ClusterError
from podwire.local import inventory, teardown
from podwire.local.topology import Topology
from podwire.runtime.process import is_running, start_ticks

_OWNED = re.compile(r"pytest-(\d+)-(\d+)-\d+")
_MEMORY = Path("/dev/shm")
_UP_S = 120.0

Config = str | os.PathLike[str] | Mapping[str, Any] | None
"""A configuration file as for ``podwire up --config``, or its content."""


def free_name() -> str:
    """An unused name for another cluster of this process."""
    names = inventory.names()
    own = f"pytest-{os.getpid()}-{start_ticks(os.getpid())}"
    return next(name for number in itertools.count(1) if (name := f"{own}-{number}") not in names)


def kept_name() -> str:
    """The name of a cluster that keeps running after this process."""
    return f"kept-{os.getpid()}"


def stale(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of clusters whose test run has ended."""
    owned = ((name, _OWNED.fullmatch(name)) for name in names)
    return tuple(name for name, own in owned if own and not is_running(int(own[1]), int(own[2])))


class StartingCluster:
    """A cluster that is being created in the background."""

    def __init__(self, name: str, nodes: int, config: Config = None) -> None:
        """Starts the creation, after clusters of ended test runs are removed.

        Raises: ConfigError when this process may not create clusters.
        """
        self.name = name
        inventory.check_name(name)
        inventory.check_root()
        for stale_name in stale(inventory.names()):
            down(stale_name)
        self._arguments = ["up", "--name", name, "--nodes", str(nodes)]
        self._arguments += ["--state-dir", str(_MEMORY / name)] if _MEMORY.is_dir() else []
        self._config_file: IO[bytes] | None = None
        if isinstance(config, Mapping):
            self._config_file = tempfile.NamedTemporaryFile(suffix=".yaml")  # noqa: SIM115 - until it has been read
            self._config_file.write(msgspec.yaml.encode(dict(config)))
            self._config_file.flush()
            self._arguments += ["--config", self._config_file.name]
        elif config is not None:
            self._arguments += ["--config", os.fspath(config)]
        # -P: a module in the folder of the tests must not be imported instead of a podwire module.
        command = [sys.executable, "-P", "-m", "podwire.cli.main", *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def topology(self, timeout_s: float = _UP_S) -> Topology:
        """Waits until the cluster runs; the remains of a failed creation are removed.

        Raises: ClusterError with the output of ``podwire up``.
        """
        try:
            output, _ = self._process.communicate(timeout=timeout_s)
            if self._process.returncode != 0:
                arguments = " ".join(self._arguments)
                raise ClusterError(f"podwire {arguments}: exit status {self._process.returncode}\n{output.strip()}")
            return inventory.existing(self.name)
        except BaseException:
            self._process.kill()
            self._process.communicate()
            down(self.name)
            raise
        finally:
            if self._config_file is not None:
                self._config_file.close()


def down(name: str) -> None:
    """Removes a cluster in any state."""
    with inventory.locked(name, wait=True):
        topology = inventory.find(name)
        if topology is not None:
            teardown.destroy(topology)
            with contextlib.suppress(OSError):
                Path(topology.state).parent.rmdir()
        inventory.forget_lock(name)
