"""Removes a local cluster in any state: running, incomplete, or with every process killed.

The removal needs no running process of the cluster. Processes are killed by the cluster's cgroup and, without cgroup2,
by their network namespace and their records. The kernel deletes a namespace with its last process and mount, and links
with their namespace. Mounts and files below the cluster's folders, and the host's link, are found by owner mark.
"""

import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

from podwire.embedded.kubelet import mounts
from podwire.kernel import bpf_state, network
from podwire.kernel.netlink import Netlink
from podwire.local import cgroup, inventory
from podwire.local.fabric.plan import owner
from podwire.local.topology import Topology
from podwire.runtime.childrecord import read_record
from podwire.runtime.polling import wait_until
from podwire.runtime.process import send_signal, start_ticks

_END_WAIT_S = 5.0


def destroy(topology: Topology) -> None:
    """Removes every trace of the cluster; the caller holds its lock."""
    run, state = Path(topology.run), Path(topology.state)
    end_processes(topology)
    _delete_host_link(topology)
    for pinned in bpf_state.folders():
        if pinned.startswith(topology.bpf_folder()):
            bpf_state.remove_folder(pinned)
    unmount_below((run, state))
    for folder in (run, state):
        shutil.rmtree(folder, ignore_errors=True)
    inventory.leave_roots()


def end_processes(topology: Topology) -> None:
    """Kills every process of the cluster and returns when they are gone."""
    run = Path(topology.run)
    victims = set(_recorded(run)) | set(_inside((run / "netns").glob("*")))
    cgroup.destroy(topology.name)
    _kill(victims)
    cgroup.destroy(topology.name)


def end_inside(namespaces: Iterable[Path]) -> None:
    """Kills every process in the mounted network namespaces and returns when they are gone."""
    _kill(set(_inside(namespaces)))


def _kill(victims: set[int]) -> None:
    for pid in victims:
        send_signal(pid, signal.SIGKILL)
    wait_until(lambda: all(not start_ticks(pid) for pid in victims), _END_WAIT_S)


def _recorded(run: Path) -> list[int]:
    files = []
    for file in (run / "processes").glob("*.json"):
        record = read_record(file)
        if record is not None and record.running:
            files.append(record.pid)
    return files


def _inside(namespaces: Iterable[Path]) -> list[int]:
    """Processes whose network namespace is one of those mounted."""
    ours = {(s.st_dev, s.st_ino) for s in (p.stat() for p in namespaces if p.exists())}
    processes = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "ns/net").stat()
        except OSError:
            continue
        if (stat.st_dev, stat.st_ino) in ours and int(entry.name) != os.getpid():
            processes.append(int(entry.name))
    return processes


def _delete_host_link(topology: Topology) -> None:
    with Netlink() as host:
        network.remove(host, owner(topology, on_host=True)).check()


def unmount_below(folders: tuple[Path, ...]) -> None:
    """Unmounts everything mounted below the folders, the latest first."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    for mount_point in reversed(mounted):
        path = mount_point.encode().decode("unicode_escape")
        if any(path.startswith(f"{folder}/") for folder in folders):
            mounts.unmount(path)
