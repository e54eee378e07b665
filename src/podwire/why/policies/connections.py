"""The connections that policies see: one for each end that the connection may reach through Services (pure).

Policies see the destination after the translation by Services and the source before masquerade. When a packet passes
two nodes, these may differ: the source's node sees the destination with which the packet leaves, the destination's node
sees the source with which the packet arrives. With a relay (``proxy.mode: userspace``) there are two connections: from
the client to its node, and from the node to the endpoint.
"""

from collections.abc import Iterator

import msgspec

from podwire.cluster.world import Party, World
from podwire.policy.connectionmatch import Connection
from podwire.why.answer import Answer, EndpointChoice, Hop


class ObservedConnection(msgspec.Struct, frozen=True, kw_only=True):
    """A connection to one end, as the source's node and the destination's node see it."""

    egress: Connection
    """The connection as the source's node sees it."""
    ingress: Connection
    """The connection as the destination's node sees it."""
    probability: float = 1.0
    sent_to: str = ""
    """The address before translation by Services; empty: the destination."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the source and of the destination, each once."""
        ends_of = (self.egress.source.node, self.ingress.destination.node)
        return tuple(dict.fromkeys(filter(None, ends_of)))


def observed_connections(answer: Answer, world: World) -> tuple[ObservedConnection, ...]:
    """The connections that policies see; none where the packet is dropped, or its end is not known.

    Where Services refuse a connection because there is no endpoint, the source's node sees the address of the Service.
    Its policies come first and may drop the packet before it is refused.
    """
    hop = answer.hops[-1]
    if hop.outcome == "refused" and answer.target.address:
        asked = Connection(
            source=world.party(answer.source.address),
            destination=world.party(answer.target.address),
            protocol=answer.protocol,
            port=answer.target.port,
        )
        return (ObservedConnection(egress=asked, ingress=asked),)
    if hop.outcome == "forwarded" or (hop.outcome == "untouched" and hop.endpoints):
        return tuple(_observed(answer, world, end) for end in _reachable(hop))
    if hop.outcome == "untouched" and answer.target.address:
        target = _endpoint_at(answer.target.address, answer.target.port)
        return (_observed(answer, world, target),)
    return ()


def _endpoint_at(address: str, port: int) -> EndpointChoice:
    return EndpointChoice(
        address=address, port=port, used=True, reason="", message="", probability=1.0, masqueraded=False
    )


def _reachable(hop: Hop) -> Iterator[EndpointChoice]:
    """The endpoints that a connection may reach; for a DNS name, those that DNS returns."""
    used = [endpoint for endpoint in hop.endpoints if endpoint.used]
    by_name = hop.service is not None and hop.service.frontend == "Name"
    for endpoint in used:
        yield msgspec.structs.replace(endpoint, probability=1 / len(used)) if by_name else endpoint


def _observed(answer: Answer, world: World, end: EndpointChoice) -> ObservedConnection:
    first, last = answer.hops[0], answer.hops[-1]
    source = world.party(_source(answer, world, end))
    destination = world.party(end.address)
    port = end.port
    protocol = answer.protocol
    relay = _node_of(world, last.node, end.address) if _relayed(last) else None
    if relay is not None:
        target, left_port = relay, answer.target.port
    elif first is last:
        target, left_port = destination, port
    else:
        target, left_port = world.party(answer.target.address), answer.target.port
    sender = source
    if relay is not None:
        sender = relay
    elif end.masqueraded and destination.node != last.node:
        sender = _node_of(world, last.node, end.address) or source
    elif first is not last and first.snat is not None and first.snat.masqueraded:
        sender = _node_of(world, first.node, end.address) or source
    return ObservedConnection(
        egress=Connection(source=source, destination=target, protocol=protocol, port=left_port),
        ingress=Connection(source=sender, destination=destination, protocol=protocol, port=port),
        probability=end.probability,
        sent_to=answer.target.address if answer.target.address != end.address else "",
    )


def _relayed(hop: Hop) -> bool:
    """Whether a relay on the node accepts the connection and opens its own to the endpoint."""
    return hop.snat is not None and hop.snat.reason == "Relay"


def _source(answer: Answer, world: World, end: EndpointChoice) -> str:
    """The address of the client in the family of the end."""
    own = answer.source.address
    if (":" in own) == (":" in end.address):
        return own
    for pod in world.pods:
        if own in pod.addresses:
            return next((address for address in pod.addresses if (":" in address) == (":" in end.address)), own)
    return own


def _node_of(world: World, name: str, like: str) -> Party | None:
    """A node, by its address in the family of the address ``like``."""
    for node in world.nodes:
        if node.metadata.name == name:
            same = (address for address in node.internal_ips if (":" in address) == (":" in like))
            return next((world.party(address) for address in same), None)
    return None


def ends_of(answer: Answer) -> tuple[frozenset[str], frozenset[str]]:
    """The named pods at the ends of an answer, and the addresses of ends without a name."""
    named = {end.name for end in (answer.source, answer.target) if end.kind == "Pod"}
    addresses = set()
    if answer.source.kind == "Address":
        addresses.add(answer.source.address)
    reached = [endpoint for endpoint in answer.hops[-1].endpoints if endpoint.used]
    named |= {endpoint.pod for endpoint in reached if endpoint.pod}
    addresses |= {endpoint.address for endpoint in reached if not endpoint.pod}
    if answer.target.kind == "Address" and not reached:
        addresses.add(answer.target.address)
    return frozenset(named), frozenset(filter(None, addresses))
