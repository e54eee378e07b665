"""NetworkPolicies and ClusterNetworkPolicies in one form, with the path of each field (pure)."""

from collections.abc import Iterator

import msgspec

from podwire.model.meta import ObjectMeta, key_of
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
from podwire.policy.annotations import in_audit
from podwire.policy.check.finding import KINDS, Finding
from podwire.policy.check.scope import Scope, scope
from podwire.policy.ports import EVERYTHING, LAST_PORT, PROTOCOLS, Selection, selection
from podwire.policy.selectors import PodSelector

INGRESS, EGRESS = "Ingress", "Egress"


class PortOutline(msgspec.Struct, frozen=True, kw_only=True):
    """One port of a rule."""

    path: str
    protocol: str
    """Empty: any protocol, for a port by name."""
    first: int = 0
    last: int = LAST_PORT
    name: str = ""

    @property
    def number(self) -> int | None:
        """The port number of a single port; None for a range and for a port by name."""
        return self.first if not self.name and self.first == self.last else None


class PeerOutline(msgspec.Struct, frozen=True, kw_only=True):
    """One peer of a rule; all fields empty: a peer of an unknown kind."""

    path: str
    pods: PodSelector | None = None
    pods_path: str = ""
    """The path of the selector of pods."""
    namespaces_path: str = ""
    """The path of the selector of namespaces."""
    blocks: tuple[tuple[str, IPBlock], ...] = ()
    """The ipBlocks with their paths."""
    scope: Scope = Scope()
    """The scope of :attr:`pods`."""
    nodes: LabelSelector | None = None


class RuleOutline(msgspec.Struct, frozen=True, kw_only=True):
    """One rule."""

    direction: str
    place: int
    path: str
    action: str = "Accept"
    peers: tuple[PeerOutline, ...] = ()
    everyone: bool = False
    """Whether the rule matches every peer."""
    known: bool = True
    """False: the rule has a peer or a port of an unknown kind."""
    ports: tuple[PortOutline, ...] = ()
    """Empty: all ports of all protocols."""

    numbers: Selection = EVERYTHING
    """The ports of the rule, without ports by name."""
    names: frozenset[tuple[str, str]] = frozenset()
    """The ports by name, with their protocols."""


def _numbers_of(ports: tuple[PortOutline, ...]) -> Selection:
    if not ports:
        return EVERYTHING
    ranges: dict[str, list[tuple[int, int]]] = {}
    for port in ports:
        if not port.name:
            ranges.setdefault(port.protocol, []).append((port.first, port.last))
    return selection(ranges)


def _names_of(ports: tuple[PortOutline, ...]) -> frozenset[tuple[str, str]]:
    return frozenset((port.name, port.protocol) for port in ports if port.name)


class PolicyOutline(msgspec.Struct, frozen=True, kw_only=True):
    """One policy."""

    kind: str
    meta: ObjectMeta
    tier: str
    priority: int = 0
    subject: PodSelector
    scope: Scope
    """The scope of the subject."""
    subject_path: str
    types: tuple[str, ...]
    """The directions in which the policy isolates; both for a cluster policy."""
    rules: tuple[RuleOutline, ...]
    """The rules of the directions in :attr:`types`."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return key_of(self.meta)

    @property
    def name(self) -> str:
        """``kind namespace/name``."""
        return f"{self.kind} {self.key}"

    @property
    def audit(self) -> bool:
        """Whether the policy is in audit, and so not in force."""
        return in_audit(self.meta.annotations)

    def heeds(self, other: "PolicyOutline") -> bool:
        """Whether another policy counts beside this one: a policy in audit counts only beside policies in audit."""
        return self.audit or not other.audit

    def of(self, direction: str) -> tuple[RuleOutline, ...]:
        """The rules of a direction."""
        return tuple(rule for rule in self.rules if rule.direction == direction)

    def finding(self, name: str, field: str, text: str, severity: str = "") -> Finding:
        """A finding about this policy; without ``severity``, with the severity of its kind."""
        return Finding(
            id=name, severity=severity or KINDS[name][0], kind=self.kind, name=self.key, field=field, text=text
        )


def outline(policy: NetworkPolicy) -> PolicyOutline:
    """A NetworkPolicy."""
    spec = policy.spec
    namespace = policy.metadata.namespace
    rules: list[RuleOutline] = []
    sections: tuple[tuple[str, str, str, tuple[IngressRule | EgressRule, ...]], ...] = (
        (INGRESS, "ingress", "from", spec.ingress),
        (EGRESS, "egress", "to", spec.egress),
    )
    for direction, section, peers_field, section_rules in sections:
        for place, rule in enumerate(section_rules if direction in spec.types else ()):
            path = f"spec.{section}[{place}]"
            peers = (_peer(peer, namespace, f"{path}.{peers_field}[{i}]") for i, peer in enumerate(rule.peers))
            ports = tuple(_port(port, f"{path}.ports[{i}]") for i, port in enumerate(rule.ports))
            rules.append(
                RuleOutline(
                    direction=direction,
                    place=place,
                    path=path,
                    peers=tuple(peers),
                    everyone=not rule.peers,
                    ports=ports,
                    numbers=_numbers_of(ports),
                    names=_names_of(ports),
                )
            )
    subject = PodSelector(namespace=namespace, pods=spec.pod_selector)
    return PolicyOutline(
        kind="NetworkPolicy",
        meta=policy.metadata,
        tier="Namespace",
        subject=subject,
        scope=scope(subject),
        subject_path="spec.podSelector",
        types=spec.types,
        rules=tuple(rules),
    )


def _peer(peer: PolicyPeer, namespace: str, path: str) -> PeerOutline:
    if peer.ip_block is not None:
        return PeerOutline(path=path, blocks=((f"{path}.ipBlock", peer.ip_block),))
    if peer.namespace_selector is None:
        own = PodSelector(namespace=namespace, pods=peer.pod_selector or LabelSelector())
        return PeerOutline(path=path, pods=own, scope=scope(own), pods_path=f"{path}.podSelector")
    pods = PodSelector(namespaces=peer.namespace_selector, pods=peer.pod_selector or LabelSelector())
    return PeerOutline(
        path=path,
        pods=pods,
        scope=scope(pods),
        pods_path=f"{path}.podSelector" if peer.pod_selector is not None else path,
        namespaces_path=f"{path}.namespaceSelector",
    )


def _port(port: PolicyPort, path: str) -> PortOutline:
    protocol = port.protocol or "TCP"
    if isinstance(port.port, str):
        return PortOutline(path=path, protocol=protocol, name=port.port)
    if port.port is None:
        return PortOutline(path=path, protocol=protocol)
    return PortOutline(path=path, protocol=protocol, first=port.port, last=port.end_port or port.port)


def outline_cluster(policy: ClusterNetworkPolicy) -> PolicyOutline:
    """A ClusterNetworkPolicy."""
    spec = policy.spec
    of_namespaces = spec.subject.namespaces is not None
    sections: tuple[tuple[str, str, str, tuple[ClusterIngressRule | ClusterEgressRule, ...]], ...] = (
        (INGRESS, "ingress", "from", spec.ingress),
        (EGRESS, "egress", "to", spec.egress),
    )
    rules = tuple(
        _cluster_rule(rule, direction, place, f"spec.{section}[{place}]", peers_field)
        for direction, section, peers_field, section_rules in sections
        for place, rule in enumerate(section_rules)
    )
    subject = _pods(spec.subject.namespaces, spec.subject.pods)
    return PolicyOutline(
        kind="ClusterNetworkPolicy",
        meta=policy.metadata,
        tier=spec.tier,
        priority=spec.priority,
        subject=subject,
        scope=scope(subject),
        subject_path="spec.subject.namespaces" if of_namespaces else "spec.subject.pods",
        types=(INGRESS, EGRESS),
        rules=rules,
    )


def _cluster_rule(
    rule: ClusterIngressRule | ClusterEgressRule, direction: str, place: int, path: str, peers_field: str
) -> RuleOutline:
    known = all(peer.known for peer in rule.peers) and all(entry.known for entry in rule.protocols)
    ports = tuple(port for i, entry in enumerate(rule.protocols) for port in _protocol(entry, path, i))
    return RuleOutline(
        direction=direction,
        place=place,
        path=path,
        action=rule.action if known or rule.action == "Accept" else "Deny",
        peers=tuple(_cluster_peer(peer, f"{path}.{peers_field}[{i}]") for i, peer in enumerate(rule.peers)),
        everyone=not known and rule.action != "Accept",
        known=known,
        ports=ports,
        numbers=_numbers_of(ports),
        names=_names_of(ports),
    )


def _cluster_peer(peer: ClusterPeer, path: str) -> PeerOutline:
    if peer.namespaces is not None or peer.pods is not None:
        of_namespaces = peer.namespaces is not None
        pods = _pods(peer.namespaces, peer.pods)
        return PeerOutline(
            path=path,
            pods=pods,
            scope=scope(pods),
            pods_path=path if of_namespaces else f"{path}.pods.podSelector",
            namespaces_path=f"{path}.namespaces" if of_namespaces else f"{path}.pods.namespaceSelector",
        )
    blocks = tuple((f"{path}.networks[{i}]", IPBlock(cidr=cidr)) for i, cidr in enumerate(peer.networks))
    return PeerOutline(path=path, blocks=blocks, nodes=peer.nodes)


def _pods(namespaces: LabelSelector | None, pods: NamespacedPods | None) -> PodSelector:
    if namespaces is not None:
        return PodSelector(namespaces=namespaces)
    namespaced = pods or NamespacedPods()
    return PodSelector(namespaces=namespaced.namespace_selector, pods=namespaced.pod_selector)


def _protocol(entry: ClusterProtocol, path: str, number: int) -> Iterator[PortOutline]:
    entry_path = f"{path}.protocols[{number}]"
    if entry.destination_named_port:
        yield PortOutline(path=f"{entry_path}.destinationNamedPort", protocol="", name=entry.destination_named_port)
    for protocol, ports in zip(PROTOCOLS, (entry.tcp, entry.udp, entry.sctp), strict=True):
        if ports is not None:
            first, last = _numbers(ports)
            yield PortOutline(path=f"{entry_path}.{protocol.lower()}", protocol=protocol, first=first, last=last)


def _numbers(ports: ProtocolPorts) -> tuple[int, int]:
    destination = ports.destination_port
    if destination is None:
        return 0, LAST_PORT
    if destination.range is not None:
        return destination.range.start, destination.range.end
    number = destination.number if destination.number is not None else -1
    return (number, number) if number >= 0 else (1, 0)
