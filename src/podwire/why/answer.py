"""What ``podwire why`` answers, as values: the form that all layers fill in and that text and JSON are made of.

An :class:`Answer` has a :class:`Hop` for each node that decides something about the connection, most often one. A hop
has steps in the order in which the packet meets them; each names its layer (``routing``, ``service``, ``policy``), so
that another layer adds its own steps and takes nothing away. Beside the hops stands what policies say of each end to
which they lead. The names of the fields are those of the JSON form and
stay: new ones may come, none changes its meaning. What has nothing to say is left out of the JSON.
"""

from typing import Literal

import msgspec

Outcome = Literal["forwarded", "refused", "dropped", "untouched"]
"""``untouched``: no rule of a Service takes it; it goes on to the address that it was sent to."""


class AnswerStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The settings that every struct of an answer shares."""


class ConnectionEnd(AnswerStruct, frozen=True, kw_only=True):
    """An end of the connection."""

    kind: Literal["Pod", "Node", "External", "Service", "Address"]
    name: str = ""
    """``namespace/name`` of a pod or Service, the name of a node; empty for a mere address."""
    address: str = ""
    port: int = 0
    node: str = ""
    """Where a pod runs."""

    def __str__(self) -> str:
        end = self.address
        if self.port and not end:
            end = f"port {self.port}"
        elif self.port:
            end = f"[{end}]:{self.port}" if ":" in end else f"{end}:{self.port}"
        who = f"{self.kind} {self.name}" if self.name else self.kind
        where = f" on {self.node}" if self.node else ""
        return f"{who} ({end}){where}" if end else f"{who}{where}"


class Step(AnswerStruct, frozen=True, kw_only=True):
    """One rule that the packet met, or one conclusion."""

    layer: Literal["routing", "service", "policy"]
    where: str
    """Hook, table and chain: ``prerouting: ip podwire-proxy dispatch``."""
    rule: str
    """As the kernel's own tool lists it."""
    elements: tuple[str, ...] = ()
    """What it found in sets and maps, as the kernel's own tool lists it."""
    object: str = ""
    """The API object that it is there for: ``Service shop/web``."""


class Reason(AnswerStruct, frozen=True, kw_only=True):
    """A conclusion: a word for programs and a sentence for people."""

    reason: str
    message: str


class SourceTranslation(Reason, frozen=True, kw_only=True):
    """Whether the endpoint sees the client's own address."""

    masqueraded: bool
    """Whether it sees the node's instead."""


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
    """``Name``: it has no address, DNS alone knows it."""
    policy: str = ""
    """What decides which endpoints may serve: ``internalTrafficPolicy: Cluster``."""
    also_claimed_by: tuple[str, ...] = ()
    """Other Services (``namespace/name``) that name the same address and port and do not have it."""


class EndpointChoice(AnswerStruct, frozen=True, kw_only=True):
    """One endpoint of that port."""

    address: str
    port: int
    used: bool
    reason: str
    """Ready, HintedForNode, HintedForZone, TerminatingFallback, NotReady, NotServing, Terminating, HintedForOtherNode,
    HintedForOtherZone, NotLocal, Duplicate, Affinity, NotInKernel or OnlyInKernel."""
    message: str
    probability: float
    """Of a new connection of this client."""
    masqueraded: bool
    """Whether it would see the node's address."""
    pod: str = ""
    node: str = ""
    zone: str = ""
    slice: str = ""


class AffinityState(AnswerStruct, frozen=True, kw_only=True):
    """Session affinity of the port, and what is remembered of this client."""

    timeout_seconds: int
    entries: tuple[str, ...] = ()
    """As the kernel lists them; none: the next connection chooses freely."""


class Drift(AnswerStruct, frozen=True, kw_only=True):
    """One line in which the kernel differs from what the API's objects mean."""

    where: str
    sign: Literal["+", "-"]
    """``+`` should be there and is not, ``-`` is there and should not be."""
    text: str


class Hop(AnswerStruct, frozen=True, kw_only=True):
    """What one node decides."""

    node: str
    mode: str
    """The data plane in force; empty where no rule takes part."""
    state: Literal["held", "planned"]
    """Whether the rules were read from the node's kernel, or made from the objects."""
    outcome: Outcome
    reason: str
    message: str
    service: ServiceMatch | None = None
    endpoints: tuple[EndpointChoice, ...] = ()
    snat: SourceTranslation | None = None
    affinity: AffinityState | None = None
    steps: tuple[Step, ...] = ()
    drift: tuple[Drift, ...] = ()
    flows: tuple[str, ...] = ()
    """Connections of this client to this target that the kernel knows: they keep their endpoint."""


class RuleTerm(AnswerStruct, frozen=True, kw_only=True):
    """A part of a rule: one of its peers or ports, or one term of a selector."""

    field: str
    """``spec.ingress[0].from[1].podSelector``."""
    text: str
    """``podSelector app=web``."""
    line: str = ""
    """``file:line``, where that is known."""
    found: str = ""
    """What there is instead, of a part that does not match: ``the pod has app=webb``."""


class RuleMatch(AnswerStruct, frozen=True, kw_only=True):
    """A rule of a policy, and by which of its peers and ports it matches."""

    tier: Literal["Admin", "Namespace", "Baseline"]
    policy: str
    """``namespace/name``; the name of a cluster policy."""
    field: str
    """``spec.ingress[0]``."""
    rule: int
    """Its place in that list."""
    name: str = ""
    """Of a cluster policy's rule, where it has one."""
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
    """The rule that comes nearest to allowing it, and what it misses."""

    rule: RuleMatch
    misses: tuple[RuleTerm, ...]


class PolicyReference(AnswerStruct, frozen=True, kw_only=True):
    """A policy."""

    policy: str
    line: str = ""

    def __str__(self) -> str:
        return f"{self.policy} ({self.line})" if self.line else self.policy


class DirectionVerdict(Reason, frozen=True, kw_only=True):
    """What policies say of one direction."""

    direction: Literal["Ingress", "Egress"]
    subject: str
    """Whose policies are asked: ``namespace/name``, ``node NAME`` or an address."""
    peer: str
    """The other end, as it is seen there."""
    node: str = ""
    """Where that is decided."""
    allowed: bool
    tier: str = ""
    """Admin, Namespace or Baseline; empty: no policy had a say."""
    rule: RuleMatch | None = None
    """The rule that decided; None: isolated and no rule allows, or no policy had a say."""
    isolated_by: tuple[PolicyReference, ...] = ()
    passed: tuple[RuleMatch, ...] = ()
    """Rules of cluster policies that left it to the next tier."""
    nearest: NearestRule | None = None
    audited_by: tuple[str, ...] = ()
    """Policies in audit to which a denial would be due."""
    audit: "DirectionVerdict | None" = None
    """What it would be if the policies in audit were in force, where that is a denial."""


class NodeEnforcement(AnswerStruct, frozen=True, kw_only=True):
    """What the rules of one node make of it."""

    node: str
    mode: str
    """The policy data plane."""
    state: Literal["held", "planned"]
    outcome: Literal["allowed", "dropped"]
    drifted: bool = False
    """Whether the rules in force are not those that should be, and it comes out otherwise."""
    steps: tuple[Step, ...] = ()
    drift: tuple[Drift, ...] = ()


class PolicyVerdict(AnswerStruct, frozen=True, kw_only=True):
    """What policies make of one end that the connection may come to, behind all Services."""

    address: str
    port: int
    pod: str = ""
    probability: float = 1.0
    """Of a new connection to come to this end."""
    outcome: Literal["allowed", "dropped"]
    message: str
    """All of it in one line."""
    egress: DirectionVerdict
    ingress: DirectionVerdict
    nodes: tuple[NodeEnforcement, ...] = ()
    """The nodes on the way, in its order."""


class Finding(AnswerStruct, frozen=True, kw_only=True):
    """What a part says of the connection that has no struct of its own here."""

    part: str
    """The part's name in the registry of explainers: ``routing``."""
    message: str
    steps: tuple[Step, ...] = ()
    """The rules that decided it, in the order in which the packet met them."""


class Answer(AnswerStruct, frozen=True, kw_only=True):
    """The whole answer."""

    source: ConnectionEnd = msgspec.field(name="from")
    target: ConnectionEnd = msgspec.field(name="to")
    protocol: str
    outcome: Outcome
    hops: tuple[Hop, ...]
    policies: tuple[PolicyVerdict, ...] = ()
    """For each end that Services leave; empty where policies were not asked."""
    findings: tuple[Finding, ...] = ()
    """What other parts say of it."""
    notes: tuple[str, ...] = ()
    """What the reader should know of how the answer was found."""

    @property
    def drifted(self) -> bool:
        """Whether the rules of a node lead elsewhere than those that it should have."""
        enforced = (node for one in self.policies for node in one.nodes)
        return any(hop.drift for hop in self.hops) or any(node.drifted for node in enforced)
