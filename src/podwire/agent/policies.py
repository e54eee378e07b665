"""Policies as a part of the agent: informers, data plane, the guard of CNI requests, health and metrics."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from podwire.agent.config import AgentConfig
from podwire.cluster.announcer import Announcer
from podwire.cluster.inforce import Versions
from podwire.cluster.names import NODE_HEALTH_PORT, NODE_POLICY
from podwire.cluster.world import World
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.node import PodNetwork
from podwire.cni.protocol import CniRequest
from podwire.cni.spec import TRY_LATER
from podwire.errors import CniError, KernelError, Unsupported
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder, reference
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import CLUSTERNETWORKPOLICIES, NAMESPACES, NETWORKPOLICIES, PODS
from podwire.model.changed import Changed
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy
from podwire.observe.health import Health, Metric, Sample
from podwire.observe.log import Log
from podwire.policy.attached import AttachedPod
from podwire.policy.bridges.dataplane import BridgeIsolation, clear
from podwire.policy.compile import Compiler, PolicyDelta
from podwire.policy.dataplane import PolicyDataPlane, PolicyFacts
from podwire.policy.evaluate import Connection, EvaluationOptions
from podwire.policy.flows import FlowKeeper, forget
from podwire.policy.modes import PolicyModes
from podwire.policy.nodestatus import PolicyStatus
from podwire.policy.objects import Sources
from podwire.policy.runner import Enforcement
from podwire.policy.settings import PolicySettings
from podwire.policy.status.nodes import port_of
from podwire.policy.switch import Switch
from podwire.policy.trim import trim_pod
from podwire.runtime.clock import Clock
from podwire.state.share import Share
from podwire.why.explain import explain_connection
from podwire.why.policy_text import one_audited

KNOWN_S = 5.0
"""How long ADD waits for the pod's object and the first load of policies; kubelet tries again later."""


class PolicyPart:
    """Enforces policies on one node."""

    def __init__(self, config: AgentConfig, client: Client, nodes: Informer[Node], events: EventRecorder) -> None:
        self._client = client
        self._clock: Clock = client.clock
        self._nodes, self._events, self._node = nodes, events, config.node_name
        self._pods = Informer(client, PODS)
        self._pods.trim = trim_pod
        self._namespaces = Informer(client, NAMESPACES)
        self._policies = Informer(client, NETWORKPOLICIES)
        self._cluster_policies: Informer[ClusterNetworkPolicy] = Informer(client, CLUSTERNETWORKPOLICIES)
        self._log = Log("policy")
        self._commits = 0
        self._refusals = 0
        self._seconds = 0.0
        self._loaded = asyncio.Event()
        self._switch = Switch(PolicyModes(), config.policy.mode, PolicyFacts(marks=config.policy.marks))
        self.bridges: BridgeIsolation | None = None
        """Isolates pods on the same bridge, where other CNI plugins wire pods; None: podwire wires them."""
        self.prepared: list[asyncio.Event] = []
        """Events that have to be set before the first enforcement."""
        self._plane = self._open(others="cni" not in config.parts)
        sources = Sources(
            pods=self._pods,
            namespaces=self._namespaces,
            nodes=nodes,
            policies=self._policies,
            cluster_policies=self._cluster_policies,
        )
        self.status = PolicyStatus(client, config.node_name, sources, self._plane, _explain)
        self._enforcement = Enforcement(
            sources,
            self._plane,
            Compiler(config.node_name, own_node_egress=config.policy.own_node_egress),
            self._clock,
            self,
        )
        self.status.follow(self._enforcement)
        self._flows = FlowKeeper(self._enforcement.compiler, self._clock, forget)
        self._ranges = config.cluster_cidrs
        self._port = port_of(config.health.address, config.health.port)
        self.configure(config.policy, config.routing_settings.udp_ports())

    def configure(self, settings: PolicySettings, tunnel_ports: tuple[int, ...]) -> None:
        """Takes over settings, and the ports of the nodes' own tunnels, while policies are enforced too."""
        settings = self.status.configure(settings)
        if settings.mode != self._switch.wanted:
            self._switch.wanted = settings.mode
            self._enforcement.look_again()
        self._enforcement.configure(settings, tunnel_ports, self._ranges)
        if self.bridges is not None:
            self.bridges.enable_netfilter = settings.bridge_netfilter == "set"
        self._flows.configure(strict=settings.established == "strict")

    def _open(self, *, others: bool) -> PolicyDataPlane:
        """The data plane; with ``others``, other plugins wire this node's pods."""
        try:
            if others:
                self.bridges = BridgeIsolation(self._switch)
                return self.bridges
            clear()
        except Unsupported:
            self._log.info("cannot isolate pods on the same bridge: the kernel has no nftables")
        return self._switch

    @property
    def mode(self) -> str:
        """The data plane in use; ``none`` when the kernel supports none."""
        return self._switch.name

    @property
    def lacking(self) -> tuple[str, KernelError] | None:
        """The configured data plane and why it cannot be used; None when it is in use."""
        return self._switch.problem

    async def announce(self, announcer: Announcer, note: Callable[[], None]) -> None:
        """Writes on the Node which data plane is in use, and the health port for counters and logs.

        ``note`` is called whenever the data plane may have changed.
        """
        while True:
            await self._loaded.wait()
            self._loaded.clear()
            note()
            await announcer.insist({NODE_POLICY: self.mode, NODE_HEALTH_PORT: self._port})

    @property
    def enforcement(self) -> Enforcement:
        """The loop that enforces policies."""
        return self._enforcement

    @property
    def pods(self) -> Informer[Pod]:
        """The pods of the cluster."""
        return self._pods

    def tasks(self, health: Health, settings: asyncio.Event | None = None) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name; checks and metrics are added to ``health``.

        Nothing is enforced anew before the cluster's ``settings`` are known, where there are any.
        """

        async def enforce() -> None:
            if settings is not None:
                await settings.wait()
            for event in self.prepared:
                await event.wait()
            await self._enforcement.run()

        health.ready["policy"] = self.problem
        health.metrics["policy"] = self._samples
        return {
            "pods": self._pods.run,
            "namespaces": self._namespaces.run,
            "networkpolicies": self._policies.run,
            "clusternetworkpolicies": lambda: follow_when_served(self._client, self._cluster_policies),
            "policy": enforce,
            "policy flows": self._flows.run,
            **self.status.tasks(health),
        }

    def guard(self, pods: PodNetwork, attached: tuple[Attachment, ...]) -> None:
        """Guards CNI requests from now on; ``attached`` are the pods that already have devices."""
        pods.gate = self
        self._enforcement.restore(tuple(_attached(one) for one in attached))

    def before(self, request: CniRequest) -> Awaitable[None] | None:
        """Waits with ADD until the pod's object is known and policies are in force; None: no need to wait."""
        if request.command != "ADD" or not request.pod:
            return None
        return self._known(request)

    async def _known(self, request: CniRequest) -> None:
        try:
            async with asyncio.timeout(KNOWN_S):
                await self._enforcement.admission.known(request.pod_name, request.uid)
        except TimeoutError:
            what, hint = self._enforcement.admission.waits_for()
            raise CniError(TRY_LATER, f"{request.pod_name}: {what}", hint) from None

    def attach(self, one: Attachment) -> None:
        """Puts a pod's policies into the kernel.

        Raises: KernelError.
        """
        self._enforcement.attach(_attached(one))

    def detach(self, one: Attachment) -> None:
        """Forgets a pod's device."""
        self._enforcement.detach(one.host_link)

    def committed(self, delta: PolicyDelta, duration_s: float, changed: Mapping[Changed, float], *, full: bool) -> None:
        """Takes over a change that is in force; ``changed`` has its causes and when each was received."""
        self._flows.committed(delta, full=full)
        self.status.committed(changed)
        self._commits += 1
        self._seconds += duration_s
        if full:
            profiles = len(self._enforcement.compiler.profiles)
            pods = len(self._enforcement.compiler.pods)
            self._log.info("policies in force", pods=pods, profiles=profiles, plane=self.mode)
            self._loaded.set()

    def refused(self, failure: KernelError) -> None:
        """Takes over that the kernel refused a change; the last good rules stay in force."""
        self._refusals += 1
        self.status.refused(failure)
        node = self._nodes.objects.get(self._node)
        if node is not None:
            subject = reference("v1", "Node", node.metadata)
            self._events.event(subject, "Warning", "PoliciesNotProgrammed", str(failure))

    def share(self) -> Share:
        """What the kernel should hold for policies, as last programmed."""
        desired = self._plane.desired()
        return Share(
            part="policy",
            desired=desired,
            note="" if desired else self.problem(),
        )

    def in_force(self) -> Versions | None:
        """The versions of all objects that policies depend on; None while the kernel does not hold them yet."""
        if not self._enforcement.programmed.is_set():
            return None
        informers = (self._pods, self._namespaces, self._nodes, self._policies, self._cluster_policies)
        return {informer.resource.plural: informer.versions for informer in informers}

    def problem(self) -> str:
        """Why this node cannot run pods yet; empty: it can."""
        return self._enforcement.problem

    def _samples(self) -> list[Metric]:
        compiler = self._enforcement.compiler
        found = (
            ("podwire_policy_pods", "Pods of this node that policies may select.", len(compiler.pods), "gauge"),
            (
                "podwire_policy_profiles",
                "Distinct sets of policies that select pods of this node.",
                len(compiler.profiles),
                "gauge",
            ),
            ("podwire_policy_policies", "NetworkPolicies of the cluster.", len(self._policies.objects), "gauge"),
            (
                "podwire_policy_cluster_policies",
                "ClusterNetworkPolicies of the cluster.",
                len(self._cluster_policies.objects),
                "gauge",
            ),
            ("podwire_policy_commits_total", "Policy changes that were put in force.", self._commits, "counter"),
            (
                "podwire_policy_refusals_total",
                "Policy changes that the kernel refused.",
                self._refusals,
                "counter",
            ),
            (
                "podwire_policy_flows_forgotten_total",
                "Tracked flows deleted because policies deny them now.",
                self._flows.forgotten,
                "counter",
            ),
            (
                "podwire_policy_commit_seconds_total",
                "Time that policy changes took.",
                self._seconds,
                "counter",
            ),
        )
        modes = {"mode": self.mode, "wanted": self._switch.wanted}
        mode = Sample("podwire_policy_mode", "The policy data plane in use and the configured one.", 1, modes)
        return [mode, *(Sample(name, text, value, kind=kind) for name, text, value, kind in found)]


def _attached(one: Attachment) -> AttachedPod:
    pod = f"{one.namespace}/{one.pod}" if one.pod else ""
    return AttachedPod(pod=pod, device=one.host_link, addresses=one.addresses, uid=one.uid)


def _explain(world: World, connection: Connection, options: EvaluationOptions, audited: str) -> tuple[bool, str]:
    verdict = explain_connection(world, connection, options)
    text = one_audited(connection.protocol, verdict, audited) if audited else ""
    return verdict.outcome == "allowed", text or verdict.message
