"""Where ``podwire why`` has the policy rules of nodes from: kernels that can be read here, or plans alone.

Planned are the rules for the pods that a question is about, which have the names and texts that they have among all.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from podwire.cli.sites import Known, Nodes
from podwire.cluster.addresses import owns_addresses
from podwire.cluster.ranges import ClusterRanges
from podwire.cluster.world import Party, World
from podwire.errors import ClusterError
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.policy.bridges.tracing import PastBridges, planned, read
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import Facts
from podwire.policy.evaluate import Rules
from podwire.policy.modes import AUTO, TRACERS
from podwire.policy.settings import ENCAPSULATION_PORTS, PolicySettings
from podwire.policy.tracing import open_tracing
from podwire.proxy.dataplane import addresses_of_node
from podwire.state.network import NetworkState
from podwire.trace.packet import Machine, Tracer
from podwire.why.policies.enforced import Guard

_ELSEWHERE = "eth0"
"""By which packets come and go where the devices are not known."""


class Guards:
    """The policy rules of the nodes of a cluster."""

    def __init__(self, nodes: Nodes, world: World) -> None:
        self._nodes = nodes
        self._world = world
        self._guards: dict[str, Guard | None] = {}
        self.notes: dict[str, None] = {}
        """What should be known of how rules were read."""

    def rules(self, node: str) -> Rules:
        """What a node makes of what the API leaves open."""
        settings = self._settings(node)
        return Rules(own_node_egress=settings.own_node_egress)

    def _settings(self, node: str) -> PolicySettings:
        if self._node(node) is None:
            return PolicySettings()
        try:
            return self._nodes.settings(node).policy
        except ClusterError:
            return PolicySettings()

    def _node(self, name: str) -> Node | None:
        return next((node for node in self._world.nodes if node.metadata.name == name), None)

    def guard(self, node: str) -> Guard | None:
        """The policy rules of a node; None: its agent enforces none.

        Raises: KernelError, ClusterError.
        """
        if node not in self._guards:
            self._guards[node] = self._read(node)
        return self._guards[node]

    def _known(self, node: str) -> Known | None:
        """What is known of a node; None where nothing of it can be read from here."""
        try:
            return self._nodes.known(node)
        except ClusterError:
            return None

    def _read(self, name: str) -> Guard | None:
        known, node = self._known(name), self._node(name)
        if known is None or node is None:
            self.notes[f"the policy rules of {name} cannot be read from here; its part is what policies say"] = None
            return None
        if "policy" not in known.config.parts:
            self.notes[f"the agent of {name} enforces no policies (no part policy)"] = None
            return None
        self.notes |= dict.fromkeys(self._nodes.notes(node))
        state = self._state(node)
        own = node.internal_ips if state is None else addresses_of_node(state)
        machine = Machine(addresses=frozenset(own))
        wanted = self._settings(name).mode
        mode, held = wanted if wanted != AUTO else next(iter(TRACERS)), None
        if state is not None:
            mode, held = _held(mode, known.netns, machine)
        tracing = open_tracing(mode)
        if tracing is None:
            return Guard(mode=mode)
        compiler = self._compiler(name)
        rules = tracing.planned(compiler, self._devices(name), self._facts(node, state), machine)
        guard = Guard(mode=mode, planned=rules, held=held, reads=state is not None)
        return self._past_bridges(known, compiler, guard, machine) if state is not None else guard

    def _past_bridges(self, known: Known, compiler: Compiler, guard: Guard, machine: Machine) -> Guard:
        """The rules with those for bridges before them, where other plugins made pods ports of one.

        Raises: KernelError.
        """
        pods = {key: pod.addresses for key, pod in self._here(known.config.node_name)}
        around = read(known.netns, pods) if "cni" not in known.config.parts else None
        if around is None:
            return guard
        selected = {key for key, pod in compiler.pods.items() if pod.ingress is not None or pod.egress is not None}
        own = planned(around, selected, pods)
        return replace(
            guard,
            planned=PastBridges(guard.planned, own, around, machine),
            held=PastBridges(guard.held, around.held, around, machine),
        )

    def _here(self, node: str) -> Iterator[tuple[str, Pod]]:
        """The pods of a node that policies are about, by their keys."""
        for pod in self._world.pods:
            if pod.spec.node_name == node and owns_addresses(pod):
                yield key_of(pod.metadata), pod

    def _state(self, node: Node) -> NetworkState | None:
        """Devices, addresses and routes of a node; None when its kernel is not read."""
        try:
            return self._nodes.kernel(node)
        except ClusterError as problem:
            self.notes[str(problem)] = None
            return None

    def _compiler(self, node: str) -> Compiler:
        """The policies of the question's pods, as the node compiles them."""
        world = self._world
        made = Compiler(node, own_node_egress=self.rules(node).own_node_egress)
        for namespace in world.namespaces:
            made.set_namespace(namespace.metadata.name, namespace.metadata.labels)
        for one in world.nodes:
            made.set_node(one.metadata.name, one)
        for pod in world.pods:
            made.set_pod(key_of(pod.metadata), pod)
        for policy in world.policies:
            made.set_policy(key_of(policy.metadata), policy)
        for cluster_policy in world.cluster_policies:
            made.set_cluster_policy(cluster_policy.metadata.name, cluster_policy)
        made.flush()
        return made

    def _facts(self, node: Node, state: NetworkState | None) -> Facts:
        """What the agent of a node tells its data plane."""
        settings = self._settings(node.metadata.name)
        config = self._nodes.known(node.metadata.name).config
        ranges = ClusterRanges(config.cluster_cidrs)
        for one in self._world.nodes:
            ranges.follow(one.metadata.name, one)
        ports = {*ENCAPSULATION_PORTS, *self._nodes.settings(node.metadata.name).routing.udp_ports()}
        devices = set(self._devices(node.metadata.name).values())
        links = state.links if state is not None else ()
        return Facts(
            pod_ranges=node.pod_cidrs,
            addresses=node.internal_ips,
            log=settings.log,
            cluster_ranges=ranges.ranges,
            encapsulation_ports=tuple(sorted(ports)) if settings.encapsulation == "drop" else (),
            keep=settings.established == "keep",
            marks=settings.marks,
            bridges=tuple(sorted(link.name for link in links if link.name in devices and link.kind == "bridge")),
        )

    def _devices(self, node: str) -> dict[str, str]:
        """The device of each pod of a node."""
        found = {}
        for key, pod in self._here(node):
            party = Party(address=next(iter(pod.addresses), ""), node=node, pod=pod)
            found[key] = self.device(node, party)
        return {key: device for key, device in found.items() if device}

    def device(self, node: str, party: Party) -> str:
        """By which device a node has an end; empty: it is the node itself."""
        found = self._node(node)
        if not party.address or found is None or (party.node == node and party.pod is None):
            return ""
        if self._state(found) is not None:
            return self._nodes.arrives(found, party.address)
        if party.pod is None or party.node != node:
            return _ELSEWHERE
        return f"pod{self._world.pods.index(party.pod)}"


def _held(wanted: str, netns: Path | None, machine: Machine) -> tuple[str, Tracer | None]:
    """The mode in force and its rules: the wanted one, or the one that stands in for it; without rules, the wanted one.

    Raises: KernelError.
    """
    for mode in dict.fromkeys((wanted, *TRACERS)):
        tracing = open_tracing(mode)
        found = tracing.held(netns, machine) if tracing is not None else None
        if found is not None:
            return mode, found
    return wanted, None
