"""Constructs the rules that lead pods to the node's own DNS server, where the configuration asks for them."""

from collections.abc import Iterable

from podwire.agent.shared import Shared
from podwire.cluster.degraded import FEATURE_MISSING
from podwire.cluster.names import NODE_LOCAL_DNS
from podwire.dns.nodelocal.plan import OWNER
from podwire.dns.nodelocal.runner import NodeLocalRules, remove_rules
from podwire.errors import Unsupported
from podwire.kube.informer import Informer
from podwire.kube.resources import SERVICES
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
        _connect(shared, enforcement)
        return
    try:
        remove_rules()
    except Unsupported:
        pass  # A kernel without nf_tables has no rules.
    if section.node_local:
        problem = "the node's own DNS server needs the parts cni and policy of this agent; the cluster's servers answer"
        shared.degraded.report("dns node", FEATURE_MISSING, problem)


def _connect(shared: Shared, enforcement: Enforcement) -> None:
    section = shared.config.dns
    namespace, _, name = section.service.partition("/")
    services: Informer[Service] = Informer(
        shared.client, SERVICES, namespace=namespace, field_selector=f"metadata.name={name}"
    )

    def addresses() -> tuple[str, ...] | None:
        if not services.synced.is_set():
            return None
        service = services.objects.get(section.service)
        return tuple(a for a in service.spec.cluster_ips if a != "None") if service is not None else ()

    def sources() -> tuple[str, ...]:
        node = shared.own_node()
        return node.internal_ips if node is not None else ()

    rules = NodeLocalRules(shared.clock, addresses, sources)
    rules.report = lambda problem: shared.degraded.report("dns node", FEATURE_MISSING, problem)
    services.subscribe(lambda *_: rules.changed())
    enforcement.shortcuts.append(rules)
    kernel = shared.state_page.parts.get("dns")

    def shares() -> Iterable[Share]:
        if kernel is not None:
            yield from kernel()
        if rules.desired:
            yield Share(part="dns", protocol=OWNER.route_protocol, desired=rules.desired)

    async def announce() -> None:
        while True:
            rules.switched.clear()
            await shared.announcer.insist({NODE_LOCAL_DNS: "yes" if rules.desired else ""})
            await rules.switched.wait()

    shared.state_page.parts["dns"] = shares
    shared.health.metrics["dns node"] = lambda: [
        Sample(_METRIC, _TEXT, count, {"protocol": _PROTOCOLS[chain]}, kind="counter")
        for chain, count in rules.samples().items()
        if chain in _PROTOCOLS
    ]
    shared.tasks |= {"dns service": services.run, "dns node": rules.run, "dns node announcement": announce}
