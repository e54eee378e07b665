"""The objects of the part ``policy`` of the agent, and their connections with the agent."""

import asyncio

from podwire.agent.shared import Shared
from podwire.cluster.degraded import FEATURE_MISSING
from podwire.cluster.names import NODE_HEALTH_PORT, NODE_POLICY
from podwire.cluster.world import World
from podwire.cni.ipam.ledger import Attachment
from podwire.dataplane.announcement import LoadAnnouncer
from podwire.policy.attached import AttachedPod
from podwire.policy.bridges.opening import open_isolation
from podwire.policy.compile import Compiler
from podwire.policy.configurator import PolicyConfigurator
from podwire.policy.connectionmatch import Connection
from podwire.policy.dataplane import PolicyDataPlane, PolicyFacts
from podwire.policy.evaluate import EvaluationOptions
from podwire.policy.flows import FlowKeeper, forget
from podwire.policy.informers import PolicyInformers
from podwire.policy.modes import PolicyModes, unavailable
from podwire.policy.nodestatus import PolicyStatus
from podwire.policy.outcomes import PolicyOutcomes
from podwire.policy.overview import PolicyOverview
from podwire.policy.runner import Enforcement
from podwire.policy.status.nodes import LOG_PAGE, port_of
from podwire.policy.switch import Switch
from podwire.why.explain import explain_connection
from podwire.why.policy_text import one_audited


class PolicyPart:
    """The objects that enforce policies on one node."""

    def __init__(self, shared: Shared, *, bridges: bool) -> None:
        """``bridges``: pods of this node may be ports of bridges."""
        config, client, clock = shared.config, shared.client, shared.clock
        self.shared = shared
        self.prepared: list[asyncio.Event] = []
        """Events that must be set before the first enforcement."""
        self.informers = PolicyInformers(client, shared.nodes, shared.selected())
        shared.events.follow_rejected(*self.informers.own)
        shared.policies = (self.informers.policies, self.informers.cluster_policies)
        self.switch = Switch(PolicyModes(), config.policy.mode, PolicyFacts(marks=config.policy.marks))
        self.bridges = open_isolation(self.switch, needed=bridges)
        plane: PolicyDataPlane = self.bridges or self.switch
        compiler = Compiler(config.node_name, own_node_egress=config.policy.own_node_egress)
        self.flows = FlowKeeper(compiler, clock, forget)
        sources = self.informers.sources
        self.status = PolicyStatus(client, config.node_name, sources, plane, explain)
        self.outcomes = PolicyOutcomes(compiler, plane, self.flows, self.status, shared.events, shared.own_node)
        self.enforcement = Enforcement(sources, plane, compiler, clock, self.outcomes)
        self.status.follow(self.enforcement)
        self.overview = PolicyOverview(self.enforcement, plane, self.informers)
        self.announcer = LoadAnnouncer(self.announce)
        self.outcomes.loaded = self.announcer.loaded
        self.configurator = PolicyConfigurator(
            status=self.status,
            plane=self.switch,
            enforcement=self.enforcement,
            flows=self.flows,
            bridges=self.bridges,
            cluster_cidrs=config.cluster_cidrs,
        )
        self.configurator.configure(config.policy, config.routing_settings.udp_ports())

    def attach(self, *attachments: Attachment) -> None:
        """Puts the policies of pods of podwire's own wiring into the kernel, in one commit.

        Raises: KernelError.
        """
        self.enforcement.attach(*(attached_pod(attachment, attachment.bridge) for attachment in attachments))

    def report_mode(self) -> None:
        """Reports the reason when the configured mode is not in use."""
        problem = unavailable(self.switch.name, self.switch.problem, self.shared.features.lacks)
        self.shared.degraded.report("policy", FEATURE_MISSING, problem)

    async def announce(self, _first: bool) -> None:
        """Writes on the Node which data plane is in use, and the health port for counters and logs."""
        self.report_mode()
        health = self.shared.config.health
        port = port_of(health.address, health.port)
        await self.shared.announcer.insist({NODE_POLICY: self.switch.name, NODE_HEALTH_PORT: port})

    def connect(self) -> None:
        """Adds the tasks, checks, metrics and pages of the enforcement to the agent."""
        shared, overview = self.shared, self.overview
        self.report_mode()
        shared.health.ready["policy"] = overview.problem
        shared.health.metrics["policy"] = lambda: overview.samples(self.switch, self.outcomes, self.flows)
        shared.state_page.parts["policy"] = lambda: [overview.share()]
        shared.in_force.parts["policy"] = overview.in_force
        shared.on_settings.append(
            lambda settings: self.configurator.configure(settings.policy, settings.routing.udp_ports())
        )
        pages = self.status.pages()
        shared.pages |= pages
        log_is_public = shared.config.health.policy_log
        shared.public_pages |= {path: page for path, page in pages.items() if log_is_public or path != LOG_PAGE}
        shared.tasks |= {
            **self.informers.tasks(),
            "policy": self.run,
            "policy flows": self.flows.run,
            "policy announcement": self.announcer.run,
            **self.status.tasks(shared.health),
        }

    async def run(self) -> None:
        """Enforces policies once the settings of the cluster are known and all pods of the node are reported."""
        await self.shared.until_settings_are_known()
        for event in self.prepared:
            await event.wait()
        await self.enforcement.run()


def attached_pod(attachment: Attachment, bridge: str = "") -> AttachedPod:
    """The attachment of a pod as policies see it; ``bridge`` is the bridge of which the pod's device is a port."""
    return AttachedPod(
        pod=f"{attachment.namespace}/{attachment.pod}" if attachment.pod else "",
        device=bridge or attachment.host_link,
        port=attachment.host_link if bridge else "",
        addresses=attachment.addresses,
        uid=attachment.uid,
    )


def explain(world: World, connection: Connection, options: EvaluationOptions, audited: str) -> tuple[bool, str]:
    """Whether policies let a connection through, and why; with ``audited``, the audit finding in that direction."""
    verdict = explain_connection(world, connection, options)
    text = one_audited(connection.protocol, verdict, audited) if audited else ""
    return verdict.outcome == "allowed", text or verdict.message
