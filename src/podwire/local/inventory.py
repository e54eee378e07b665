"""The local clusters of this machine: their folders, their indexes, and the lock for changes.

``<run root>/<name>/`` contains sockets, namespaces, process files and the file ``layout.json``; ``<state
root>/<name>/`` contains the files that survive a reboot. A new cluster gets the lowest index that no other cluster has
and whose fabric addresses the host does not use. The lock is a file lock, so the kernel releases it when its process
ends.
"""

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from podwire.errors import ClusterError, ConfigError
from podwire.local.topology import CLUSTERS, Topology
from podwire.runtime.stateform import check_form

RUN_ROOT = Path("/run/podwire")
STATE_ROOT = Path("/var/lib/podwire")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
_FILE = "layout.json"
_FORM = 1
_NEEDED = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""The required capabilities and their bits (linux/capability.h)."""


def check_name(name: str) -> None:
    """Raises: ConfigError when a cluster cannot have this name."""
    if not _NAME.fullmatch(name):
        raise ConfigError("--name", "", f"{name!r}: expected lower-case letters, digits and dashes, at most 32")


def check_root() -> None:
    """Raises: ConfigError when this process may not make namespaces and networks."""
    if os.geteuid() != 0:
        raise ConfigError("podwire", "", "local clusters are made of network namespaces, which needs root: use sudo")
    held = capabilities(Path("/proc/self/status").read_text(encoding="utf-8"))
    lacking = [name for name, bit in _NEEDED.items() if not held >> bit & 1]
    if lacking:
        problem = f"local clusters need {' and '.join(lacking)}, which this process lacks; give them to its container"
        raise ConfigError("podwire", "", problem)


def capabilities(status: str) -> int:
    """The effective capabilities in the text of ``/proc/<pid>/status``, as a set of bits."""
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return int(line.partition(":")[2], 16)


def find(name: str) -> Topology | None:
    """The topology of an existing cluster, running or not; None when there is none of that name.

    Raises: ConfigError when a later podwire made it, in a form that this one does not know.
    """
    file = RUN_ROOT / name / _FILE
    try:
        topology = msgspec.json.decode(file.read_bytes(), type=Topology)
    except (OSError, msgspec.DecodeError):
        return None
    check_form(topology.format, _FORM, str(file))
    return topology


def existing(name: str) -> Topology:
    """The topology of an existing cluster.

    Raises: ClusterError, which names the existing clusters.
    """
    topology = find(name)
    if topology is None:
        existing_names = ", ".join(names()) or "none"
        raise ClusterError(
            f"there is no local cluster {name!r} (existing clusters: {existing_names}); `podwire up` makes one"
        )
    return topology


def names() -> tuple[str, ...]:
    """The names of the clusters on this machine."""
    if not RUN_ROOT.is_dir():
        return ()
    return tuple(sorted(p.name for p in RUN_ROOT.iterdir() if (p / _FILE).is_file()))


def establish(name: str, segments: int, state: Path | None, used: tuple[str, ...]) -> Topology:
    """The topology of a cluster, made now if it is new; ``used`` are the IPv4 prefixes that the host routes.

    Raises: ClusterError when no index is free; ConfigError when the cluster exists with another number of segments, or
    when its folders cannot be written.
    """
    known = find(name)
    if known:
        if known.segment_count != segments:
            problem = (
                f"cluster {name!r} has {known.segment_count}, not {segments}; run `podwire down --name {name}` first"
            )
            raise ConfigError("podwire up", "segments", problem)
        return known
    with _choosing():
        return _choose(name, segments, state, used)


@contextlib.contextmanager
def _choosing() -> Iterator[None]:
    """Holds the lock of the run root, so that two new clusters never take the same index."""
    folder = _locked_root()
    try:
        yield
    finally:
        _remove_if_empty(RUN_ROOT)
        os.close(folder)


def _locked_root() -> int:
    """The run root, locked; opened again when another process removed the folder while this one waited."""
    while True:
        with contextlib.suppress(FileExistsError):  # also when it goes while pathlib looks whether it is a folder
            RUN_ROOT.mkdir(parents=True)
        try:
            folder = os.open(RUN_ROOT, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(folder, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(folder), RUN_ROOT.stat()):
                return folder
        os.close(folder)


def leave_roots() -> None:
    """Removes the root folders when no cluster is left; never while another process creates a cluster in them."""
    folder = _locked_root()
    try:
        _remove_if_empty(STATE_ROOT)
        _remove_if_empty(RUN_ROOT)
    finally:
        os.close(folder)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _choose(name: str, segments: int, state: Path | None, used: tuple[str, ...]) -> Topology:
    indexes = {other.index for other in map(find, names()) if other}
    for index in range(CLUSTERS):
        topology = Topology(
            name=name,
            index=index,
            segment_count=segments,
            run=str(RUN_ROOT / name),
            state=str((state or STATE_ROOT) / name),
        )
        if index not in indexes and not any(str(s.network) in used for s in topology.segments):
            _write(topology)
            return topology
    raise ClusterError(
        f"the {CLUSTERS} local clusters that one machine can have exist already; `podwire down --name NAME` removes one"
    )


def _write(topology: Topology) -> None:
    for path in (Path(topology.state), Path(topology.run)):
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o755)
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))
        except OSError as failure:
            raise ConfigError("--state-dir", "", f"{path}: cannot be written: {failure.strerror}") from failure
    (Path(topology.run) / _FILE).write_bytes(msgspec.json.encode(topology))


@contextlib.contextmanager
def locked(name: str, *, wait: bool = False) -> Iterator[None]:
    """Holds the lock of one cluster.

    Raises: ClusterError when another process holds it and ``wait`` is off.
    """
    lock_folder = RUN_ROOT.with_name("podwire.lock")
    lock_folder.mkdir(exist_ok=True)
    with (lock_folder / name).open("w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as failure:
            raise ClusterError(f"cluster {name!r} is being changed by another podwire process") from failure
        yield


def forget_lock(name: str) -> None:
    """Removes the lock file of a cluster that is gone; the caller holds it."""
    folder = RUN_ROOT.with_name("podwire.lock")
    (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
