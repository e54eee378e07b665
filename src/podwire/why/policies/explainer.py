"""The explainer of policies: the verdict of policies and the outcome by nodes' rules, for each end (pure).

:mod:`podwire.why.policies.verdict` computes the verdict from the objects. The outcome follows from the rules of the
nodes (:class:`~podwire.why.nodes.Nodes`). When the two differ, the answer says so.
"""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from podwire.cluster.world import Party, World
from podwire.errors import ClusterError
from podwire.model.meta import key_of
from podwire.policy.connectionmatch import Connection, in_block
from podwire.policy.evaluate import EGRESS, INGRESS, EvaluationOptions
from podwire.trace.packet import Packet
from podwire.why.answer import Answer, DirectionVerdict, NodeEnforcement, PolicyVerdict
from podwire.why.cluster import ClusterAccess
from podwire.why.nodes import Nodes
from podwire.why.policies.connections import ObservedConnection, ends_of, observed_connections
from podwire.why.policies.enforced import PolicyRules, enforced
from podwire.why.policies.lines import Lines, no_line
from podwire.why.policies.verdict import both_directions, explain_direction
from podwire.why.question import Question

_BARE = {"ICMP": ("icmp", "ipv6-icmp")}
"""The names of protocols that differ between the IP families."""


async def explain_policies(_question: Question, answer: Answer, cluster: ClusterAccess) -> Answer:
    """The answer with the verdict of policies on each end that the connection may reach.

    Raises: KernelError, ClusterError when a node that decides cannot be read; ApiError, ApiUnreachable.
    """
    world = await cluster.objects.world(*ends_of(answer))
    explained = with_policies(answer, world, cluster.nodes, cluster.lines)
    return replace(explained, notes=(*explained.notes, *cluster.differences(world)))


class _Enforcement:
    """The policy rules of nodes; each node is read once, and only when it decides."""

    def __init__(self, world: World, nodes: Nodes) -> None:
        self._world = world
        self._nodes = nodes
        self._rules: dict[str, PolicyRules] = {}

    def settings(self, name: str) -> EvaluationOptions:
        """The settings of a node for cases that the API does not define."""
        if all(node.metadata.name != name for node in self._world.nodes):
            return EvaluationOptions()
        try:
            return EvaluationOptions(own_node_egress=self._nodes.access(name).policies.own_node_egress)
        except ClusterError:
            return EvaluationOptions()

    def rules(self, name: str) -> PolicyRules:
        """The policy rules of a node."""
        if name not in self._rules:
            self._rules[name] = self._nodes.policy_rules(name, self._world)
        return self._rules[name]

    def notes(self) -> Iterator[str]:
        """Remarks for the reader about how rules were read."""
        return (note for rules in self._rules.values() for note in rules.notes)


def with_policies(answer: Answer, world: World, nodes: Nodes, lines: Lines = no_line) -> Answer:
    """The answer with the verdicts of policies; its outcome is changed when all ends are dropped."""
    enforcement = _Enforcement(world, nodes)
    verdicts = tuple(
        _verdict_on(connection, world, enforcement, lines) for connection in observed_connections(answer, world)
    )
    if answer.outcome == "refused" and all(verdict.outcome == "allowed" for verdict in verdicts):
        verdicts = ()
    further_notes = (*_of_nodes(answer, world), *_of_services(answer, world, verdicts), *enforcement.notes())
    notes_in_order = dict.fromkeys((*answer.notes, *further_notes))
    outcome = "dropped" if verdicts and all(verdict.outcome == "dropped" for verdict in verdicts) else answer.outcome
    return replace(answer, outcome=outcome, policies=verdicts, notes=tuple(notes_in_order))


def _of_nodes(answer: Answer, world: World) -> Iterator[str]:
    """Notes about pods in the host network, which policies treat as their node."""
    for end in (answer.source, answer.target):
        if end.kind == "Pod" and end.address:
            party = world.party(end.address)
            if party.pod is None and party.node:
                yield f"pod {end.name} uses the network of {party.node}; policies treat it as that node"


def _of_services(answer: Answer, world: World, verdicts: Sequence[PolicyVerdict]) -> Iterator[str]:
    """Notes about ipBlocks with the address of a Service, which policies never see."""
    target = answer.target.address
    if not target or all(verdict.egress.reason != "Isolated" or verdict.address == target for verdict in verdicts):
        return
    isolating = {reference.policy for verdict in verdicts for reference in verdict.egress.isolated_by}
    for policy in world.policies:
        if key_of(policy.metadata) in isolating:
            for index, rule in enumerate(policy.spec.egress):
                if any(peer.ip_block is not None and in_block(target, peer.ip_block) for peer in rule.peers):
                    yield (
                        f"{key_of(policy.metadata)} egress[{index}] has an ipBlock with {target}, the address of a "
                        "Service; policies see the endpoint behind it"
                    )


def _verdict_on(observed: ObservedConnection, world: World, enforcement: _Enforcement, lines: Lines) -> PolicyVerdict:
    egress = explain_direction(world, observed.egress, EGRESS, enforcement.settings(observed.egress.source.node), lines)
    ingress = explain_direction(
        world, observed.ingress, INGRESS, enforcement.settings(observed.ingress.destination.node), lines
    )
    verdict = both_directions(observed.ingress, replace(egress, subject=observed.egress.source.name), ingress)
    nodes = tuple(_enforced(observed, enforcement, egress, ingress))
    passes = all(node.outcome == "allowed" for node in nodes) if nodes else verdict.outcome == "allowed"
    return replace(
        verdict,
        probability=observed.probability,
        outcome="allowed" if passes else "dropped",
        message=_message(verdict, nodes, passes=passes),
        nodes=nodes,
    )


def _message(verdict: PolicyVerdict, nodes: Sequence[NodeEnforcement], *, passes: bool) -> str:
    if passes == (verdict.outcome == "allowed"):
        return verdict.message
    deviating = [node for node in nodes if (node.outcome == "allowed") == passes]
    where = ", ".join(node.node for node in deviating)
    if any(node.drifted for node in nodes):
        verb = "pass" if passes else "drop"
        return f"the rules of {where} {verb} it but differ from the planned rules; by the objects: {verdict.message}"
    deciding = (node.steps[-1].object for node in deviating if node.steps)
    because = next((f": {text}" for text in deciding if text), " that serve no policy")
    return f"dropped by rules of {where}{because}; by policies: {verdict.message}"


def _enforced(
    observed: ObservedConnection, enforcement: _Enforcement, egress: DirectionVerdict, ingress: DirectionVerdict
) -> Iterator[NodeEnforcement]:
    """The outcome on the nodes of both ends; a node with both ends sees one packet, and is listed once."""
    if ingress.reason == "Itself":
        return
    source, destination = observed.egress.source, observed.ingress.destination
    if source.pod is not None and source.node == destination.node and observed.egress == observed.ingress:
        yield from _on_node(
            source.node, observed.egress, enforcement, observed.sent_to, allowed=egress.allowed and ingress.allowed
        )
        return
    if source.pod is not None:
        yield from _on_node(source.node, observed.egress, enforcement, observed.sent_to, allowed=egress.allowed)
    if destination.pod is not None:
        yield from _on_node(destination.node, observed.ingress, enforcement, observed.sent_to, allowed=ingress.allowed)


def _on_node(
    node: str, connection: Connection, enforcement: _Enforcement, sent_to: str, *, allowed: bool
) -> Iterator[NodeEnforcement]:
    rules = enforcement.rules(node)
    if rules.mode:
        yield enforced(node, rules, packet_of(connection, rules.device, sent_to), allowed=allowed)


def packet_of(connection: Connection, device: Callable[[Party], str], sent_to: str = "") -> Packet:
    """The first packet of a connection, as a node with these devices sees it between both translations."""
    source, destination = connection.source, connection.destination
    names = _BARE.get(connection.protocol)
    return Packet(
        source=source.address,
        destination=destination.address,
        protocol=names[":" in source.address] if names else connection.protocol.lower(),
        destination_port=connection.port,
        sent_to=sent_to,
        input=device(source),
        output=device(destination),
    )
