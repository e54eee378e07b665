"""NetworkPolicy (``networking.k8s.io/v1``) and ClusterNetworkPolicy (``policy.networking.k8s.io/v1alpha2``).

In every list of peers and of ports, absent and empty mean the same: no restriction. A selector that is absent is not
part of its peer; an empty one selects everything.
"""

import msgspec

from podwire.model.meta import Fact, ObjectMeta
from podwire.model.selector import LabelSelector


class IPBlock(Fact, frozen=True):
    """A range of addresses with exceptions."""

    cidr: str
    excepted: tuple[str, ...] = msgspec.field(default=(), name="except")


class PolicyPeer(Fact, frozen=True):
    """Pods by their labels and those of their namespace, or addresses."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IPBlock | None = None


class PolicyPort(Fact, frozen=True):
    """One port by number or by a container port's name, all of a protocol (None), or a range up to ``end_port``."""

    protocol: str = "TCP"
    port: int | str | None = None
    end_port: int | None = None


class IngressRule(Fact, frozen=True):
    """Allowed sources and ports."""

    peers: tuple[PolicyPeer, ...] = msgspec.field(default=(), name="from")
    ports: tuple[PolicyPort, ...] = ()


class EgressRule(Fact, frozen=True):
    """Allowed destinations and ports."""

    peers: tuple[PolicyPeer, ...] = msgspec.field(default=(), name="to")
    ports: tuple[PolicyPort, ...] = ()


class NetworkPolicySpec(Fact, frozen=True):
    """The pods that a policy selects, and the traffic that it allows."""

    pod_selector: LabelSelector = LabelSelector()
    policy_types: tuple[str, ...] = ()
    ingress: tuple[IngressRule, ...] = ()
    egress: tuple[EgressRule, ...] = ()

    @property
    def types(self) -> tuple[str, ...]:
        """Ingress, Egress or both; without ``policyTypes`` Ingress, and Egress if there are egress rules."""
        return self.policy_types or (("Ingress", "Egress") if self.egress else ("Ingress",))


class NetworkPolicy(Fact, frozen=True):
    """``networking.k8s.io/v1`` NetworkPolicy."""

    api_version: str = "networking.k8s.io/v1"
    kind: str = "NetworkPolicy"
    metadata: ObjectMeta = ObjectMeta()
    spec: NetworkPolicySpec = NetworkPolicySpec()


class NamespacedPods(Fact, frozen=True):
    """Pods by their labels, in namespaces by theirs."""

    namespace_selector: LabelSelector = LabelSelector()
    pod_selector: LabelSelector = LabelSelector()


class ClusterSubject(Fact, frozen=True):
    """The pods of a cluster policy: all pods of namespaces, or selected pods of them."""

    namespaces: LabelSelector | None = None
    pods: NamespacedPods | None = None


class ClusterPeer(Fact, frozen=True):
    """One peer of a cluster policy: exactly one field is set.

    If none is set, the kind of peer is newer than this program: then Accept matches nothing, Deny and Pass become a
    Deny of everything.
    """

    namespaces: LabelSelector | None = None
    pods: NamespacedPods | None = None
    networks: tuple[str, ...] = ()
    """Egress only."""
    nodes: LabelSelector | None = None
    """Egress only."""

    @property
    def known(self) -> bool:
        """Whether this program knows the kind of the peer."""
        return self.namespaces is not None or self.pods is not None or bool(self.networks) or self.nodes is not None


class PortRange(Fact, frozen=True):
    """Both ends included."""

    start: int
    end: int


class DestinationPort(Fact, frozen=True):
    """A number or a range."""

    number: int | None = None
    range: PortRange | None = None


class ProtocolPorts(Fact, frozen=True):
    """Ports of one protocol; None means all of them."""

    destination_port: DestinationPort | None = None


class ClusterProtocol(Fact, frozen=True):
    """Exactly one field is set; none: a kind that is newer than this program, treated as :class:`ClusterPeer` says."""

    tcp: ProtocolPorts | None = None
    udp: ProtocolPorts | None = None
    sctp: ProtocolPorts | None = None
    destination_named_port: str = ""

    @property
    def known(self) -> bool:
        """Whether this program knows the kind of the protocol."""
        return bool(self.destination_named_port) or any(p is not None for p in (self.tcp, self.udp, self.sctp))


class ClusterIngressRule(Fact, frozen=True):
    """The verdict for traffic from these pods; ``action`` is Accept, Deny or Pass."""

    action: str
    name: str = ""
    peers: tuple[ClusterPeer, ...] = msgspec.field(default=(), name="from")
    protocols: tuple[ClusterProtocol, ...] = ()


class ClusterEgressRule(Fact, frozen=True):
    """The verdict for traffic to these peers; ``action`` is Accept, Deny or Pass."""

    action: str
    name: str = ""
    peers: tuple[ClusterPeer, ...] = msgspec.field(default=(), name="to")
    protocols: tuple[ClusterProtocol, ...] = ()


class ClusterNetworkPolicySpec(Fact, frozen=True):
    """Rules in order, for the pods of ``subject``; ``tier`` is Admin or Baseline, a lower ``priority`` goes first."""

    tier: str = ""
    priority: int = 0
    subject: ClusterSubject = ClusterSubject()
    ingress: tuple[ClusterIngressRule, ...] = ()
    egress: tuple[ClusterEgressRule, ...] = ()


class ClusterNetworkPolicy(Fact, frozen=True):
    """``policy.networking.k8s.io/v1alpha2`` ClusterNetworkPolicy."""

    api_version: str = "policy.networking.k8s.io/v1alpha2"
    kind: str = "ClusterNetworkPolicy"
    metadata: ObjectMeta = ObjectMeta()
    spec: ClusterNetworkPolicySpec = ClusterNetworkPolicySpec()
