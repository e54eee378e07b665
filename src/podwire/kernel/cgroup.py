"""Control groups: the folders of one node's containers, their limits and their usage.

A container is in a folder of version 2, which counts CPU time even without controllers and ends all members at once.
A controller (``cpu``, ``memory``) belongs to either version 2 or a hierarchy of version 1, by how the machine was
booted. Where it belongs to version 1, the container has a folder in that hierarchy too: for ``memory`` always, for
``cpu`` once the container has a limit, since joining a hierarchy takes about 0.6 ms. Folders in version 1 are below the
group of this process, so limits of the machine on podwire stay in force.

Nothing is written to the root of version 2: podwire uses the controllers that the machine has enabled there
(``cgroup.subtree_control``), and enables them in its own folders.

Sources: Linux Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst, scheduler/sched-bwc.rst.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from podwire.kernel.failure import refusal

Controller = Literal["cpu", "memory"]

CONTROLLERS: tuple[Controller, ...] = ("cpu", "memory")
PERIOD_US = 100_000
"""The period of CPU limits, as in Kubernetes."""
_UNLIMITED_V1 = "-1"
_PROCS = "cgroup.procs"


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """A folder in each hierarchy that limits or measures: of a node, a pod, or a container."""

    unified: Path
    """The folder of version 2."""
    controllers: frozenset[Controller] = frozenset()
    """The controllers that version 2 has in the folder."""
    legacy: Mapping[Controller, Path] = field(default_factory=dict)
    """The folders of version 1, by controller."""

    def inside(self, name: str) -> "Hierarchies":
        """The folders of this name inside these."""
        legacy = {controller: folder / name for controller, folder in self.legacy.items()}
        return Hierarchies(self.unified / name, self.controllers, legacy)

    def limits(self, controller: Controller) -> bool:
        """Whether the machine can hold processes to a limit of this controller."""
        return controller in self.controllers or controller in self.legacy


def mount_points(mountinfo: str) -> Iterator[tuple[str, str, Path, frozenset[str]]]:
    """Type, root, mount point and options of each cgroup file system in a text such as /proc/self/mountinfo."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) > 4 and len(rest) > 2 and rest[0] in ("cgroup", "cgroup2"):
            yield rest[0], fields[3], Path(fields[4]), frozenset(rest[2].split(","))


def find_legacy(mountinfo: str, membership: str) -> dict[Controller, Path]:
    """The group of this process in each version 1 hierarchy of :data:`CONTROLLERS`.

    ``membership`` is a text such as /proc/self/cgroup.
    """
    own: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path)
    hierarchies: dict[Controller, Path] = {}
    for kind, root, point, options in mount_points(mountinfo):
        for controller in CONTROLLERS:
            if kind == "cgroup" and controller in options:
                path = own.get(controller, "/")
                inner = path.removeprefix(root) if root != "/" else path
                hierarchies.setdefault(controller, point / inner.lstrip("/"))
    return hierarchies


def open_node(folder: Path) -> Hierarchies:
    """Makes the folders of a node's pods; ``folder`` is the one of version 2.

    Raises: KernelError when a folder cannot be made.
    """
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    points = [point for kind, _, point, _ in mount_points(mountinfo) if kind == "cgroup2"]
    point = next((point for point in points if point in folder.parents), folder.parent)
    inner = folder.relative_to(point)
    make(folder)
    for level in reversed(range(len(inner.parts))):
        enable(point.joinpath(*inner.parts[: len(inner.parts) - level]))
    controllers = _enabled(folder)
    legacy = find_legacy(mountinfo, Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    legacy_paths = {name: path / inner for name, path in legacy.items() if name not in controllers}
    for path in legacy_paths.values():
        make(path)
    return Hierarchies(folder, controllers, legacy_paths)


def make(folder: Path) -> None:
    """Makes a folder and those above it.

    Raises: KernelError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise refusal("make control group", str(folder), failure.errno or 0) from failure


def enable(folder: Path) -> None:
    """Gives the folders in a folder of version 2 the controllers that the folder itself has."""
    for controller in sorted(_names_in(folder / "cgroup.controllers") & set(CONTROLLERS)):
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def _enabled(folder: Path) -> frozenset[Controller]:
    enabled = _names_in(folder / "cgroup.subtree_control")
    return frozenset(controller for controller in CONTROLLERS if controller in enabled)


def _names_in(path: Path) -> set[str]:
    try:
        return set(path.read_text(encoding="ascii").split())
    except OSError:
        return set()


def join(folders: tuple[str, ...]) -> None:
    """Moves this process into the folders.

    Raises: OSError.
    """
    for folder in folders:
        Path(folder, _PROCS).write_text("0", encoding="ascii")


def members(folder: Path) -> list[int]:
    """The processes in a folder; empty when the folder is gone."""
    return [int(word) for word in sorted(_names_in(folder / _PROCS))]


# -- limits


def limit_cpu(group: Hierarchies, quota_us: int | None) -> None:
    """Holds a group to ``quota_us`` of CPU time in each period of 100 ms; None: to nothing.

    Raises: KernelError when the kernel refuses the limit.
    """
    if "cpu" in group.controllers:
        _set(group.unified / "cpu.max", f"{'max' if quota_us is None else quota_us} {PERIOD_US}")
    elif "cpu" in group.legacy:
        folder = group.legacy["cpu"]
        if not folder.is_dir():
            if quota_us is None:
                return
            make(folder)
        _set(folder / "cpu.cfs_period_us", str(PERIOD_US))
        _set(folder / "cpu.cfs_quota_us", _UNLIMITED_V1 if quota_us is None else str(quota_us))
        for pid in members(group.unified):
            with contextlib.suppress(OSError):
                (folder / _PROCS).write_text(str(pid), encoding="ascii")


def limit_memory(group: Hierarchies, limit_bytes: int | None) -> None:
    """Holds a group to a number of bytes of memory, without swap; None: to nothing.

    Raises: KernelError when the kernel refuses the limit, for example because it cannot free enough memory.
    """
    if "memory" in group.controllers:
        _set(group.unified / "memory.max", "max" if limit_bytes is None else str(limit_bytes))
        _try(group.unified / "memory.swap.max", "max" if limit_bytes is None else "0")
        _try(group.unified / "memory.oom.group", "1")
    elif "memory" in group.legacy:
        folder, text = group.legacy["memory"], _UNLIMITED_V1 if limit_bytes is None else str(limit_bytes)
        both = folder / "memory.memsw.limit_in_bytes"
        _try(both, text)  # Memory and swap together may not be less than memory alone: written before and after.
        _set(folder / "memory.limit_in_bytes", text)
        _try(both, text)


def _set(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="ascii")
    except OSError as failure:
        raise refusal("limit control group", f"{path} to {text}", failure.errno or 0) from failure


def _try(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        if path.exists():
            path.write_text(text, encoding="ascii")


# -- usage


def cpu_us(folder: Path) -> int | None:
    """The CPU time that a folder of version 2 has used, in microseconds; None when the folder is gone."""
    return _number(folder / "cpu.stat", "usage_usec")


def working_set_bytes(group: Hierarchies) -> int | None:
    """The memory of a group without inactive file pages; None when the group is gone.

    Where no memory controller counts it: the proportional set sizes of the members.
    """
    if "memory" in group.controllers:
        return _working_set(group.unified, "memory.current", "inactive_file")
    if "memory" in group.legacy:
        return _working_set(group.legacy["memory"], "memory.usage_in_bytes", "total_inactive_file")
    if not group.unified.is_dir():
        return None
    return sum(proportional_bytes(pid) for pid in members(group.unified))


def _working_set(folder: Path, usage: str, inactive: str) -> int | None:
    try:
        used = int((folder / usage).read_text(encoding="ascii"))
    except OSError:
        return None
    return max(0, used - (_number(folder / "memory.stat", inactive) or 0))


def proportional_bytes(pid: int) -> int:
    """A process's memory, shared pages divided by the number of processes that share them; 0 when it has ended."""
    kib = _number(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
    return (kib or 0) * 1024


def has_killed(folder: str) -> bool:
    """Whether the kernel has killed a member because the folder's memory limit was reached."""
    path = Path(folder)
    return bool(_number(path / "memory.events", "oom_kill") or _number(path / "memory.oom_control", "oom_kill"))


def _number(path: Path, key: str) -> int | None:
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{key} ")), None)


# -- end


def end_members(folder: str) -> None:
    """Kills all members of a folder of version 2 and of those inside; nothing when the folder is gone."""
    with contextlib.suppress(OSError):
        Path(folder, "cgroup.kill").write_text("1", encoding="ascii")


def remove(group: Hierarchies) -> bool:
    """Removes a group's folders and all inside them; False while a folder still has processes."""
    removed = [remove_tree(folder) for folder in (group.unified, *group.legacy.values())]
    return all(removed)


def remove_tree(folder: Path) -> bool:
    """Removes a folder and those inside it, deepest first; False while one still has processes."""
    try:
        inner = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        removed = [remove_tree(path) for path in inner]
        if not all(removed):
            return False
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_legacy(inner: Path) -> None:
    """Removes the folders ``inner`` of all version 1 hierarchies, in whichever group they were made."""
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    for kind, _, point, options in mount_points(mountinfo):
        if kind == "cgroup" and options & set(CONTROLLERS):
            for folder, _, _ in os.walk(point):
                if Path(folder, inner).is_dir():
                    remove_tree(Path(folder, inner))
                    _remove_empty(Path(folder), inner)


def _remove_empty(above: Path, inner: Path) -> None:
    for parent in inner.parents[:-1]:
        with contextlib.suppress(OSError):
            (above / parent).rmdir()
