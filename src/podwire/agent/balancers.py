"""Constructs the part ``loadbalancer`` of the agent."""

from collections.abc import Iterable

from msgspec.structs import replace

from podwire.agent.bgpengine import BgpEngine
from podwire.agent.shared import Shared
from podwire.cluster.degraded import FEATURE_MISSING
from podwire.errors import KernelError, Unsupported
from podwire.kernel import sysctl
from podwire.kernel.nft import Nft
from podwire.kernel.nft_drift import TableWatch
from podwire.kube.events import Severity, reference
from podwire.kube.resources import SERVICEBGPSTATUSES, SERVICEL2STATUSES
from podwire.loadbalancer.bgproutes import BalancedRoutes
from podwire.loadbalancer.bgpspeaker import BgpSpeaker
from podwire.loadbalancer.devices import AnsweringDevices
from podwire.loadbalancer.election import L2Choice, addresses_of
from podwire.loadbalancer.guard import TABLE, guard_table
from podwire.loadbalancer.protection import KINDS, Protection, read_protections
from podwire.loadbalancer.servicestatus import advertised, answered
from podwire.loadbalancer.speaker import L2Speaker
from podwire.loadbalancer.statusobjects import StatusObjects
from podwire.loadbalancer.view import BalancerView
from podwire.observe.health import Sample
from podwire.observe.log import Log
from podwire.runtime.supervise import Supervisor
from podwire.state.nft import Table
from podwire.state.share import Share

TCP_LOOSE = "net/netfilter/nf_conntrack_tcp_loose"
"""With 1, the default, connection tracking takes the answer to a cookie for a connection that it has missed."""


def add(shared: Shared, supervisor: Supervisor) -> None:
    """Adds the announcement of addresses of load balancers by this node; ``supervisor`` runs the engine of BGP."""
    BalancerPart(shared, supervisor).connect()


class BalancerPart:
    """The parts of load balancers on one node."""

    def __init__(self, shared: Shared, supervisor: Supervisor) -> None:
        self.shared = shared
        config = shared.config
        namespace = config.settings.partition("/")[0] or "kube-system"
        services, slices = shared.services()
        self.view = BalancerView(shared.client, shared.events, shared.nodes, services, slices)
        self.devices = AnsweringDevices(self._node_addresses)
        self.speaker = L2Speaker(shared.client, config.node_name, namespace, self.view, self.devices)
        self.speaker.prepare = self.hold_guard
        self.speaker.announced = self._announced
        self.engine = BgpEngine(shared, self.devices, supervisor)
        self.bgp = BgpSpeaker(config.node_name, self.view, namespace, self.engine.deliver, supervisor)
        self.bgp.announced = self._routes_changed
        self.answered = StatusObjects(self.view, config.node_name, SERVICEL2STATUSES)
        self.advertised = StatusObjects(self.view, config.node_name, SERVICEBGPSTATUSES)
        self.speaker.followed = self._show_answered
        self.log = Log("loadbalancer")
        self._protections: dict[str, Protection] = {}
        self._refused: dict[str, str] = {}
        self._is_strict = False
        """Whether connection tracking refuses packets of connections that it does not know, for the SYN proxy."""
        self._table: Table | None = None
        self._watch: TableWatch | None = None

    def _node_addresses(self) -> tuple[str, ...]:
        node = self.shared.own_node()
        return node.internal_ips if node is not None else ()

    def _show_answered(self) -> None:
        self.answered.show(answered(self.shared.config.node_name, self.speaker.held, self.speaker.choices))

    def _announced(self, choice: L2Choice) -> None:
        self.answered.take_over(choice.services, self.speaker.alive())
        for key in choice.services:
            text = f'announcing from node "{self.shared.config.node_name}" with protocol "layer2"'
            self._service_event(key, "Normal", "nodeAssigned", text)

    def _routes_changed(self, before: BalancedRoutes, now: BalancedRoutes) -> None:
        self.hold_guard()
        self.advertised.show(advertised(self.shared.config.node_name, now.announcements))
        known = {key for entry in before.announcements for key in entry.services}
        for key in sorted({key for entry in now.announcements for key in entry.services} - known):
            text = f'announcing from node "{self.shared.config.node_name}" with protocol "bgp"'
            self._service_event(key, "Normal", "nodeAssigned", text)
        for key, text in now.problems.items():
            if before.problems.get(key) != text:
                self._service_event(key, "Warning", "AnnouncementFailed", text)

    def _service_event(self, key: str, severity: Severity, reason: str, text: str) -> None:
        service = self.view.balanced.get(key)
        if service is not None:
            self.shared.events.event(reference("v1", "Service", service.metadata), severity, reason, text)

    def hold_guard(self) -> None:
        """Makes the kernel hold the table for the present addresses."""
        addresses = sorted({a for s in self.view.balanced.values() for a in addresses_of(s)}, key=str)
        table = guard_table(addresses, self._read_protections())
        if table == self._table:
            return
        try:
            if self._watch is None:
                self._watch = TableWatch()
                self._watch.attach(self._disturbed)
            with Nft() as nft:
                nft.apply(table)
        except Unsupported as missing:
            text = f"{missing}; programs of the node may answer at addresses of load balancers"
            self.shared.degraded.report("loadbalancer", FEATURE_MISSING, text)
            return
        except KernelError as failure:
            self.log.warning("cannot write the table of load balancers", problem=failure)
            return
        self._table = table
        self._watch.expect((table,))

    def _read_protections(self) -> list[Protection]:
        """The limits of Services, without what this kernel lacks."""
        self._protections, problems = read_protections(self.view.balanced.values(), self._protections)
        for key, text in problems.items():
            if self._refused.get(key) != text:
                self._service_event(key, "Warning", "AnnotationRefused", f"{text}; the last good limits stay in force")
        self._refused = problems
        protections = [item for _, item in sorted(self._protections.items())]
        proxied = any(item.syn_proxy for item in protections)
        lack = self.shared.features.lacks("synproxy") if proxied else ""
        text = f"{lack}; SYN packets to load balancers are not answered with cookies" if lack else ""
        self.shared.degraded.report("syn proxy", FEATURE_MISSING, text)
        if (proxied and not lack) != self._is_strict:
            self._is_strict = not self._is_strict
            sysctl.write(TCP_LOOSE, "0" if self._is_strict else "1")
        return [replace(item, syn_proxy=item.syn_proxy and not lack) for item in protections]

    def dropped(self) -> Iterable[Sample]:
        """The packets that limits have met, by Service and kind of limit."""
        if not self._protections:
            return
        try:
            with Nft() as nft:
                counted = nft.counters("inet", TABLE)
        except KernelError:
            return
        for chain, (packets, _) in counted.items():
            kind, _, key = chain.partition("-")
            if key in self._protections and kind in KINDS:
                yield Sample(
                    "podwire_loadbalancer_limited_packets_total",
                    "Packets above the limits of a Service, and those that the SYN proxy has handled.",
                    packets,
                    {"service": key, "limit": kind},
                    kind="counter",
                )

    def _disturbed(self) -> None:
        self._table = None
        self.hold_guard()

    def shares(self) -> Iterable[Share]:
        """The desired state of this part."""
        return [Share(part="loadbalancer", desired=(self._table,) if self._table is not None else ())]

    def samples(self) -> Iterable[Sample]:
        """The metrics of load balancers on this node."""
        speaker, prefix = self.speaker, "podwire_loadbalancer_l2"
        chosen = sum(1 for choice in speaker.choices.values() if choice.node)
        announced = "Announcements that nobody asked for."
        return [
            *self.dropped(),
            Sample(f"{prefix}_addresses", "Addresses for which this node answers.", len(speaker.held)),
            Sample(f"{prefix}_announced", "Addresses for which any node answers.", chosen),
            Sample(f"{prefix}_speakers", "Nodes whose agents are alive.", len(speaker.alive())),
            Sample(f"{prefix}_moves_total", "Addresses that this node has taken over.", speaker.moves, kind="counter"),
            Sample(f"{prefix}_gratuitous_total", announced, speaker.announcements, kind="counter"),
            Sample(
                "podwire_loadbalancer_bgp_prefixes",
                "Prefixes that this node announces by BGP.",
                len(self.bgp.current.routes.networks),
            ),
            Sample(
                "podwire_loadbalancer_bgp_sessions",
                "Sessions of this node with routers.",
                len(self.bgp.current.routes.sessions),
            ),
        ]

    def connect(self) -> None:
        """Adds the tasks, checks, metrics and pages of load balancers to the agent."""
        shared = self.shared
        shared.tasks |= self.speaker.tasks() | self.bgp.tasks()
        shared.tasks |= self.answered.tasks() | self.advertised.tasks()
        shared.on_settings.append(lambda _settings: self.bgp.again())
        shared.state_page.parts["loadbalancer"] = self.shares
        shared.health.metrics["loadbalancer"] = self.samples
