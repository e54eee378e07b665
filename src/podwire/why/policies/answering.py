"""The policy part of an answer of ``podwire why``: each end that Services leave, asked of policies and of rules (pure).

What the objects mean comes from :mod:`podwire.why.policies.explain`; what nodes do with it, from the rules that
:class:`Site` has of them. What nodes do is the outcome; where that is not what policies say, the answer says so.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec.structs import replace

from podwire.cluster.world import Party, World
from podwire.model.meta import key_of
from podwire.policy.evaluate import EGRESS, INGRESS, Connection, Rules, in_block
from podwire.trace.packet import Packet
from podwire.why.answer import Answer, DirectionSaid, EnforcedSaid, PolicySaid
from podwire.why.policies.connections import Way, ways
from podwire.why.policies.enforced import Guard, enforced
from podwire.why.policies.explain import Lines, direction_said, nowhere, together

_BARE = {"ICMP": ("icmp", "ipv6-icmp")}
"""What the protocols of both families are called where they differ."""


class Site(Protocol):
    """What is known of nodes beside their objects."""

    def rules(self, node: str) -> Rules:
        """What a node makes of what the API leaves open."""
        ...

    def guard(self, node: str) -> Guard | None:
        """The policy rules of a node; None: it enforces none.

        Raises: KernelError, ClusterError.
        """
        ...

    def device(self, node: str, party: Party) -> str:
        """By which device a node has an end; empty: it is the node itself."""
        ...


def with_policies(answer: Answer, world: World, site: Site, lines: Lines = nowhere) -> Answer:
    """The answer with what policies say of it."""
    found = tuple(_said(way, world, site, lines) for way in ways(answer, world))
    notes = dict.fromkeys((*answer.notes, *_of_nodes(answer, world), *_of_services(answer, world, found)))
    outcome = "dropped" if found and all(one.outcome == "dropped" for one in found) else answer.outcome
    return replace(answer, outcome=outcome, policies=found, notes=tuple(notes))


def _of_nodes(answer: Answer, world: World) -> Iterator[str]:
    """Pods that are none to policies."""
    for place in (answer.source, answer.target):
        if place.kind == "Pod" and place.address:
            party = world.party(place.address)
            if party.pod is None and party.node:
                yield f"pod {place.name} is in the network of {party.node}; policies take it for that node"


def _of_services(answer: Answer, world: World, found: Sequence[PolicySaid]) -> Iterator[str]:
    """Ranges of policies that have the address of a Service, which policies never see."""
    target = answer.target.address
    if not target or all(one.egress.reason != "Isolated" or one.address == target for one in found):
        return
    isolating = {each.policy for one in found for each in one.egress.isolated_by}
    for policy in world.policies:
        if key_of(policy.metadata) in isolating:
            for place, rule in enumerate(policy.spec.egress):
                if any(peer.ip_block is not None and in_block(target, peer.ip_block) for peer in rule.peers):
                    yield (
                        f"{key_of(policy.metadata)} egress[{place}] has an ipBlock with {target}, the address of a "
                        "Service; policies see the endpoint behind it"
                    )


def _said(way: Way, world: World, site: Site, lines: Lines) -> PolicySaid:
    egress = direction_said(world, way.egress, EGRESS, site.rules(way.egress.source.node), lines)
    ingress = direction_said(world, way.ingress, INGRESS, site.rules(way.ingress.destination.node), lines)
    found = together(way.ingress, replace(egress, subject=way.egress.source.name), ingress)
    nodes = tuple(_enforced(way, site, egress, ingress))
    passes = all(one.outcome == "allowed" for one in nodes) if nodes else found.outcome == "allowed"
    return replace(
        found,
        probability=way.probability,
        outcome="allowed" if passes else "dropped",
        message=_message(found, nodes, passes=passes),
        nodes=nodes,
    )


def _message(found: PolicySaid, nodes: Sequence[EnforcedSaid], *, passes: bool) -> str:
    if passes == (found.outcome == "allowed"):
        return found.message
    other = [one for one in nodes if (one.outcome == "allowed") == passes]
    where = ", ".join(one.node for one in other)
    if any(one.drifted for one in nodes):
        word = "pass" if passes else "drop"
        return f"the rules of {where} {word} it and are not those that should be; by the objects: {found.message}"
    last = (one.steps[-1].object for one in other if one.steps)
    because = next((f": {text}" for text in last if text), " that serve no policy")
    return f"dropped by rules of {where}{because}; by policies: {found.message}"


def _enforced(way: Way, site: Site, egress: DirectionSaid, ingress: DirectionSaid) -> Iterator[EnforcedSaid]:
    """What the nodes of both ends do; a node that has both, and sees one packet, does it once."""
    if ingress.reason == "Itself":
        return
    source, destination = way.egress.source, way.ingress.destination
    if source.pod is not None and source.node == destination.node and way.egress == way.ingress:
        yield from _on_node(source.node, way.egress, site, way.sent_to, allowed=egress.allowed and ingress.allowed)
        return
    if source.pod is not None:
        yield from _on_node(source.node, way.egress, site, way.sent_to, allowed=egress.allowed)
    if destination.pod is not None:
        yield from _on_node(destination.node, way.ingress, site, way.sent_to, allowed=ingress.allowed)


def _on_node(node: str, connection: Connection, site: Site, sent_to: str, *, allowed: bool) -> Iterator[EnforcedSaid]:
    guard = site.guard(node)
    if guard is not None:
        yield enforced(node, guard, packet_of(node, connection, site, sent_to), allowed=allowed)


def packet_of(node: str, connection: Connection, site: Site, sent_to: str = "") -> Packet:
    """The first packet of a connection, as a node sees it between both translations."""
    source, destination = connection.source, connection.destination
    names = _BARE.get(connection.protocol)
    return Packet(
        source=source.address,
        destination=destination.address,
        protocol=names[":" in source.address] if names else connection.protocol.lower(),
        destination_port=connection.port,
        sent_to=sent_to,
        input=site.device(node, source),
        output=site.device(node, destination),
    )
