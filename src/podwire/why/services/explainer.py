"""The explainer of Services: the hops of a connection, node by node.

When no Service on the client's node matches, the packet may be for another node's address. That node then decides, with
the source address that the packet has there. There are never more than two such hops.
"""

from collections.abc import Sequence

import msgspec

from podwire.model.node import Node
from podwire.model.service import Service
from podwire.proxy.resolve import handled, resolve
from podwire.trace.packet import Packet
from podwire.why.answer import Answer, Hop
from podwire.why.cluster import ClusterAccess
from podwire.why.nodes import Nodes
from podwire.why.objects import Objects
from podwire.why.question import Question
from podwire.why.services.hop import ServiceWithSlices, explain_hop
from podwire.why.services.names import RequestedPort, explain_name
from podwire.why.syntax import PING

_PING6 = "ipv6-icmp"


async def explain_services(question: Question, answer: Answer, cluster: ClusterAccess) -> Answer:
    """The answer with the outcome of the connection on each node, by its rules for Services.

    Raises: KernelError, ClusterError when a node that decides cannot be read; ApiError, ApiUnreachable.
    """
    target, objects, views = question.target, cluster.objects, cluster.nodes
    if not target.address:
        hop = await _by_name(question, cluster)
        return msgspec.structs.replace(answer, outcome=hop.outcome, hops=(hop,))
    services = await _services(question, objects)
    backed = [(service, await objects.slices(service)) for service in services]
    packet = Packet(
        source=question.source.address,
        destination=target.address,
        protocol=_PING6 if question.protocol == PING and ":" in target.address else question.protocol,
        destination_port=target.port,
        input="" if question.on_node else views.device(question.node, question.source.address),
    )
    hop, packet, remarks = _hop(question.node, packet, backed, views)
    hops, nodes = [hop], [question.node]
    if hop.outcome == "untouched":
        for node in await objects.nodes():
            if target.address in node.internal_ips and node.metadata.name != hop.node:
                packet = msgspec.structs.replace(packet, input=views.device(node, packet.source))
                hop, _, further = _hop(node, packet, backed, views)
                hops.append(hop)
                nodes.append(node)
                remarks += further
    remarks += tuple(note for node in nodes for note in views.notes(node))
    return msgspec.structs.replace(
        answer,
        outcome=hops[-1].outcome,
        hops=tuple(hops),
        notes=tuple(dict.fromkeys((*answer.notes, *_left_out(question), *remarks))),
    )


async def _by_name(question: Question, cluster: ClusterAccess) -> Hop:
    """The hop of a connection to a Service without an address, which exists in DNS only."""
    service = question.service
    assert service is not None, "an address is missing only where a Service was named"
    six = ":" in question.source.address
    matching_slices = tuple(
        item for item in await cluster.objects.slices(service) if (item.address_type == "IPv6") == six
    )
    requested = RequestedPort(question.target.port, question.protocol, question.port_named)
    node = question.node
    return explain_name((service, matching_slices), requested, cluster.nodes.access(node.metadata.name).facts(node))


async def _services(question: Question, objects: Objects) -> Sequence[Service]:
    target = question.target
    named = question.service
    if named is not None and target.address in (named.spec.cluster_ip, *named.spec.cluster_ips):
        return (named,)
    return await objects.services_at(target.address, target.port)


def _hop(
    node: Node, packet: Packet, backed: list[ServiceWithSlices], nodes: Nodes
) -> tuple[Hop, Packet, tuple[str, ...]]:
    """The hop of a node, the packet as it leaves the node, and notes."""
    facts = nodes.access(node.metadata.name).facts(node)
    services = {f"{s.metadata.namespace}/{s.metadata.name}": resolve(s, slices, facts) for s, slices in backed}
    rules = nodes.service_rules(node, services)
    hop, leaving = explain_hop(packet, backed, rules)
    return msgspec.structs.replace(hop, flows=nodes.flows(node, packet)), leaving, rules.notes


def _left_out(question: Question) -> tuple[str, ...]:
    service = question.service
    if service is None or handled(service):
        return ()
    name = f"Service {service.metadata.namespace}/{service.metadata.name}"
    return (f"{name} carries the label service.kubernetes.io/service-proxy-name: another proxy serves it",)
