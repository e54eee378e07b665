"""Where ``podwire why`` has the settings and the rules of nodes from: kernels that can be read here, or plans alone.

The kernel is read in the node's own network namespace, not through its agent, so that the answer is true also while
the agent is stopped; whether it runs is said beside. What a node should hold is planned here from the objects.
"""

import http.client
from collections.abc import Callable, Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path

import msgspec

from podwire.agent.config import AgentConfig, ClusterSettings, overlay
from podwire.cluster.names import NODE_PROXY
from podwire.cni import ports
from podwire.errors import ClusterError, ConfigError, KernelError, ProtocolError
from podwire.http.fetch import fetch
from podwire.kernel import netns, network
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.netlink import Netlink
from podwire.kernel.nft import Nft
from podwire.model.node import Node
from podwire.proxy.dataplane import addresses_of_node
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.proxy.tracing import Tracer, open_tracing
from podwire.routing.tables import MASQUERADE
from podwire.state.network import NetworkState
from podwire.trace.nft import Tracer as NftTracer
from podwire.trace.packet import Machine, Packet
from podwire.why.services.answering import of_node
from podwire.why.services.hop import View

_AGENT_S = 0.5
_DEVICE = "eth0"
"""By which packets come in where the devices are not known."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A node's configuration, and where its kernel is read."""

    config: AgentConfig
    readable: bool = True
    netns: Path | None = None
    """None: the namespace of this process."""


class Nodes:
    """The nodes of a cluster; ``known`` gives what is known of one, by its name.

    ``settings`` are those of the cluster's ConfigMap. With ``planned`` no kernel is read. ``mode`` wins over what the
    nodes say of themselves.
    """

    def __init__(
        self,
        known: Callable[[str], Known],
        settings: Mapping[str, str] | None = None,
        *,
        planned: bool = False,
        mode: str = "",
    ) -> None:
        self.known = known
        self._data = settings or {}
        self._planned = planned
        self._mode = mode
        self._paths: dict[str, NetworkState] = {}
        self._refused = ""
        self._unproxied: set[str] = set()
        """Nodes that were asked about Services, and leave them to another proxy."""

    def settings(self, name: str) -> ClusterSettings:
        """The settings of a node; where the cluster's are wrong, those of its own file."""
        config = self.known(name).config
        source = f"ConfigMap {config.settings}"
        try:
            return overlay(config.routing, self._data, source, config.proxy, config.policy)
        except ConfigError as problem:
            self._refused = f"{problem}; the agents keep the last good settings, which are not known here"
            return overlay(config.routing, {}, source, config.proxy, config.policy)

    def facts(self, node: Node) -> NodeFacts:
        """What the proxy of a node knows of it."""
        config = self.known(node.metadata.name).config
        proxy = self.settings(node.metadata.name).proxy
        facts = proxy.facts(node.metadata.name, config.cluster_cidrs, config.service_cidrs)
        return of_node(facts, node)

    def reads(self, known: Known) -> bool:
        """Whether a node's kernel is read."""
        return known.readable and not self._planned

    def kernel(self, node: Node) -> NetworkState | None:
        """Addresses and routes that a node has; None when its kernel is not read."""
        name = node.metadata.name
        known = self.known(name)
        if not self.reads(known):
            return None
        if name not in self._paths:
            if known.netns is not None and not netns.exists(known.netns):
                raise ClusterError(f"node {name} does not run; --planned shows what it should do")
            with Netlink(known.netns) as netlink:
                self._paths[name] = network.read_paths(netlink)
        return self._paths[name]

    def arrives(self, node: Node, source: str) -> str:
        """The device of the narrowest route to the source, which is where its packets come from."""
        state = self.kernel(node)
        return device_to(state, source) if state is not None else _DEVICE

    def view(self, node: Node, facts: NodeFacts, services: ServiceMap) -> View:
        """The rules of a node; none where its agent leaves Services to another proxy.

        Raises: KernelError, ClusterError.
        """
        known = self.known(node.metadata.name)
        state = self.kernel(node)
        own = facts.addresses if state is None else addresses_of_node(state)
        machine = Machine(addresses=frozenset(own))
        if "proxy" not in known.config.parts:
            self._unproxied.add(node.metadata.name)
            return View(mode="", facts=facts, machine=machine)
        settings = self.settings(node.metadata.name).proxy
        mode = self._mode or node.metadata.annotations.get(NODE_PROXY, "")
        if not mode and state is not None and settings.metrics is not None:
            mode = ask_mode(known.netns, settings.metrics)
        mode = mode or settings.mode
        tracing = open_tracing(mode)
        planned: Tracer | None = None
        held: Tracer | None = None
        if tracing is not None:
            planned = tracing.planned(services, facts, machine)
            held = tracing.held(known.netns, machine) if state is not None else None
        return View(
            mode=mode,
            facts=facts,
            machine=machine,
            planned=planned,
            held=held,
            beyond=_beyond(known.netns, machine) if state is not None else None,
        )

    def flows(self, node: Node, packet: Packet) -> tuple[str, ...]:
        """The UDP flows that the node tracks from this client to this target."""
        known = self.known(node.metadata.name)
        if packet.protocol != "udp" or not self.reads(known):
            return ()
        with Conntrack(known.netns) as conntrack:
            flows = conntrack.flows((packet.source,), "UDP")
        wanted = packet.source, packet.destination, packet.destination_port
        ours = (f for f in flows if (f.original.src, f.original.dst, f.original.dport) == wanted)
        return tuple(f"from port {f.original.sport} to {f.backend[0]} port {f.backend[1]}" for f in ours)

    def notes(self, node: Node) -> tuple[str, ...]:
        """Settings that are wrong, and whether the agent runs that keeps the rules as they should be."""
        known = self.known(node.metadata.name)
        refused = (self._refused,) if self._refused else ()
        if node.metadata.name in self._unproxied:
            other = f"the agent of {node.metadata.name} leaves Services to another proxy (no part proxy)"
            refused = (*refused, f"{other}; what is said of them is what the objects mean")
        if not self.reads(known):
            return refused
        try:
            next(fetch(known.config.agent_socket, "/state?part=none", _AGENT_S), "")
        except OSError:
            return (
                *refused,
                f"the agent of {node.metadata.name} does not answer: its rules stay as they are until it does",
            )
        except ProtocolError:
            pass  # it answers that it has no such part
        return refused


def device_to(state: NetworkState, text: str) -> str:
    """The device by which an address is reached: that of the narrowest route, or of a network of the node's own."""
    address = ip_address(text)
    everything = "0.0.0.0/0" if address.version == 4 else "::/0"
    ways = [(everything if route.dst == "default" else route.dst, route.link) for route in state.routes]
    ways += ((own.cidr, own.link) for own in state.addresses)
    found = (0, _DEVICE)
    for cidr, link in ways:
        destination = ip_network(cidr, strict=False)
        if link and destination.version == address.version and address in destination:
            found = max(found, (destination.prefixlen + 1, link))
    return found[1]


def ask_mode(place: Path | None, where: tuple[str, int]) -> str:
    """The mode in force as the proxy of a node tells it, for agents that may not write it to their Node; empty: none.

    ``where`` is the proxy's metrics address.
    """
    address, port = where
    loopback = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104 - compared, not bound
    connection = http.client.HTTPConnection(loopback, port, timeout=_AGENT_S)
    try:
        with netns.inside(place):
            connection.connect()
        connection.request("GET", "/proxyMode")
        answer = connection.getresponse()
        return answer.read(64).decode("ascii", "replace").strip() if answer.status == http.client.OK else ""
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def _beyond(place: Path | None, machine: Machine) -> Tracer | None:
    try:
        with Nft(place) as nft:
            tables = [nft.read("inet", name) for name in (MASQUERADE, ports.TABLE)]
    except KernelError:
        return None
    return NftTracer([table for table in tables if table is not None], machine)


def remote(nodes: tuple[Node, ...], service_cidrs: tuple[str, ...]) -> Callable[[str], Known]:
    """Nodes of which the objects alone are known: pods are whoever has an address of a node's pod range."""
    ranges = tuple(cidr for node in nodes for cidr in node.pod_cidrs)

    def known(name: str) -> Known:
        config = AgentConfig(node_name=name, cluster_cidrs=ranges, service_cidrs=service_cidrs)
        return Known(config=config, readable=False)

    return known
