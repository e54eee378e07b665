"""The lines of ``podwire list`` and the processes of a local cluster, from the cluster's folders alone."""

from pathlib import Path

import msgspec

from podwire.local import credentials
from podwire.local.builds import label_of, recall
from podwire.local.shape import recall_shape
from podwire.local.topology import Topology
from podwire.runtime.childrecord import read_record

SUPERVISOR = "supervisor"
KEEPER = "keeper"
"""The process that starts the supervisor again."""


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process of the cluster."""

    name: str
    pid: int
    running: bool
    version: str = ""
    """The build in which it was started; empty: not recorded."""


BRIEF_HEAD = ("NAME", "STATE", "NODES", "API", "KUBECONFIG")


class ClusterBrief(msgspec.Struct, frozen=True):
    """One line of ``podwire list``."""

    name: str
    state: str
    """``running``, ``degraded`` (some process has ended) or ``stopped`` (all have)."""
    nodes: int
    api: str
    """The URL on loopback; empty when the cluster never had one."""
    kubeconfig: str

    def cells(self) -> tuple[str, ...]:
        """The cells of the line."""
        return self.name, self.state, str(self.nodes), self.api or "-", self.kubeconfig


def brief(topology: Topology) -> ClusterBrief:
    """The line of a cluster, from its folders alone, without a request to its API server."""
    running = [process.running for process in processes_of(topology)]
    shape = recall_shape(topology)
    port = Path(topology.state) / "api-port"
    return ClusterBrief(
        name=topology.name,
        state="stopped" if not any(running) else "running" if all(running) else "degraded",
        nodes=shape.nodes if shape is not None else 0,
        api=f"https://127.0.0.1:{port.read_text(encoding='ascii').strip()}" if port.exists() else "",
        kubeconfig=str(credentials.kubeconfig_path(topology, "admin")),
    )


def processes_of(topology: Topology) -> tuple[ProcessStatus, ...]:
    """The processes that were started for a cluster, running or not, by length and name."""
    processes = []
    build = recall(Path(topology.state))
    first = build.label if build is not None else ""
    for file in sorted((Path(topology.run) / "processes").glob("*.json"), key=lambda f: (len(f.stem), f.stem)):
        record = read_record(file)
        if record is not None:
            version = record.version or label_of(record.pid) or first
            processes.append(ProcessStatus(file.stem, record.pid, record.running, version))
    return tuple(processes)
