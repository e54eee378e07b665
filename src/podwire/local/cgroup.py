"""The cluster's cgroup (version 2): membership of every process, and ending all of them at once.

``<cgroup2 mount>/podwire/<cluster>/system`` holds the components; kubelets put pods beside it. Writing to
``cgroup.kill`` (Linux 5.14) of the cluster's folder ends every process below it, also those that fork meanwhile.
Without a cgroup2 mount all functions do nothing and the caller falls back on process records.
"""

from pathlib import Path

from podwire.runtime.polling import wait_until

_FOLDER = "podwire"
_EMPTY_WAIT_S = 3.0


def mount_point(mounts: str) -> Path | None:
    """The first cgroup2 mount in a text such as /proc/mounts; None when there is none."""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[2] == "cgroup2":
            return Path(fields[1])
    return None


def root() -> Path | None:
    """The machine's cgroup2 mount point, or None."""
    return mount_point(Path("/proc/self/mounts").read_text(encoding="utf-8"))


def create(cluster: str) -> Path | None:
    """Makes the folder of the cluster's components and returns it; None without cgroup2."""
    top = root()
    if top is None:
        return None
    folder = top / _FOLDER / cluster / "system"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def join(pid: int, folder: Path | None) -> None:
    """Moves a process into a folder; nothing when there is no folder, or when the process has ended."""
    if folder is None:
        return
    try:
        (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
    except ProcessLookupError:
        pass


def destroy(cluster: str) -> None:
    """Kills every process of the cluster and removes its folders; returns when they are gone."""
    top = root()
    if top is None:
        return
    destroy_folder(top / _FOLDER / cluster)
    try:
        (top / _FOLDER).rmdir()
    except OSError:
        pass


def destroy_folder(folder: Path) -> None:
    """Kills every process in a folder and below, and removes it; nothing when it is not there."""
    if not folder.is_dir():
        return
    kill = folder / "cgroup.kill"
    if kill.exists():
        kill.write_text("1", encoding="ascii")
    wait_until(lambda: _remove(folder), _EMPTY_WAIT_S)


def _remove(folder: Path) -> bool:
    """Removes a folder and those below it, deepest first; False while one still has processes."""
    emptied = [_remove(child) for child in folder.iterdir() if child.is_dir()]
    if not all(emptied):
        return False
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
