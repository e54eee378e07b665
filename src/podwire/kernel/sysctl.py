"""Kernel parameters below /proc/sys, of a namespace.

/proc/sys/net shows the namespace of the thread that opens the file, so reads and writes are done inside ``setns`` (0.05
ms). Paths use slashes; a device name may contain dots. :func:`snapshot` reads values that the caller wants to restore
later.

In a container that is not privileged /proc/sys cannot be written. The host's folder, mounted at :data:`_MOUNTED`, is
used then: which namespace it shows depends on the thread, not on the mount.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from podwire.kernel.failure import refusal
from podwire.kernel.netns import inside
from podwire.kernel.sysctl_record import CURRENT, Recorded
from podwire.state.route import Sysctl

_OWN = Path("/proc/sys")
_MOUNTED = Path("/host/proc/sys")


@cache
def root() -> Path:
    """The folder of all kernel parameters."""
    return _MOUNTED if (_MOUNTED / "net").is_dir() else _OWN


def read(path: str, netns: Path | str | int | None = None) -> str:
    """The value, without the closing newline; tabs between numbers become spaces.

    Raises: KernelNotFound when this kernel (or this namespace) has no such parameter.
    """
    with inside(netns):
        return _read(path)


def write(path: str, value: str, netns: Path | str | int | None = None) -> None:
    """Sets the value; in the thread's own namespace, the value before is recorded where the caller records.

    Raises: KernelNotFound, KernelError (EINVAL when the value is refused).
    """
    record = CURRENT.get() if netns is None else None
    with inside(netns):
        try:
            if record is not None and record.follows(path):
                record.note(path, _read(path), value)
            (root() / path).write_text(value)
        except OSError as failure:
            raise refusal("write sysctl", f"{path} = {value}", failure.errno or 0) from failure


def snapshot(paths: Iterable[str], netns: Path | str | int | None = None) -> tuple[Sysctl, ...]:
    """The current values, one entry of ``setns`` for all; parameters that do not exist are left out."""
    values = []
    with inside(netns):
        for path in paths:
            try:
                values.append(Sysctl(path, " ".join((root() / path).read_text().split())))
            except OSError:
                continue
    return tuple(values)


def restore(values: Mapping[str, Recorded]) -> Iterator[Sysctl]:
    """Writes the values before, the last first, where a parameter still has the written value; yields what it wrote.

    Raises: KernelError when a value is refused.
    """
    for item in restorable(values):
        write(item.path, item.value)
        yield item


def restorable(values: Mapping[str, Recorded]) -> Iterator[Sysctl]:
    """The parameters that still have the value that was written, with the values before."""
    for path in reversed(list(values)):
        current = snapshot((path,))
        if current and current[0].value == values[path].written:
            yield Sysctl(path, values[path].before)


def devices() -> tuple[str, ...]:
    """The devices of this thread's namespace that have parameters."""
    folder = root() / "net/ipv4/conf"
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def _read(path: str) -> str:
    try:
        return " ".join((root() / path).read_text().split())
    except OSError as failure:
        raise refusal("read sysctl", path, failure.errno or 0) from failure
