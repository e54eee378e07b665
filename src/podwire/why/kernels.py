"""The nodes of a cluster: read from their kernels when this machine can read them, otherwise planned.

The kernel is read in the node's network namespace, not through its agent, so the answer is also true while the agent is
stopped; a note says when the agent does not answer.
"""

from collections.abc import Callable
from ipaddress import ip_address, ip_network

from podwire.cluster.world import World
from podwire.errors import ClusterError, ProtocolError
from podwire.http.fetch import fetch
from podwire.kernel import netns
from podwire.kernel.kinds import read_values
from podwire.model.node import Node
from podwire.proxy.servicemap import ServiceMap
from podwire.runtime.clock import Clock
from podwire.state.kinds import PATHS
from podwire.state.network import NetworkState, merge
from podwire.trace.packet import Packet
from podwire.why.nodes import NodeAccess
from podwire.why.policies.enforced import PolicyRules
from podwire.why.policies.rules import PolicyReader
from podwire.why.routing.planned import NodeRoutes
from podwire.why.routing.reading import read_paths, routes_of
from podwire.why.services.hop import ServiceRules
from podwire.why.services.rules import read_flows, read_rules

_AGENT_S = 0.5
_SETTLE_S = 0.3
"""Seconds until a change of an object is in the kernel."""
_DEVICE = "eth0"
"""The device of incoming packets when devices are unknown."""


class NodeKernels:
    """The nodes of a cluster; ``access`` gives the configuration of a node by its name.

    With ``planned`` no kernel is read. ``mode`` is the data plane of Services instead of the one in force.
    """

    def __init__(
        self, access: Callable[[str], NodeAccess], clock: Clock, *, planned: bool = False, mode: str = ""
    ) -> None:
        self._source = access
        self._clock = clock
        self._planned = planned
        self._mode = mode
        self._access: dict[str, NodeAccess] = {}
        self._networks: dict[str, NetworkState] = {}
        self._paths: dict[str, NetworkState] = {}

    def access(self, name: str) -> NodeAccess:
        """The configuration of a node.

        Raises: ClusterError when this machine has no configuration of the node.
        """
        if name not in self._access:
            self._access[name] = self._source(name)
        return self._access[name]

    def _reads(self, access: NodeAccess) -> bool:
        return access.readable and not self._planned

    def network(self, node: Node) -> NetworkState | None:
        """Addresses and routes of a node; None when its kernel is not read.

        Raises: KernelError; ClusterError for a node that does not run.
        """
        name = node.metadata.name
        access = self.access(name)
        if not self._reads(access):
            return None
        if name not in self._networks:
            if access.netns is not None and not netns.exists(access.netns):
                raise ClusterError(f"node {name} does not run; --planned shows what it should do")
            states = read_values(access.netns, {"network": PATHS})
            self._networks[name] = merge(state for state in states if isinstance(state, NetworkState))
        return self._networks[name]

    def device(self, node: Node, address: str) -> str:
        """The device of the most specific route to the address; packets from the address arrive there."""
        state = self.network(node)
        return device_to(state, address) if state is not None else _DEVICE

    def service_rules(self, node: Node, services: ServiceMap) -> ServiceRules:
        """The rules for Services of a node; none where its agent leaves Services to another proxy.

        Raises: KernelError, ClusterError.
        """
        return read_rules(self.access(node.metadata.name), node, self.network(node), services, self._mode)

    def policy_rules(self, name: str, world: World) -> PolicyRules:
        """The policy rules of a node, planned for the pods of ``world``.

        Raises: KernelError.
        """
        return PolicyReader(self, name, world).read()

    def routes(self, node: Node, peer: Node) -> NodeRoutes:
        """The routing of a node towards another one, planned for that one alone.

        Raises: KernelError, ClusterError.
        """
        name = node.metadata.name
        access = self.access(name)
        if self.network(node) is not None and name not in self._paths:
            self._paths[name] = read_paths(access.netns)
        return routes_of(access, node, peer, self._paths.get(name))

    def flows(self, node: Node, packet: Packet) -> tuple[str, ...]:
        """The UDP flows that the node tracks from this client to this target."""
        access = self.access(node.metadata.name)
        return read_flows(access.netns, packet) if self._reads(access) else ()

    def notes(self, node: Node) -> tuple[str, ...]:
        """Remarks about wrong settings, and about an agent that does not run and so does not restore rules."""
        access = self.access(node.metadata.name)
        problems = (access.problem,) if access.problem else ()
        if access.agent_socket is None or not self._reads(access):
            return problems
        try:
            next(fetch(access.agent_socket, "/state?part=none", _AGENT_S), "")
        except OSError:
            silent = f"the agent of {node.metadata.name} does not answer: its rules do not change until it runs"
            return (*problems, silent)
        except ProtocolError:
            pass  # it answers that it has no such part
        return problems

    async def settle(self) -> None:
        """Waits until objects that change at this moment are in the kernel, and forgets what was read."""
        await self._clock.sleep(_SETTLE_S)
        self._networks.clear()
        self._paths.clear()


def device_to(state: NetworkState, text: str) -> str:
    """The device of the most specific route to an address, or of a network of the node itself."""
    address = ip_address(text)
    everything = "0.0.0.0/0" if address.version == 4 else "::/0"
    routes = [(everything if route.dst == "default" else route.dst, route.link) for route in state.routes]
    routes += ((own.cidr, own.link) for own in state.addresses)
    narrowest = (0, _DEVICE)
    for cidr, link in routes:
        destination = ip_network(cidr, strict=False)
        if link and destination.version == address.version and address in destination:
            narrowest = max(narrowest, (destination.prefixlen + 1, link))
    return narrowest[1]
