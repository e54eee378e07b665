"""From a question to its answer: the hops of a connection, node by node.

A packet that no Service takes on the client's node may be for another node's address; that node then decides, with the
source that the packet has by then. There are never more than two such hops.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from podwire.model.node import Node
from podwire.model.service import Service
from podwire.proxy.resolve import handled, resolve
from podwire.proxy.servicemap import NodeFacts, ServiceMap
from podwire.trace.packet import Packet
from podwire.why.answer import Answer, Hop
from podwire.why.objects import Objects
from podwire.why.question import Question
from podwire.why.services.hop import Backed, View, explain_hop
from podwire.why.services.names import Wanted, explain_name
from podwire.why.syntax import PING

_PING6 = "ipv6-icmp"


class Site(Protocol):
    """What is known of nodes beside their objects: settings, and what their kernels hold."""

    def facts(self, node: Node) -> NodeFacts:
        """What the proxy of a node knows of it."""
        ...

    def arrives(self, node: Node, source: str) -> str:
        """The device by which packets of an address come in."""
        ...

    def view(self, node: Node, facts: NodeFacts, services: ServiceMap) -> View:
        """The rules of a node; ``services`` are those that the question is about.

        Raises: KernelError, ClusterError.
        """
        ...

    def flows(self, node: Node, packet: Packet) -> tuple[str, ...]:
        """Connections that the node's kernel tracks from this client to this target."""
        ...

    def notes(self, node: Node) -> tuple[str, ...]:
        """What should be known of how the node was read."""
        ...


def of_node(facts: NodeFacts, node: Node) -> NodeFacts:
    """The facts with what the Node object says."""
    facts = msgspec.structs.replace(facts, zone=node.zone, addresses=node.internal_ips)
    if not facts.pod_cidrs_of_node:
        return facts
    return msgspec.structs.replace(facts, pod_cidrs=node.pod_cidrs)


async def answer(question: Question, objects: Objects, site: Site) -> Answer:
    """The answer.

    Raises: KernelError, ClusterError when a node that decides cannot be read; ApiError, ApiUnreachable.
    """
    target = question.target
    if not target.address:
        return await _by_name(question, objects, site)
    services = await _services(question, objects)
    backed = [(service, await objects.slices(service)) for service in services]
    packet = Packet(
        source=question.source.address,
        destination=target.address,
        protocol=_PING6 if question.protocol == PING and ":" in target.address else question.protocol,
        destination_port=target.port,
        input="" if question.on_node else site.arrives(question.node, question.source.address),
    )
    hop, packet = _hop(question.node, packet, backed, site)
    hops, nodes = [hop], [question.node]
    if hop.outcome == "untouched":
        for node in await objects.nodes():
            if target.address in node.internal_ips and node.metadata.name != hop.node:
                packet = msgspec.structs.replace(packet, input=site.arrives(node, packet.source))
                hops.append(_hop(node, packet, backed, site)[0])
                nodes.append(node)
    notes = dict.fromkeys((*question.notes, *_left_out(question), *(n for node in nodes for n in site.notes(node))))
    return Answer(
        source=question.source,
        target=target,
        protocol=question.protocol.upper(),
        outcome=hops[-1].outcome,
        hops=tuple(hops),
        notes=tuple(notes),
    )


async def _by_name(question: Question, objects: Objects, site: Site) -> Answer:
    """The answer for a Service without an address, which only DNS knows."""
    service = question.service
    assert service is not None, "an address is missing only where a Service was named"
    six = ":" in question.source.address
    pieces = tuple(one for one in await objects.slices(service) if (one.address_type == "IPv6") == six)
    wanted = Wanted(question.target.port, question.protocol, question.port_named)
    hop = explain_name((service, pieces), wanted, site.facts(question.node))
    return Answer(
        source=question.source,
        target=question.target,
        protocol=question.protocol.upper(),
        outcome=hop.outcome,
        hops=(hop,),
        notes=question.notes,
    )


async def _services(question: Question, objects: Objects) -> Sequence[Service]:
    target = question.target
    named = question.service
    if named is not None and target.address in (named.spec.cluster_ip, *named.spec.cluster_ips):
        return (named,)
    return await objects.services_at(target.address, target.port)


def _hop(node: Node, packet: Packet, backed: list[Backed], site: Site) -> tuple[Hop, Packet]:
    facts = site.facts(node)
    services = {f"{s.metadata.namespace}/{s.metadata.name}": resolve(s, pieces, facts) for s, pieces in backed}
    hop, left = explain_hop(packet, backed, site.view(node, facts, services))
    return msgspec.structs.replace(hop, flows=site.flows(node, packet)), left


def _left_out(question: Question) -> tuple[str, ...]:
    service = question.service
    if service is None or handled(service):
        return ()
    name = f"Service {service.metadata.namespace}/{service.metadata.name}"
    return (f"{name} carries the label service.kubernetes.io/service-proxy-name: another proxy serves it",)
