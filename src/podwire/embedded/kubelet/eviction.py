"""Whether a pod uses more local storage than it may: limits of ``ephemeral-storage`` and ``sizeLimit`` of emptyDir.

What counts: the writable layer of each container, its logs, and emptyDir volumes on disk. A pod over a limit fails
with the reason Evicted and stays in the API. Source: kubernetes pkg/kubelet/eviction (localStorageEviction).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from podwire.errors import ConfigError
from podwire.model.pod import Pod
from podwire.model.quantity import parse_milli

CHECK_EVERY_S = 5.0
_STORAGE = "ephemeral-storage"


class StorageUsage(msgspec.Struct, frozen=True):
    """Bytes in use: by container (writable layer and logs), and by emptyDir volume."""

    containers: Mapping[str, int]
    volumes: Mapping[str, int]


def is_limited(pod: Pod) -> bool:
    """Whether a pod has a limit of local storage at all."""
    return any(c.resources.limits.get(_STORAGE) for c in pod.spec.containers) or any(
        _empty_dir(volume).get("sizeLimit") for volume in pod.spec.volumes
    )


def find_excess(pod: Pod, usage: StorageUsage) -> str:
    """Why a pod must be evicted, in Kubernetes' words; empty when it keeps its limits."""
    for volume in pod.spec.volumes:
        limit, name = _empty_dir(volume).get("sizeLimit"), str(volume.get("name"))
        if _over(usage.volumes.get(name, 0), limit):
            return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}". '
    limits = [(c.name, c.resources.limits.get(_STORAGE)) for c in pod.spec.containers]
    for name, limit in limits:
        if _over(usage.containers.get(name, 0), limit):
            return f'Container {name} exceeded its local ephemeral storage limit "{limit}". '
    total = sum(usage.containers.values()) + sum(usage.volumes.values())
    if all(limit for _, limit in limits) and total * 1000 > sum(_milli(limit) for _, limit in limits):
        return "Pod ephemeral local storage usage exceeds the total limit of containers. "
    return ""


def _over(used: int, limit: str | int | float | None) -> bool:
    return limit is not None and used * 1000 > _milli(limit) > 0


def _milli(limit: str | int | float | None) -> int:
    try:
        return parse_milli(limit or 0)
    except ConfigError:
        return 0


def _empty_dir(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    empty_dir: Mapping[str, Any] = volume.get("emptyDir") or {}
    return empty_dir


def measure(pod: Pod, directory: Path, pids: Mapping[str, int]) -> StorageUsage:
    """The usage of a pod whose files are in ``directory``; ``pids`` are the first processes of running containers."""
    containers = {name: _layer(pid) + _logs(directory / "containers", name) for name, pid in pids.items()}
    names = [
        str(v.get("name")) for v in pod.spec.volumes if "emptyDir" in v and _empty_dir(v).get("medium") != "Memory"
    ]
    return StorageUsage(containers, {name: _tree(directory / "volumes" / name) for name in names})


def _layer(pid: int) -> int:
    """The bytes in the writable layer of a container: statvfs of an overlay is that of its upper file system."""
    try:
        usage = os.statvfs(f"/proc/{pid}/root")
    except OSError:
        return 0
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize


def _logs(directory: Path, name: str) -> int:
    return sum(_size(path) for path in directory.glob(f"{name}.*.log*"))


def _tree(directory: Path) -> int:
    return sum(_size(Path(folder, name)) for folder, _, names in os.walk(directory) for name in names)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0
