"""The policy rules of one node: read from its kernel when possible, and planned from the objects.

Rules are planned for the pods of the question only. Their names and texts are the same as among the rules of all pods.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from podwire.cluster.addresses import owns_addresses, pod_side_addresses
from podwire.cluster.cloudinterfaces import pod_ranges_of
from podwire.cluster.ranges import ClusterRanges
from podwire.cluster.world import Party, World
from podwire.dataplane.tracing import trace_held
from podwire.errors import ClusterError
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.policy.bridges.tracing import BridgeTracer, planned, read
from podwire.policy.compile import Compiler, compile_world
from podwire.policy.dataplane import PolicyFacts
from podwire.policy.registry import AUTO, TRACERS
from podwire.policy.settings import ENCAPSULATION_PORTS
from podwire.policy.tracing import open_tracing
from podwire.proxy.dataplane import addresses_of_node
from podwire.state.network import NetworkState
from podwire.trace.packet import LocalAddresses, Tracer
from podwire.why.nodes import NodeAccess, Nodes
from podwire.why.policies.enforced import PolicyRules

_ELSEWHERE = "eth0"
"""The device of packets when devices are unknown."""


class PolicyReader:
    """The policy rules of one node; rules are planned for the pods of ``world``."""

    def __init__(self, nodes: Nodes, name: str, world: World) -> None:
        self._nodes = nodes
        self._name = name
        self._world = world
        self._network: NetworkState | None = None

    def read(self) -> PolicyRules:
        """The rules; without a mode when the node enforces no policies or is unknown to this machine.

        Raises: KernelError.
        """
        node = next((node for node in self._world.nodes if node.metadata.name == self._name), None)
        access = self._access()
        if access is None or node is None:
            note = f"the policy rules of {self._name} cannot be read from here; the answer for it is what policies say"
            return PolicyRules(mode="", notes=(note,))
        if "policy" not in access.parts:
            return PolicyRules(mode="", notes=(f"the agent of {self._name} enforces no policies (no part policy)",))
        remarks = self._nodes.notes(node)
        try:
            self._network = self._nodes.network(node)
        except ClusterError as problem:
            remarks = (*remarks, str(problem))
        return replace(self._rules(access, node), device=lambda end: self._device(node, end), notes=remarks)

    def _access(self) -> NodeAccess | None:
        try:
            return self._nodes.access(self._name)
        except ClusterError:
            return None

    def _rules(self, access: NodeAccess, node: Node) -> PolicyRules:
        network = self._network
        own = _own_addresses(node) if network is None else addresses_of_node(network)
        machine = LocalAddresses(addresses=frozenset(own))
        configured = access.policies.mode
        mode, held = configured if configured != AUTO else next(iter(TRACERS)), None
        if network is not None:
            mode, held = _held(mode, access.netns, machine)
        tracing = open_tracing(mode)
        if tracing is None:
            return PolicyRules(mode=mode)
        compiler = compile_world(self._world, self._name, own_node_egress=access.policies.own_node_egress)
        planned = tracing.planned(compiler, self._devices(node), self._facts(access, node), machine)
        rules = PolicyRules(mode=mode, planned=planned, held=held, reads=network is not None)
        return self._past_bridges(access, compiler, rules, machine) if network is not None else rules

    def _past_bridges(
        self, access: NodeAccess, compiler: Compiler, rules: PolicyRules, machine: LocalAddresses
    ) -> PolicyRules:
        """The rules after the rules for bridges, when other plugins made pods ports of a bridge.

        Raises: KernelError.
        """
        pods = {key: pod.addresses for key, pod in self._here()}
        bridges = read(access.netns, pods) if "cni" not in access.parts else None
        if bridges is None:
            return rules
        selected = {key for key, pod in compiler.pods.items() if pod.ingress is not None or pod.egress is not None}
        own = planned(bridges, selected, pods)
        return replace(
            rules,
            planned=BridgeTracer(rules.planned, own, bridges, machine),
            held=BridgeTracer(rules.held, bridges.held, bridges, machine),
        )

    def _here(self) -> Iterator[tuple[str, Pod]]:
        """The pods of the node to which policies apply, by their keys."""
        for pod in self._world.pods:
            if pod.spec.node_name == self._name and owns_addresses(pod):
                yield key_of(pod.metadata), pod

    def _facts(self, access: NodeAccess, node: Node) -> PolicyFacts:
        """The facts that the agent of a node gives to its data plane."""
        settings, network = access.policies, self._network
        ranges = ClusterRanges(access.cluster_cidrs)
        for known in self._world.nodes:
            ranges.follow(known.metadata.name, known)
        ports = {*ENCAPSULATION_PORTS, *access.tunnel_ports}
        devices = set(self._devices(node).values())
        links = network.links if network is not None else ()
        return PolicyFacts(
            pod_ranges=tuple(map(str, pod_ranges_of(node))),
            addresses=_own_addresses(node),
            log=settings.log,
            cluster_ranges=ranges.ranges,
            encapsulation_ports=tuple(sorted(ports)) if settings.encapsulation == "drop" else (),
            keep=settings.established == "keep",
            marks=settings.marks,
            bridges=tuple(sorted(link.name for link in links if link.name in devices and link.kind == "bridge")),
        )

    def _devices(self, node: Node) -> dict[str, str]:
        """The device of each pod of the node."""
        devices = {}
        for key, pod in self._here():
            party = Party(address=next(iter(pod.addresses), ""), node=self._name, pod=pod)
            devices[key] = self._device(node, party)
        return {key: device for key, device in devices.items() if device}

    def _device(self, node: Node, end: Party) -> str:
        """The node's device towards an end of a connection; empty: the end is the node itself."""
        if not end.address or (end.node == self._name and end.pod is None):
            return ""
        if self._network is not None:
            return self._nodes.device(node, end.address)
        if end.pod is None or end.node != self._name:
            return _ELSEWHERE
        return f"pod{self._world.pods.index(end.pod)}"


def _own_addresses(node: Node) -> tuple[str, ...]:
    """The addresses of a node, with those in its pod ranges that routing may give to the node."""
    return (*node.internal_ips, *pod_side_addresses(node))


def _held(configured: str, netns: Path | None, machine: LocalAddresses) -> tuple[str, Tracer | None]:
    """The mode in force and its rules: the wanted mode or its fallback; the wanted mode when there are no rules.

    Raises: KernelError.
    """
    for mode in dict.fromkeys((configured, *TRACERS)):
        tracing = open_tracing(mode)
        tracer = trace_held(tracing, netns, machine) if tracing is not None else None
        if tracer is not None:
            return mode, tracer
    return configured, None
