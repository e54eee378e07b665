"""The cluster's cgroup (version 2), which contains all its processes and can end them at once.

``<cgroup2 mount>/podwire/<cluster>/system`` contains the components; the components of a node are in a subfolder with
the node's name. Kubelets put pods next to ``system`` and, when the machine has cgroup hierarchies of version 1, into
folders of the same name there. A write to ``cgroup.kill`` (Linux 5.14) of the cluster's folder ends every process below
it, including processes that are forked at the same time. Without a cgroup2 mount all functions do nothing, and the
caller uses process records instead.
"""

from pathlib import Path

from podwire.kernel.cgroup import mount_points, remove_legacy, remove_tree
from podwire.runtime.polling import wait_until

_FOLDER = "podwire"
_SYSTEM = "system"
_EMPTY_WAIT_S = 3.0


def root() -> Path | None:
    """The machine's cgroup2 mount point, or None."""
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return next((point for kind, _, point, _ in mount_points(mountinfo) if kind == "cgroup2"), None)


def create(cluster: str) -> Path | None:
    """Makes the folder of the cluster's components and returns it; None without cgroup2."""
    top = root()
    if top is None:
        return None
    folder = top / _FOLDER / cluster / _SYSTEM
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def node_folder(system: Path | None, node: str) -> Path | None:
    """The folder of a node's components; without a node, the folder of all components."""
    if system is None or not node:
        return system
    folder = system / node
    folder.mkdir(exist_ok=True)
    return folder


def join(pid: int, folder: Path | None) -> None:
    """Moves a process into a folder; does nothing without a folder, or when the process has ended."""
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
    remove_legacy(Path(_FOLDER, cluster))
    try:
        (top / _FOLDER).rmdir()
    except OSError:
        pass


def destroy_node(cluster: str, node: str) -> None:
    """Kills every process of a node's pods and removes the node's folders."""
    top = root()
    if top is not None:
        destroy_folder(top / _FOLDER / cluster / node)
        destroy_folder(top / _FOLDER / cluster / _SYSTEM / node)
        remove_legacy(Path(_FOLDER, cluster, node))


def destroy_folder(folder: Path) -> None:
    """Kills every process in a folder and below, and removes the folder, if it exists."""
    if not folder.is_dir():
        return
    kill = folder / "cgroup.kill"
    if kill.exists():
        kill.write_text("1", encoding="ascii")
    wait_until(lambda: remove_tree(folder), _EMPTY_WAIT_S)
