"""Constructs the rules that lead pods to the node's own DNS server, where the configuration asks for them."""

from collections.abc import Iterable

from podwire.agent.shared import Shared
from podwire.cluster.degraded import FEATURE_MISSING
from podwire.cluster.names import NODE_LOCAL_DNS
from podwire.dns.nodelocal.plan import OWNER
from podwire.dns.nodelocal.runner import NodeLocalRules, remove_rules
from podwire.kube.informer import Informer
from podwire.kube.resources import SERVICES
from podwire.model.node import Node
from podwire.model.service import Service
from podwire.observe.health import Sample
from podwire.policy.runner import Enforcement
from podwire.state.share import Share

_METRIC = "podwire_dns_node_local_total"
_TEXT = "Queries over UDP and connections over TCP that went to the node's own DNS server."
_PROTOCOLS = {"queries": "udp", "connections": "tcp"}


def add(shared: Shared, enforcement: Enforcement | None) -> None:
    """Adds the rules; without a configuration of them, those of an earlier agent are removed.

    ``enforcement`` is None where this agent does not enforce the policies of the node's pods: these pods then go to the
    cluster's servers, where policies apply.
    """
    section = shared.config.dns
    if section.node_local and enforcement is not None:
        NodeDnsPart(shared).connect(enforcement)
        return
    shared.tasks["dns node announcement"] = lambda: shared.announcer.insist({NODE_LOCAL_DNS: ""})
    remove_rules()
    if section.node_local:
        problem = "the node's own DNS server needs the parts cni and policy of this agent; the cluster's servers answer"
        shared.degraded.report("dns node", FEATURE_MISSING, problem)


class NodeDnsPart:
    """The rules of one node, and what they follow: the DNS Service and the addresses of the node."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        namespace, _, name = shared.config.dns.service.partition("/")
        self._services: Informer[Service] = Informer(
            shared.client, SERVICES, namespace=namespace, field_selector=f"metadata.name={name}"
        )
        shared.events.follow_rejected(self._services)
        self._rules = NodeLocalRules(shared.clock, self._addresses, self._sources)
        self._rules.report = lambda problem: shared.degraded.report("dns node", FEATURE_MISSING, problem)
        self._services.subscribe(lambda *_: self._rules.changed())
        shared.nodes.subscribe(self._node_changed)

    def _addresses(self) -> tuple[str, ...] | None:
        if not self._services.synced.is_set():
            return None
        service = self._services.objects.get(self._shared.config.dns.service)
        return tuple(a for a in service.spec.cluster_ips if a != "None") if service is not None else ()

    def _sources(self) -> tuple[str, ...]:
        node = self._shared.own_node()
        return node.internal_ips if node is not None else ()

    def _node_changed(self, name: str, old: Node | None, new: Node | None) -> None:
        before, now = (node.internal_ips if node is not None else () for node in (old, new))
        if name == self._shared.config.node_name and before != now:
            self._rules.changed()

    def _shares(self) -> Iterable[Share]:
        if self._rules.desired:
            yield Share(part="dns", protocol=OWNER.route_protocol, desired=self._rules.desired)

    def _samples(self) -> Iterable[Sample]:
        for chain, count in self._rules.samples().items():
            if chain in _PROTOCOLS:
                yield Sample(_METRIC, _TEXT, count, {"protocol": _PROTOCOLS[chain]}, kind="counter")

    async def _announce(self) -> None:
        while True:
            self._rules.switched.clear()
            await self._shared.announcer.insist({NODE_LOCAL_DNS: "yes" if self._rules.desired else ""})
            await self._rules.switched.wait()

    def connect(self, enforcement: Enforcement) -> None:
        """Adds the tasks, metrics and state of the rules to the agent."""
        shared = self._shared
        enforcement.shortcuts.append(self._rules)
        kernel = shared.state_page.parts.get("dns")
        shared.state_page.parts["dns"] = lambda: [*(kernel() if kernel is not None else ()), *self._shares()]
        shared.health.metrics["dns node"] = self._samples
        shared.tasks |= {
            "dns service": self._services.run,
            "dns node": self._rules.run,
            "dns node announcement": self._announce,
        }
