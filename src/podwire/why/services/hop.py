"""The outcome of the first packet of a connection to a Service on one node, with the reasons (pure).

Facts come from the rules (:class:`~podwire.trace.packet.Tracer`): the tracer follows every branch of a random choice,
which gives the endpoints with their probabilities and masquerade. Reasons come from the objects (``decision`` for the
connection, ``proxy.resolve`` for each endpoint). The planned rules are traced, too; when held and planned rules lead to
different ends, the steps that differ are the drift.

Cost: a walk of the rules for each endpoint, twice.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from podwire.model.service import EndpointSlice, Service, ServicePort
from podwire.model.wording import percent
from podwire.proxy.nodeports import localhost_node_ports
from podwire.proxy.resolve import Candidate, ExplainedEndpoint, explain, resolve, survey
from podwire.proxy.servicemap import IptablesSettings, NodeFacts, ResolvedPort
from podwire.trace.packet import RELAY, LocalAddresses, Outcome, Packet, Tracer
from podwire.why.answer import (
    AffinityState,
    Drift,
    EndpointChoice,
    Hop,
    MatchedRule,
    Reason,
    ServiceMatch,
    SourceTranslation,
)
from podwire.why.answer import Outcome as OutcomeName
from podwire.why.services.decision import ServiceDecision, decide
from podwire.why.services.endpoints import explain_endpoints
from podwire.why.services.matching import Matched, find

ServiceWithSlices = tuple[Service, tuple[EndpointSlice, ...]]
"""A Service and its EndpointSlices."""

End = tuple[OutcomeName, str, int, bool]
"""The end of a connection: outcome, address and port after translation, and whether it is masqueraded."""

_RELAYED = "the relay opens a connection of its own to the endpoint, from the node's address"
_OUT = "packets from a pod to an address outside the pod network get the node's address"
_FAMILIES = {"ip": "IPv4", "ip6": "IPv6"}


class ServiceRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for Services of one node; a tracer is None when the data plane cannot be traced or read."""

    mode: str
    facts: NodeFacts
    machine: LocalAddresses
    planned: Tracer | None = None
    held: Tracer | None = None
    other_nat: Tracer | None = None
    """The tables after those of Services: masquerade of packets that leave the cluster, and hostPort."""
    notes: tuple[str, ...] = ()
    """Remarks for the reader about how the rules were read."""


def explain_hop(packet: Packet, backed: Iterable[ServiceWithSlices], view: ServiceRules) -> tuple[Hop, Packet]:
    """The hop of the node, and the packet as it leaves the node if no Service translates it."""
    return _Explainer(packet, {f"{s.metadata.namespace}/{s.metadata.name}": (s, p) for s, p in backed}, view).run()


def end_of(outcome: Outcome) -> End:
    """The end of an outcome of a trace."""
    packet = outcome.packet
    if outcome.verdict in ("drop", "reject"):
        return ("dropped" if outcome.verdict == "drop" else "refused"), "", 0, False
    if not outcome.translated:
        return "untouched", "", 0, outcome.masqueraded
    return "forwarded", packet.destination, packet.destination_port, outcome.masqueraded


class _Explainer:
    """Builds the hop of one node: outcome, Service, endpoints, source translation, steps and drift."""

    def __init__(self, packet: Packet, backed: Mapping[str, ServiceWithSlices], view: ServiceRules) -> None:
        self.packet = packet
        self.view = view
        self.backed = backed
        self.services = {key: resolve(service, slices, view.facts) for key, (service, slices) in backed.items()}
        facts = view.facts
        if view.mode != "iptables":
            facts = msgspec.structs.replace(facts, iptables=IptablesSettings(localhost_node_ports=False))
        fronts = find(self.services, facts, view.machine, packet)
        tracer = view.held or view.planned
        self.outcomes = [] if tracer is None else list(tracer.outcomes(packet))
        self.planned = self.outcomes
        if view.held is not None and view.planned is not None:
            self.planned = list(view.planned.outcomes(packet))
        self.hidden: set[str] = set()
        """Endpoints for which routing masquerades although the Service does not."""
        self._routes_loopback = localhost_node_ports(facts)
        self.ends = self._chances()
        self.fronts = fronts
        self.front = self._in_force()
        self.decision = decide(self.front, packet, view.facts, view.machine, self.services)
        if not self.ends:
            self.ends = _expected(self.decision, packet, view.machine)

    def _in_force(self) -> Matched | None:
        """The frontend whose endpoints the rules use, of Services that share an address and port."""
        reached = {(address, port) for _, address, port, _ in self.ends}
        for front in self.fronts:
            used = (*front.port.cluster_endpoints, *front.port.local_endpoints)
            if reached & {(e.address, e.port) for e in used}:
                return front
        return self.fronts[0] if self.fronts else None

    def run(self) -> tuple[Hop, Packet]:
        """The hop of this node, and the packet as it leaves the node."""
        chances = _by_outcome(self.ends)
        outcome = max(chances, key=lambda name: chances[name])
        drift = _drift(self.planned, self.outcomes, self.fronts)
        reason = self._reason(outcome, chances, drift)
        snat, leaving = self._snat(outcome)
        return Hop(
            node=self.view.facts.name,
            mode=self.view.mode,
            state="held" if self.view.held is not None else "planned",
            outcome=outcome,
            reason=reason.reason,
            message=reason.message,
            service=self._service(),
            endpoints=self._endpoints(outcome),
            snat=snat,
            affinity=self._affinity(),
            steps=self._steps(),
            drift=drift,
        ), leaving

    def _reason(self, outcome: OutcomeName, chances: Mapping[OutcomeName, float], drift: Sequence[Drift]) -> Reason:
        if outcome == "dropped" and self.decision.outcome == "forwarded" and self._from_loopback:
            return Reason(reason="LoopbackSource", message=f"the kernel sends no packet from {self.packet.source} out")
        if set(chances) == {self.decision.outcome} and not drift:
            return self._host_port() or self.decision.reason
        rest = ", ".join(f"{name} in {percent(share)}" for name, share in chances.items() if name != outcome)
        often = f"{outcome} in {percent(chances[outcome])} of connections, {rest}; " if rest else ""
        should = f"by the objects it is {self.decision.outcome}: {self.decision.reason.message}"
        if drift:
            return Reason(reason="Drift", message=f"{often}the rules in force differ from the planned rules; {should}")
        return Reason(reason="Mode", message=f"{often}mode {self.view.mode} does this on purpose; {should}")

    def _service(self) -> ServiceMatch | None:
        front = self.front
        if front is None:
            return None
        port = front.port
        rival_services = [other.port.service for other in self.fronts if other.port.service != port.service]
        namespace, _, name = port.service.partition("/")
        return ServiceMatch(
            namespace=namespace,
            name=name,
            type=self.backed[port.service][0].spec.type,
            port_name=port.port_name,
            port=port.port,
            protocol=port.protocol.upper(),
            frontend=front.kind,
            policy=front.policy,
            also_claimed_by=tuple(rival_services),
        )

    def _explained(self, port: ResolvedPort) -> tuple[tuple[ExplainedEndpoint, ...], tuple[Candidate, ...]]:
        _, slices = self.backed[port.service]
        service_port = ServicePort(name=port.port_name, protocol=port.protocol.upper(), port=port.port)
        own = [item for item in slices if item.address_type == _FAMILIES[port.family]]
        candidates, duplicates = survey(own, service_port, self.view.facts.name)
        return explain(candidates, self.view.facts), duplicates

    def _endpoints(self, outcome: OutcomeName) -> tuple[EndpointChoice, ...]:
        if self.front is None:
            return ()
        shares: dict[tuple[str, int], tuple[float, bool]] = {}
        for (name, address, port, masqueraded), share in self.ends.items():
            if name == "forwarded":
                shares[address, port] = share, masqueraded
        local = self.decision.local if self.decision.endpoints else self._local_alone()
        explained, duplicates = self._explained(self.front.port)
        remembered = any(o.remembered for o in self.outcomes)
        return explain_endpoints(
            explained,
            duplicates,
            shares,
            self.view.facts,
            local=local,
            forwarded=outcome == "forwarded",
            remembered=remembered,
        )

    def _local_alone(self) -> bool:
        """Whether there is no endpoint because endpoints of other nodes were left out."""
        return self.decision.reason.reason == "NoLocalEndpoint"

    def _snat(self, outcome: OutcomeName) -> tuple[SourceTranslation | None, Packet]:
        """Whether the source is masqueraded, with the reason; and the packet as it leaves the node."""
        leaving = self.packet
        if outcome in ("refused", "dropped"):
            return None, leaving
        flags = {flag for _, address, _, flag in self.ends if address != leaving.source and not self._here(address)}
        if outcome == "forwarded":
            if any(step.hook == RELAY for trace in self.outcomes for step in trace.steps):
                return _translation(True, Reason(reason="Relay", message=_RELAYED)), leaving
            if not flags:
                return self._special(), leaving
            masqueraded, why = True in flags, self.decision.snat
            if self.hidden and not self.decision.masquerade:
                return _translation(True, Reason(reason="Routing", message=_OUT)), leaving
            if why is not None and masqueraded == self.decision.masquerade:
                return _translation(masqueraded, why), leaving
            return _translation(masqueraded, Reason(reason="Rules", message="the rules in force say so")), leaving
        return self._routed(leaving)

    def _here(self, address: str) -> bool:
        """Whether a packet from outside the node to this endpoint stays on the node."""
        return _stays(address, self.packet, self.view.machine)

    def _special(self) -> SourceTranslation:
        """The reason where the client can only reach itself or the node."""
        if any(self._here(address) for _, address, _, _ in self.ends):
            message = "the endpoint is in this node's own network, so the packet does not leave it"
            return _translation(False, Reason(reason="EndpointOnNode", message=message))
        return _translation(True, Reason(reason="Hairpin", message="the endpoint is the client itself"))

    def _routed(self, packet: Packet) -> tuple[SourceTranslation | None, Packet]:
        own = self.view.machine.owns(packet.destination)
        if self.view.other_nat is None or own or not packet.input:
            return None, packet
        if not self._hides(packet):
            return _translation(False, Reason(reason="Routing", message="routing keeps the client's address")), packet
        same = [a for a in self.view.facts.addresses if (":" in a) == (":" in packet.source)]
        leaving = msgspec.structs.replace(packet, source=same[0]) if same else packet
        return _translation(True, Reason(reason="Routing", message=_OUT)), leaving

    def _hides(self, packet: Packet) -> bool:
        """Whether routing masquerades a packet."""
        return self.view.other_nat is not None and next(self.view.other_nat.outcomes(packet)).masqueraded

    def _host_port(self) -> Reason | None:
        """The reason where a hostPort of a pod takes the port of the node."""
        if self.view.other_nat is None or self.decision.outcome != "untouched":
            return None
        outcome = next(self.view.other_nat.outcomes(self.packet))
        if not outcome.translated:
            return None
        target = f"{outcome.packet.destination} port {outcome.packet.destination_port}"
        return Reason(reason="HostPort", message=f"{self.decision.reason.message}, and by its hostPort for {target}")

    def _chances(self) -> dict[End, float]:
        """The probability of each end, by the rules."""
        chances: dict[End, float] = {}
        for outcome in self.outcomes:
            name, address, port, masqueraded = end_of(outcome)
            if name == "forwarded" and self._from_loopback and not self._leaves_loopback(outcome):
                name, address, port, masqueraded = "dropped", "", 0, False
            if name == "forwarded" and self.packet.input and not masqueraded and not self._here(address):
                masqueraded = self._hides(outcome.packet)
                self.hidden |= {address} if masqueraded else set()
            end = name, address, port, masqueraded
            chances[end] = chances.get(end, 0.0) + outcome.probability
        return chances

    @property
    def _from_loopback(self) -> bool:
        """Whether the node itself sends with an IPv4 loopback address as the source."""
        return not self.packet.input and self.packet.source.startswith("127.")

    def _leaves_loopback(self, outcome: Outcome) -> bool:
        """Whether the kernel delivers a translated packet from loopback.

        The kernel looks up a route before and after the translation, and refuses a route out of the node for a loopback
        source, unless ``route_localnet`` is on, which mode ``iptables`` needs for node ports on loopback.
        """
        if self._routes_loopback:
            return outcome.masqueraded
        relayed = any(step.hook == RELAY for step in outcome.steps)
        machine = self.view.machine
        return machine.owns(self.packet.destination) and (relayed or machine.owns(outcome.packet.destination))

    def _affinity(self) -> AffinityState | None:
        if self.front is None or not self.front.port.affinity_s:
            return None
        entries = dict.fromkeys(entry for outcome in self.outcomes for entry in outcome.remembered)
        return AffinityState(timeout_seconds=self.front.port.affinity_s, entries=tuple(entries))

    def _steps(self) -> tuple[MatchedRule, ...]:
        """The steps of the most probable outcome."""
        if not self.outcomes:
            return ()
        likeliest = max(self.outcomes, key=lambda outcome: outcome.probability)
        steps = []
        for step in likeliest.steps:
            subject = self._subject((step.rule, *step.elements))
            where = f"{step.hook}: {step.table} {step.chain}"
            steps.append(
                MatchedRule(layer="service", where=where, rule=step.rule, elements=step.elements, object=subject)
            )
        return tuple(steps)

    def _subject(self, texts: Iterable[str]) -> str:
        """The Service that a step serves; empty: none."""
        if self.front is None:
            return ""
        port = self.front.port
        text = " ".join(texts)
        number = port.node_port if self.front.kind == "NodePort" else port.port
        address = "" if self.front.kind == "NodePort" else f"{self.packet.destination} . "
        key = f"{address}{port.protocol} . {number}"
        return f"Service {port.service}" if key in text or f'"{port.service}' in text else ""


def _translation(masqueraded: bool, why: Reason) -> SourceTranslation:
    return SourceTranslation(masqueraded=masqueraded, reason=why.reason, message=why.message)


def _stays(address: str, packet: Packet, machine: LocalAddresses) -> bool:
    return bool(packet.input) and machine.owns(address)


def _expected(decision: ServiceDecision, packet: Packet, machine: LocalAddresses) -> dict[End, float]:
    """The ends of connections, with their probabilities, by Kubernetes' rules alone."""
    if not decision.endpoints:
        return {(decision.outcome, "", 0, False): 1.0}
    share = 1 / len(decision.endpoints)
    ends: dict[End, float] = {}
    for endpoint in decision.endpoints:
        masquerade = decision.masquerade and not _stays(endpoint.address, packet, machine)
        ends["forwarded", endpoint.address, endpoint.port, masquerade or endpoint.address == packet.source] = share
    return ends


def _by_outcome(ends: Mapping[End, float]) -> dict[OutcomeName, float]:
    chances: dict[OutcomeName, float] = {}
    for (name, *_), share in ends.items():
        chances[name] = chances.get(name, 0.0) + share
    return chances


def _lines(outcomes: Iterable[Outcome]) -> dict[tuple[str, str], None]:
    """Rules and elements of all steps with their table and chain, in order, without duplicates."""
    lines: dict[tuple[str, str], None] = {}
    for outcome in outcomes:
        for step in outcome.steps:
            lines[f"{step.table} {step.chain}", step.rule] = None
            lines |= {(step.table, element): None for element in step.elements}
    return lines


def _drift(planned: Sequence[Outcome], held: Sequence[Outcome], fronts: Sequence[Matched]) -> tuple[Drift, ...]:
    """The steps in which the rules in force and the planned rules differ, when they lead to different ends."""
    want, have = ({end_of(outcome) for outcome in outcomes} for outcomes in (planned, held))
    remembered = any(outcome.remembered for outcome in held)
    if want == have or (remembered and have <= want) or _another_claimant_has_it(want, have, fronts):
        return ()
    missing = _lines(outcome for outcome in planned if end_of(outcome) not in have)
    surplus = _lines(outcome for outcome in held if end_of(outcome) not in want)
    held_lines, planned_lines = _lines(held), _lines(planned)
    plus = (Drift(where=where, sign="+", text=text) for where, text in missing if (where, text) not in held_lines)
    minus = (Drift(where=where, sign="-", text=text) for where, text in surplus if (where, text) not in planned_lines)
    return (*plus, *minus)


def _another_claimant_has_it(want: set[End], have: set[End], fronts: Sequence[Matched]) -> bool:
    """Whether the rules serve another Service that claims the same address; the first claimant gets it."""
    if len(fronts) < 2 or {end[0] for end in want | have} != {"forwarded"}:
        return False
    endpoint_lists = (
        *(front.port.cluster_endpoints for front in fronts),
        *(front.port.local_endpoints for front in fronts),
    )
    known = {(e.address, e.port) for endpoints in endpoint_lists for e in endpoints}
    return all((address, port) in known for _, address, port, _ in have)
