"""The nodes of a cluster as explainers ask about them: how each is configured, and what its kernel holds (pure).

A :class:`NodeAccess` is filled by callers, which know where the configuration of a node comes from. :class:`Nodes` is
the one seam between explainers and kernels: :mod:`podwire.why.kernels` reads them, tests state what they hold.
"""

from pathlib import Path
from typing import Protocol

import msgspec

from podwire.cluster.world import World
from podwire.model.node import Node
from podwire.policy.settings import PolicySettings
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.state.network import NetworkState
from podwire.trace.packet import Packet
from podwire.why.policies.enforced import PolicyRules
from podwire.why.services.hop import ServiceRules

PARTS = frozenset(("cni", "routing", "policy", "proxy"))


class NodeAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How one node is configured, and where its kernel can be read."""

    services: NodeFacts
    """What the settings of the proxy say of the node; its name is the Node's."""
    service_mode: str = "nftables"
    """The data plane of Services that is configured."""
    metrics: tuple[str, int] | None = None
    """Address and port where the proxy serves its metrics and ``/proxyMode``; None: nowhere."""
    policies: PolicySettings = PolicySettings()
    cluster_cidrs: tuple[str, ...] = ()
    """The pod networks of the whole cluster."""
    tunnel_ports: tuple[int, ...] = ()
    """The UDP ports of the routing backend's tunnels."""
    parts: frozenset[str] = PARTS
    """The parts that the node's agent runs."""
    agent_socket: Path | None = None
    """Where the node's agent answers; None: it is not asked."""
    readable: bool = True
    """Whether the node's kernel can be read from here."""
    netns: Path | None = None
    """The node's network namespace; None: that of this process."""
    problem: str = ""
    """What is wrong with the settings, so that others may be in force; empty: nothing."""

    def facts(self, node: Node) -> NodeFacts:
        """What the proxy of the node knows of it: its settings, and what the Node object says."""
        facts = msgspec.structs.replace(self.services, zone=node.zone, addresses=node.internal_ips)
        return msgspec.structs.replace(facts, pod_cidrs=node.pod_cidrs) if facts.pod_cidrs_of_node else facts


class Nodes(Protocol):
    """The nodes of one cluster. What was read is kept until :meth:`settle`."""

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
        """The device of a node by which packets of an address come in.

        Raises: KernelError, ClusterError.
        """
        ...

    def service_rules(self, node: Node, services: ServiceMap) -> ServiceRules:
        """The rules for Services of a node; ``services`` are those that the question is about.

        Raises: KernelError, ClusterError.
        """
        ...

    def policy_rules(self, name: str, world: World) -> PolicyRules:
        """The policy rules of a node, planned for the pods of ``world``.

        Raises: KernelError.
        """
        ...

    def flows(self, node: Node, packet: Packet) -> tuple[str, ...]:
        """Connections that the node's kernel tracks from this client to this target.

        Raises: KernelError, ClusterError.
        """
        ...

    def notes(self, node: Node) -> tuple[str, ...]:
        """What a reader should know of how the node was read."""
        ...

    async def settle(self) -> None:
        """Waits until objects that change at this moment are in the kernel, and forgets what was read."""
        ...
