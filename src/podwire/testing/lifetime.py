"""Making and taking away the clusters of tests.

A cluster is made by ``podwire up`` in a process of its own, so that nothing of it is a fork of the test run, whatever
that has imported. Its name says whose it is: ``pytest-<pid>-<when that process began>-<number>``. What a killed test
run left is taken away by the next one on the machine. Its database lies in memory where there is ``/dev/shm``: nobody
needs it after a power cut.
"""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from podwire.errors import ClusterError
from podwire.local import places, processes, teardown
from podwire.local.layout import Layout

_OWNED = re.compile(r"pytest-(\d+)-(\d+)-\d+")
_MEMORY = Path("/dev/shm")
_UP_S = 120.0

Config = str | os.PathLike[str] | Mapping[str, Any] | None
"""A file such as ``podwire up --config`` takes, or what stands in it."""


def free_name() -> str:
    """A name for one more cluster of this process."""
    taken = places.names()
    own = f"pytest-{os.getpid()}-{processes.start_time(os.getpid())}"
    return next(name for number in itertools.count(1) if (name := f"{own}-{number}") not in taken)


def kept_name() -> str:
    """The name of one that is to outlive this process."""
    return f"kept-{os.getpid()}"


def stale(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of the names whose process has ended."""
    owned = ((name, _OWNED.fullmatch(name)) for name in names)
    return tuple(name for name, own in owned if own and processes.start_time(int(own[1])) != int(own[2]))


def up(name: str, nodes: int, config: Config, timeout_s: float = _UP_S) -> Layout:
    """A running cluster.

    Raises: ConfigError when this process may not make one; ClusterError with what ``podwire up`` said.
    """
    places.check_name(name)
    places.check_root()
    for left in stale(places.names()):
        down(left)
    with _config_file(config) as file:
        words = ["up", "--name", name, "--nodes", str(nodes)]
        words += ["--config", str(file)] if file else []
        words += ["--state-dir", str(_MEMORY / name)] if _MEMORY.is_dir() else []
        # -P: a module in the folder of the tests must not stand in for one of ours.
        command = [sys.executable, "-P", "-m", "podwire.cli.main", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
    if process.returncode != 0:
        raise ClusterError(f"podwire {' '.join(words)}: exit status {process.returncode}\n{output.strip()}")
    return places.existing(name)


def down(name: str) -> None:
    """Takes a cluster away, whatever state it is in."""
    with places.locked(name, wait=True):
        layout = places.find(name)
        if layout is not None:
            teardown.destroy(layout)
            with contextlib.suppress(OSError):
                Path(layout.state).parent.rmdir()
        places.forget_lock(name)


@contextlib.contextmanager
def _config_file(config: Config) -> Iterator[Path | None]:
    if config is None:
        yield None
    elif isinstance(config, Mapping):
        with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
            file.write(msgspec.yaml.encode(dict(config)))
            file.flush()
            yield Path(file.name)
    else:
        yield Path(config)
