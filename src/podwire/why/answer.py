"""The answer of ``podwire why`` as values: explainers fill it in, and text and JSON are made of it (pure).

An :class:`Answer` has a :class:`Hop` for each node that decides something about the connection, usually one. A hop has
steps in the order in which the packet meets them; each step names its layer (``routing``, ``service``, ``policy``).
``policies`` has the verdict of policies for each end to which the hops lead, ``routes`` the routes between nodes. The
field names are those of the JSON form and are stable: fields may be added, but no field changes its meaning. Empty
fields are left out of the JSON.
"""

from typing import Literal

import msgspec

Outcome = Literal["forwarded", "refused", "dropped", "untouched"]
"""``untouched``: no rule of a Service matches; the packet goes on to the address that it was sent to."""


class AnswerStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of every struct of an answer: keys in camelCase, empty fields left out."""


class ConnectionEnd(AnswerStruct, frozen=True, kw_only=True):
    """An end of the connection."""

    kind: Literal["Pod", "Node", "External", "Service", "Address"]
    name: str = ""
    """``namespace/name`` of a pod or Service, or the name of a node; empty for an address alone."""
    address: str = ""
    port: int = 0
    node: str = ""
    """The node of a pod."""

    def __str__(self) -> str:
        end = self.address
        if self.port and not end:
            end = f"port {self.port}"
        elif self.port:
            end = f"[{end}]:{self.port}" if ":" in end else f"{end}:{self.port}"
        name = f"{self.kind} {self.name}" if self.name else self.kind
        where = f" on {self.node}" if self.node else ""
        return f"{name} ({end}){where}" if end else f"{name}{where}"


class MatchedRule(AnswerStruct, frozen=True, kw_only=True):
    """One rule that the packet matched."""

    layer: Literal["routing", "service", "policy"]
    where: str
    """Hook, table and chain: ``prerouting: ip podwire-proxy dispatch``."""
    rule: str
    """As the kernel's own tool lists it."""
    elements: tuple[str, ...] = ()
    """The elements of sets and maps that matched, as the kernel's own tool lists them."""
    object: str = ""
    """The API object that the rule serves: ``Service shop/web``."""


class Reason(AnswerStruct, frozen=True, kw_only=True):
    """A conclusion: a word for programs and a sentence for people."""

    reason: str
    message: str


class SourceTranslation(Reason, frozen=True, kw_only=True):
    """Whether the endpoint sees the client's own address."""

    masqueraded: bool
    """Whether the endpoint sees the address of the node instead."""


class ServiceMatch(AnswerStruct, frozen=True, kw_only=True):
    """The port of a Service that the packet is for."""

    namespace: str
    name: str
    type: str
    port_name: str = ""
    port: int
    protocol: str
    """TCP, UDP or SCTP."""
    frontend: Literal["ClusterIP", "NodePort", "LoadBalancerIP", "ExternalIP", "Name"]
    """How the packet reaches the Service. ``Name``: the Service has no address, only DNS knows it."""
    policy: str = ""
    """The field that decides which endpoints may serve: ``internalTrafficPolicy: Cluster``."""
    also_claimed_by: tuple[str, ...] = ()
    """Other Services (``namespace/name``) that claim the same address and port but do not get it."""


class EndpointChoice(AnswerStruct, frozen=True, kw_only=True):
    """One endpoint of the Service port."""

    address: str
    port: int
    used: bool
    reason: str
    """Ready, HintedForNode, HintedForZone, TerminatingFallback, NotReady, NotServing, Terminating, HintedForOtherNode,
    HintedForOtherZone, NotLocal, Duplicate, Affinity, NotInKernel or OnlyInKernel."""
    message: str
    probability: float
    """The probability that a new connection of this client goes to the endpoint."""
    masqueraded: bool
    """Whether the endpoint would see the address of the node."""
    pod: str = ""
    node: str = ""
    zone: str = ""
    slice: str = ""


class AffinityState(AnswerStruct, frozen=True, kw_only=True):
    """The session affinity of the port, and the kernel's entries for this client."""

    timeout_seconds: int
    entries: tuple[str, ...] = ()
    """Entries as the kernel lists them; empty: the next connection may go to any endpoint."""


class Drift(AnswerStruct, frozen=True, kw_only=True):
    """One line in which the rules in the kernel differ from the planned rules."""

    where: str
    sign: Literal["+", "-"]
    """``+``: missing in the kernel. ``-``: in the kernel, but not planned."""
    text: str


class Hop(AnswerStruct, frozen=True, kw_only=True):
    """The decisions of one node."""

    node: str
    mode: str
    """The data plane in force; empty: no rules are involved."""
    state: Literal["held", "planned"]
    """``held``: the rules were read from the node's kernel. ``planned``: they were made from the objects."""
    outcome: Outcome
    reason: str
    message: str
    service: ServiceMatch | None = None
    endpoints: tuple[EndpointChoice, ...] = ()
    snat: SourceTranslation | None = None
    affinity: AffinityState | None = None
    steps: tuple[MatchedRule, ...] = ()
    drift: tuple[Drift, ...] = ()
    flows: tuple[str, ...] = ()
    """Connections of this client to this target that the kernel tracks; they keep their endpoint."""


class RuleTerm(AnswerStruct, frozen=True, kw_only=True):
    """One peer or port of a rule, or one term of a selector."""

    field: str
    """``spec.ingress[0].from[1].podSelector``."""
    text: str
    """``podSelector app=web``."""
    line: str = ""
    """``file:line``; empty: not known."""
    found: str = ""
    """For a part that does not match, the value in the cluster instead: ``the pod has app=webb``."""


class RuleMatch(AnswerStruct, frozen=True, kw_only=True):
    """A rule of a policy, with the peer and the port that match."""

    tier: Literal["Admin", "Namespace", "Baseline"]
    policy: str
    """``namespace/name``; the name of a cluster policy."""
    field: str
    """``spec.ingress[0]``."""
    rule: int
    """The index of the rule in that list."""
    name: str = ""
    """The name of a cluster policy's rule; empty: it has none."""
    action: Literal["Accept", "Deny", "Pass"]
    line: str = ""
    text: str = ""
    """The rule as YAML."""
    peer: RuleTerm | None = None
    """None: the rule has no peers, or none of them matches."""
    port: RuleTerm | None = None
    """None: the rule has no ports, or none of them matches."""

    def __str__(self) -> str:
        named = f' "{self.name}"' if self.name else ""
        line = f" ({self.line})" if self.line else ""
        return f"{self.policy} {self.field.removeprefix('spec.')}{named}{line}"


class NearestRule(AnswerStruct, frozen=True, kw_only=True):
    """A rule that is among the nearest to allowing the connection, and its parts that do not match."""

    rule: RuleMatch
    misses: tuple[RuleTerm, ...]


class PolicyReference(AnswerStruct, frozen=True, kw_only=True):
    """The name of a policy and its line."""

    policy: str
    line: str = ""

    def __str__(self) -> str:
        return f"{self.policy} ({self.line})" if self.line else self.policy


class DirectionVerdict(Reason, frozen=True, kw_only=True):
    """The verdict of policies in one direction."""

    direction: Literal["Ingress", "Egress"]
    subject: str
    """The end whose policies decide: ``namespace/name``, ``node NAME`` or an address."""
    peer: str
    """The other end, as the node of the subject sees it."""
    node: str = ""
    """The node that decides."""
    allowed: bool
    tier: str = ""
    """Admin, Namespace or Baseline; empty: no policy applied."""
    rule: RuleMatch | None = None
    """The rule that decided; None: the subject is isolated and no rule allows it, or no policy applied."""
    isolated_by: tuple[PolicyReference, ...] = ()
    passed: tuple[RuleMatch, ...] = ()
    """Rules of cluster policies that passed the decision to the next tier."""
    nearest: tuple[NearestRule, ...] = ()
    """For a denial because no rule allows: up to three rules, nearest first."""
    audited_by: tuple[str, ...] = ()
    """Policies in audit that would deny the connection."""
    audit: "DirectionVerdict | None" = None
    """The verdict if the policies in audit were in force; None: the connection would be allowed."""


class NodeEnforcement(AnswerStruct, frozen=True, kw_only=True):
    """The outcome of the packet by the rules of one node."""

    node: str
    mode: str
    """The policy data plane."""
    state: Literal["held", "planned"]
    outcome: Literal["allowed", "dropped"]
    drifted: bool = False
    """Whether the rules in force differ from the planned rules and lead to another outcome."""
    steps: tuple[MatchedRule, ...] = ()
    drift: tuple[Drift, ...] = ()


class PolicyVerdict(AnswerStruct, frozen=True, kw_only=True):
    """The verdict of policies for one end that the connection may reach, after the translation by Services."""

    address: str
    port: int
    pod: str = ""
    probability: float = 1.0
    """The probability that a new connection reaches this end."""
    outcome: Literal["allowed", "dropped"]
    message: str
    """The whole verdict in one line."""
    egress: DirectionVerdict
    ingress: DirectionVerdict
    nodes: tuple[NodeEnforcement, ...] = ()
    """The nodes on the route, in the order of the packet."""


class ExplainerFinding(AnswerStruct, frozen=True, kw_only=True):
    """The result of an explainer that has no field of its own in the answer."""

    part: str
    """The part's name in the registry of explainers: ``routing``."""
    message: str
    outcome: Literal["", "refused"] = ""
    """The outcome of the connection because of this part; empty: the part does not end it."""
    steps: tuple[MatchedRule, ...] = ()
    """The rules that decided it, in the order in which the packet met them."""


class TunnelHeader(AnswerStruct, frozen=True, kw_only=True):
    """The outer header of packets in a tunnel, and the route that they take."""

    protocol: str
    """VXLAN, Geneve, WireGuard or IP in IP."""
    id: int = 0
    """The virtual network identifier."""
    port: int = 0
    """The UDP destination port; 0: the protocol has no ports."""
    source: str
    destination: str
    encrypted: bool = False
    device: str = ""
    """The device of the outer packets."""
    gateway: str = ""
    """The router to which outer packets go; empty: the destination is on the device's own network."""


class NodeRoute(AnswerStruct, frozen=True, kw_only=True):
    """The route of packets from one node to a pod of another node."""

    direction: Literal["request", "reply"]
    """``reply``: the route back, to the client."""
    node: str
    peer: str
    """The node of the pod."""
    backend: str
    """The routing backend that sends to the peer; empty: another program routes."""
    state: Literal["held", "planned"]
    address: str
    """The address of the pod."""
    network: str = ""
    """The pod network of the address, with its VLAN; empty: the cluster has only one network."""
    route: str = ""
    """The route that the packet takes, in the words of ip(8); empty: there is none."""
    device: str = ""
    mtu: int = 0
    """Bytes; 0: not known."""
    tunnel: TunnelHeader | None = None
    missing: tuple[str, ...] = ()
    """Why no packet arrives."""
    drift: tuple[Drift, ...] = ()
    """Routes, neighbours, forwarding entries and devices for the peer that differ from the plan."""

    @property
    def lost(self) -> bool:
        """Whether packets do not arrive."""
        return bool(self.missing)


class Answer(AnswerStruct, frozen=True, kw_only=True):
    """The whole answer."""

    source: ConnectionEnd = msgspec.field(name="from")
    target: ConnectionEnd = msgspec.field(name="to")
    protocol: str
    outcome: Outcome
    hops: tuple[Hop, ...]
    policies: tuple[PolicyVerdict, ...] = ()
    """One for each end that the connection may reach; empty: no end is reached."""
    routes: tuple[NodeRoute, ...] = ()
    """The ways between nodes; empty: the connection stays on one node, or leaves the pod networks."""
    findings: tuple[ExplainerFinding, ...] = ()
    """The results of further explainers."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader about the sources of the answer."""

    @property
    def drifted(self) -> bool:
        """Whether the rules or routes of a node lead to other ends than the desired ones."""
        enforced = (node for verdict in self.policies for node in verdict.nodes)
        routed = any(route.drift or route.lost for route in self.routes)
        return routed or any(hop.drift for hop in self.hops) or any(node.drifted for node in enforced)
