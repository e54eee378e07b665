"""Gives ``podwire why`` access to a local cluster, or to a cluster that is described by files only."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from podwire.agent import config as agent_config
from podwire.agent.why import node_access
from podwire.errors import ClusterError
from podwire.local.topology import Topology
from podwire.runtime.clock import SystemClock
from podwire.why.cluster import ClusterAccess
from podwire.why.kernels import NodeKernels
from podwire.why.nodes import NodeAccess
from podwire.why.question import TypedQuestion

if TYPE_CHECKING:
    from podwire.local.offline.cluster import DescribedCluster


def with_host(asked: TypedQuestion, topology: Topology) -> TypedQuestion:
    """The question with ``host``, this machine, as an outside end with its addresses on the fabric."""
    host = str(topology.host_address), str(topology.host_address6)
    if asked.source == "host":
        asked = replace(asked, source="external", outside=host)
    if asked.target.partition(":")[0] == "host":
        asked = replace(asked, target=asked.target.replace("host", "external", 1), outside=host)
    return asked


def local_nodes(topology: Topology, settings: Mapping[str, str]) -> Callable[[str], NodeAccess]:
    """The nodes of a local cluster, all of which can be read on this machine."""

    def access(name: str) -> NodeAccess:
        file = Path(topology.node_run(name)) / "agent.yaml"
        if not file.exists():
            raise ClusterError(f"node {name} is not a node of local cluster {topology.name!r}")
        return node_access(agent_config.load(file), settings, netns=Path(topology.netns(name)))

    return access


def described_cluster(cluster: "DescribedCluster", *, mode: str = "") -> ClusterAccess:
    """The cluster that files describe; ``mode`` is the data plane of Services, empty for that of a new cluster."""

    def access(name: str) -> NodeAccess:
        return node_access(cluster.config(name), {}, readable=False)

    return ClusterAccess(
        objects=cluster.objects,
        nodes=NodeKernels(access, SystemClock(), planned=True, mode=mode),
        lines=cluster.line,
        notes=cluster.notes,
    )
