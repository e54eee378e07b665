"""Applies the planned fabric to the kernel; every step may be repeated.

The host's link is made first, since the API server listens on its address. The nodes follow; each namespace and its
link are one batch. The switch is completed last, when all its ports exist.
"""

from pathlib import Path

from podwire.errors import ClusterError
from podwire.kernel import netns, network
from podwire.kernel.netlink import Netlink
from podwire.local.fabric.plan import ROUTER, SWITCH, Fabric, owner
from podwire.local.topology import Topology
from podwire.state.network import NetworkState


def host(topology: Topology, fabric: Fabric) -> None:
    """Joins the host to the switch.

    Raises: KernelError; ClusterError naming what could not be made.
    """
    _namespace(topology, SWITCH)
    _apply(topology, None, fabric.host)
    with Netlink(Path(topology.netns(SWITCH))) as sock:
        existing = {link.name for link in network.read_links(sock)}
    ready = tuple(link for link in fabric.switch.links if link.kind or link.name in existing)
    _apply(topology, SWITCH, NetworkState(links=ready, sysctls=fabric.switch.sysctls))


def nodes(topology: Topology, fabric: Fabric) -> None:
    """Makes the router and the nodes, and completes the switch.

    Raises: KernelError; ClusterError naming what could not be made.
    """
    if fabric.router is not None:
        _namespace(topology, ROUTER)
        _apply(topology, ROUTER, fabric.router)
    for name, state in fabric.nodes.items():
        _namespace(topology, name)
        _apply(topology, name, state)
    _apply(topology, SWITCH, fabric.switch)


def node_names(topology: Topology) -> tuple[str, ...]:
    """The nodes that have a namespace."""
    folder = Path(topology.netns(SWITCH)).parent
    return tuple(sorted(p.name for p in folder.glob("node-*")))


def _namespace(topology: Topology, name: str) -> None:
    path = Path(topology.netns(name))
    if not netns.exists(path):
        path.unlink(missing_ok=True)
        netns.create(path)


def _apply(topology: Topology, name: str | None, state: NetworkState) -> None:
    with Netlink(Path(topology.netns(name)) if name else None) as sock:
        report = network.apply(sock, state, owner(topology, on_host=name is None))
    if report.failed:
        raise ClusterError(f"{name or 'host'}: " + "; ".join(str(failure) for failure in report.failed))
