"""The interface of explainers to the nodes of a cluster: their configuration and the state of their kernels (pure).

Callers fill a :class:`NodeAccess`, because they know the source of a node's configuration. :class:`Nodes` is the only
interface between explainers and kernels: :mod:`podwire.why.kernels` reads kernels, tests define their state.
"""

from pathlib import Path
from typing import Protocol

import msgspec

from podwire.cluster.podnetworks import further_ranges
from podwire.cluster.world import World
from podwire.model.node import Node
from podwire.policy.settings import PolicySettings
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.routing.settings import RoutingSettings
from podwire.state.network import NetworkState
from podwire.trace.packet import Packet
from podwire.why.policies.enforced import PolicyRules
from podwire.why.routing.planned import NodeRoutes
from podwire.why.services.hop import ServiceRules

PARTS = frozenset(("cni", "routing", "policy", "proxy"))


class NodeAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one node, and access to its kernel."""

    services: NodeFacts
    """The facts of the node in the settings of the proxy; the name is the Node's."""
    service_mode: str = "nftables"
    """The data plane of Services that is configured."""
    metrics: tuple[str, int] | None = None
    """Address and port of the proxy's metrics and ``/proxyMode``; None: not served."""
    policies: PolicySettings = PolicySettings()
    cluster_cidrs: tuple[str, ...] = ()
    """The pod networks of the whole cluster."""
    routing: RoutingSettings = RoutingSettings()
    routing_dir: str = "/run/podwire/routing"
    """The directory of the routing backends' child processes."""
    tunnel_ports: tuple[int, ...] = ()
    """The UDP ports of the routing backend's tunnels."""
    parts: frozenset[str] = PARTS
    """The parts that the node's agent runs."""
    agent_socket: Path | None = None
    """The socket of the node's agent; None: the agent is not asked."""
    readable: bool = True
    """Whether this machine can read the node's kernel."""
    netns: Path | None = None
    """The node's network namespace; None: that of this process."""
    problem: str = ""
    """The problem of the settings, because of which other settings may be in force; empty: none."""

    def facts(self, node: Node) -> NodeFacts:
        """The facts of the node that its proxy uses: from its settings and from the Node object."""
        facts = msgspec.structs.replace(self.services, zone=node.zone, addresses=node.internal_ips)
        if not facts.pod_cidrs_of_node:
            return facts
        return msgspec.structs.replace(facts, pod_cidrs=(*node.pod_cidrs, *map(str, further_ranges(node))))


class Nodes(Protocol):
    """The nodes of one cluster. State that was read is cached until :meth:`settle`."""

    def access(self, name: str) -> NodeAccess:
        """The configuration of a node.

        Raises: ClusterError where nothing of the node is known here.
        """
        ...

    def network(self, node: Node) -> NetworkState | None:
        """Devices, addresses and routes of a node; None when its kernel is not read.

        Raises: KernelError, ClusterError.
        """
        ...

    def device(self, node: Node, address: str) -> str:
        """The device of a node at which packets from an address arrive.

        Raises: KernelError, ClusterError.
        """
        ...

    def service_rules(self, node: Node, services: ServiceMap) -> ServiceRules:
        """The rules for Services of a node; ``services`` are the Services of the question.

        Raises: KernelError, ClusterError.
        """
        ...

    def policy_rules(self, name: str, world: World) -> PolicyRules:
        """The policy rules of a node, planned for the pods of ``world``.

        Raises: KernelError.
        """
        ...

    def routes(self, node: Node, peer: Node) -> NodeRoutes:
        """The routing of a node towards another one, planned for that one alone.

        Raises: KernelError, ClusterError.
        """
        ...

    def flows(self, node: Node, packet: Packet) -> tuple[str, ...]:
        """Connections that the node's kernel tracks from this client to this target.

        Raises: KernelError, ClusterError.
        """
        ...

    def notes(self, node: Node) -> tuple[str, ...]:
        """Remarks for the reader about how the node was read."""
        ...

    async def settle(self) -> None:
        """Waits until objects that change at this moment are in the kernel, and forgets what was read."""
        ...
