"""Policies compiled to rules (pure).

Selectors become numbers of a :class:`~podwire.policy.selectors.SelectorIndex`; the owner of a
:class:`~podwire.policy.compiled.CompiledPolicy` releases them by its method ``release``. A rule with a field that this
version does not know fails closed: an Accept rule matches no peer, a Deny or Pass rule denies everything.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from podwire.model.meta import key_of
from podwire.model.policy import (
    ClusterEgressRule,
    ClusterIngressRule,
    ClusterNetworkPolicy,
    ClusterPeer,
    ClusterProtocol,
    EgressRule,
    IngressRule,
    IPBlock,
    NamespacedPods,
    NetworkPolicy,
    PolicyPeer,
    PolicyPort,
    ProtocolPorts,
)
from podwire.model.selector import LabelSelector
from podwire.policy.annotations import in_audit, log_of
from podwire.policy.compiled import CompiledPolicy, CompiledRule
from podwire.policy.ports import EVERY_PORT, EVERYTHING, PROTOCOLS, Range, Ranges, Selection, selection
from podwire.policy.selectors import PodSelector, SelectorIndex

INGRESS, EGRESS = "Ingress", "Egress"
DIRECTIONS = (INGRESS, EGRESS)


class _SelectorNumbers:
    """Takes the numbers of selectors from an index, and lists them."""

    def __init__(self, index: SelectorIndex) -> None:
        self._index = index
        self.numbers: list[int] = []

    def __call__(self, selector: PodSelector) -> int:
        number = self._index.take(selector)
        self.numbers.append(number)
        return number


def network_policy(policy: NetworkPolicy, index: SelectorIndex) -> CompiledPolicy:
    """A NetworkPolicy as rules."""
    take = _SelectorNumbers(index)
    namespace = policy.metadata.namespace
    spec = policy.spec
    rules_of: dict[str, tuple[IngressRule | EgressRule, ...]] = {INGRESS: spec.ingress, EGRESS: spec.egress}
    key = key_of(policy.metadata)
    rules = {
        direction: tuple(_rule(key, place, rule, namespace, take) for place, rule in enumerate(rules_of[direction]))
        for direction in DIRECTIONS
        if direction in spec.types
    }
    subject = take(PodSelector(namespace=namespace, pods=spec.pod_selector))
    compiled = CompiledPolicy(
        key=key,
        tier="Namespace",
        subject=subject,
        selects=index.text(subject),
        rules=rules,
        names=_names(rules),
        selector_numbers=tuple(take.numbers),
    )
    return _annotated(compiled, policy.metadata.annotations)


def cluster_network_policy(policy: ClusterNetworkPolicy, index: SelectorIndex) -> CompiledPolicy:
    """A ClusterNetworkPolicy as rules."""
    take = _SelectorNumbers(index)
    spec = policy.spec
    rules_of: dict[str, tuple[ClusterIngressRule | ClusterEgressRule, ...]] = {
        INGRESS: spec.ingress,
        EGRESS: spec.egress,
    }
    rules = {
        direction: tuple(
            _cluster_rule((spec.tier, policy.metadata.name, place), rule, direction, take)
            for place, rule in enumerate(rules_of[direction])
        )
        for direction in DIRECTIONS
    }
    subject = take(_pods(spec.subject.namespaces, spec.subject.pods))
    compiled = CompiledPolicy(
        key=policy.metadata.name,
        tier=spec.tier,
        priority=spec.priority,
        subject=subject,
        selects=index.text(subject),
        rules=rules,
        names=_names(rules),
        selector_numbers=tuple(take.numbers),
    )
    return _annotated(compiled, policy.metadata.annotations)


def _annotated(policy: CompiledPolicy, annotations: Mapping[str, str]) -> CompiledPolicy:
    """The policy and its rules with the mode and log setting of the annotations."""
    audit, log = in_audit(annotations), log_of(annotations)
    if not audit and not log:
        return policy
    rules = {
        direction: tuple(replace(rule, audit=audit, log=log) for rule in direction_rules)
        for direction, direction_rules in policy.rules.items()
    }
    return replace(policy, rules=rules, audit=audit, log=log)


def _names(rules: dict[str, tuple[CompiledRule, ...]]) -> dict[str, frozenset[str]]:
    return {
        direction: frozenset(name for rule in direction_rules for name, _ in rule.names)
        for direction, direction_rules in rules.items()
    }


def _rule(
    key: str, index: int, rule: IngressRule | EgressRule, namespace: str, take: Callable[..., int]
) -> CompiledRule:
    selectors = (_peer(peer, namespace) for peer in rule.peers)
    ports, names = _ports(rule.ports)
    return CompiledRule(
        tier="Namespace",
        policy=key,
        place=index,
        everyone=not rule.peers,
        selectors=frozenset(take(selector) for selector in selectors if selector is not None),
        blocks=tuple(peer.ip_block for peer in rule.peers if peer.ip_block is not None),
        ports=ports,
        names=names,
    )


def _peer(peer: PolicyPeer, namespace: str) -> PodSelector | None:
    """The selector of a peer's pods; None for a peer without selectors."""
    if peer.ip_block is not None or (peer.pod_selector is None and peer.namespace_selector is None):
        return None
    pods = peer.pod_selector or LabelSelector()
    if peer.namespace_selector is None:
        return PodSelector(namespace=namespace, pods=pods)
    return PodSelector(namespaces=peer.namespace_selector, pods=pods)


def _ports(ports: tuple[PolicyPort, ...]) -> tuple[Selection, tuple[tuple[str, str], ...]]:
    """The port numbers, and the named ports with their protocols."""
    if not ports:
        return EVERYTHING, ()
    numbers: dict[str, list[Range]] = {}
    names: list[tuple[str, str]] = []
    for port in ports:
        protocol = port.protocol or "TCP"
        if isinstance(port.port, str):
            names.append((port.port, protocol))
        elif port.port is None:
            numbers.setdefault(protocol, []).extend(EVERY_PORT)
        else:
            numbers.setdefault(protocol, []).append((port.port, port.end_port or port.port))
    return selection(numbers), tuple(names)


def _cluster_rule(
    where: tuple[str, str, int],
    rule: ClusterIngressRule | ClusterEgressRule,
    direction: str,
    take: Callable[..., int],
) -> CompiledRule:
    tier, policy, place = where
    if not all(peer.known for peer in rule.peers) or not all(entry.known for entry in rule.protocols):
        if rule.action == "Accept":
            return CompiledRule(tier=tier, policy=policy, place=place, action="Accept")
        return CompiledRule(tier=tier, policy=policy, place=place, action="Deny", everyone=True)
    pods = [peer for peer in rule.peers if peer.namespaces is not None or peer.pods is not None]
    external = [peer for peer in rule.peers if direction == EGRESS and peer not in pods]
    ports, names = _protocols(rule.protocols)
    return CompiledRule(
        tier=tier,
        policy=policy,
        place=place,
        action=rule.action,
        selectors=frozenset(take(_pods(peer.namespaces, peer.pods)) for peer in pods),
        blocks=tuple(IPBlock(cidr=cidr) for peer in external for cidr in peer.networks),
        nodes=tuple(_node_selectors(external)),
        ports=ports,
        names=names,
    )


def node_selector(text: str) -> LabelSelector:
    """The selector of nodes from its JSON form."""
    return msgspec.json.decode(text, type=LabelSelector)


def _node_selectors(peers: Iterable[ClusterPeer]) -> Iterable[str]:
    selectors = (peer.nodes for peer in peers if peer.nodes is not None)
    return (msgspec.json.encode(selector, order="deterministic").decode() for selector in selectors)


def _pods(namespaces: LabelSelector | None, pods: NamespacedPods | None) -> PodSelector:
    if namespaces is not None:
        return PodSelector(namespaces=namespaces)
    namespaced = pods or NamespacedPods()
    return PodSelector(namespaces=namespaced.namespace_selector, pods=namespaced.pod_selector)


def _protocols(protocols: tuple[ClusterProtocol, ...]) -> tuple[Selection, tuple[tuple[str, str], ...]]:
    if not protocols:
        return EVERYTHING, ()
    numbers: dict[str, list[Range]] = {}
    for entry in protocols:
        for protocol, ports in zip(PROTOCOLS, (entry.tcp, entry.udp, entry.sctp), strict=True):
            if ports is not None:
                numbers.setdefault(protocol, []).extend(_destination(ports))
    names = tuple((entry.destination_named_port, "") for entry in protocols if entry.destination_named_port)
    return selection(numbers), names


def _destination(ports: ProtocolPorts) -> Ranges:
    destination = ports.destination_port
    if destination is None:
        return EVERY_PORT
    if destination.number is not None:
        return ((destination.number, destination.number),)
    return ((destination.range.start, destination.range.end),) if destination.range is not None else ()
