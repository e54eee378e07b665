"""The ways between nodes that the connections of a probe take: backend, route, device, MTU and tunnel.

They are read from the kernels of the nodes as ``podwire why`` reads them, one way for each pair of nodes, however many
connections take it. Cost: one read of each sending node, and a plan for each pair.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

import msgspec

from podwire.errors import ClusterError, KernelError
from podwire.local.probe.plan import ProbeInputs
from podwire.local.probe.result import NodePair, ProbeResult
from podwire.model.meta import key_of
from podwire.routing.nodes import Address
from podwire.why.answer import NodeRoute
from podwire.why.nodes import Nodes
from podwire.why.route_text import lines
from podwire.why.routing.explainer import PodOwners, explain_way

UNEXPECTED_PAIRS = 8
"""Pairs of nodes whose way is told because of an unexpected result; a broken network has very many."""


class ProbeRoutes(msgspec.Struct, frozen=True):
    """The ways by pair of nodes, and why some are not told."""

    by_pair: Mapping[NodePair, NodeRoute] = {}
    remarks: tuple[str, ...] = ()

    def text(self) -> str:
        """The ways as ``podwire why`` shows them, by the names of the nodes, then the notes; empty without any."""
        node_routes = ["\n".join(lines(route)) for _, route in sorted(self.by_pair.items())]
        return "\n\n".join([*node_routes, *(f"note: {remark}" for remark in self.remarks)])

    def as_json(self) -> str:
        """One line of JSON for each way, without those of the results."""
        node_routes = (route for _, route in sorted(self.by_pair.items()))
        return "\n".join(msgspec.json.encode({"nodeRoute": route}).decode() for route in node_routes)


def pairs(results: Iterable[ProbeResult], inputs: ProbeInputs) -> dict[NodePair, Address]:
    """The pairs of different nodes that connections cross, each with an address of a pod on the second node."""
    owners = PodOwners(inputs.world.nodes)
    addresses = {key_of(pod.metadata): pod.addresses for pod in inputs.pods}
    crossed: dict[NodePair, Address] = {}
    for result in results:
        for text in _targets(result, addresses):
            address = ip_address(text)
            owner = owners.of(address)
            if owner is not None and owner.metadata.name != result.attempt.source.node:
                crossed.setdefault(NodePair(result.attempt.source.node, owner.metadata.name), address)
    return crossed


def _targets(result: ProbeResult, addresses: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The address of the pod that was tried, or that answered for a Service; none from the host."""
    attempt = result.attempt
    if not attempt.source.node:
        return
    if attempt.target in addresses:
        yield attempt.address
    else:
        yield from addresses.get(result.answered_by, ())[:1]


def read_routes(crossed: Mapping[NodePair, Address], inputs: ProbeInputs, nodes: Nodes) -> ProbeRoutes:
    """The ways of pairs of nodes; a node that cannot be read leaves a note."""
    objects = {node.metadata.name: node for node in inputs.world.nodes}
    node_routes: dict[NodePair, NodeRoute] = {}
    remarks: dict[str, None] = {}
    for pair, address in crossed.items():
        if pair.node not in objects:
            continue
        try:
            node_routes[pair], read_remarks = explain_way(nodes, objects[pair.node], objects[pair.peer], address)
        except (ClusterError, KernelError) as failure:
            read_remarks = (f"the way from {pair.node} to {pair.peer} is not known: {failure}",)
        remarks |= dict.fromkeys(read_remarks)
    return ProbeRoutes(node_routes, tuple(remarks))
