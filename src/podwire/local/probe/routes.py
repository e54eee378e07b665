"""The routes between nodes that the connections of a probe take: backend, route, device, MTU and tunnel.

They are read from the kernels of the nodes as ``podwire why`` reads them, one route for each pair of nodes and pod
network, for any number of connections. Cost: one read of each sending node, and a plan for each pair.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address

import msgspec

from podwire.cluster.podnetworks import network_at
from podwire.errors import ClusterError, KernelError
from podwire.local.probe.plan import ProbeInputs
from podwire.local.probe.result import NodePair, ProbeResult
from podwire.model.meta import key_of
from podwire.routing.nodes import Address
from podwire.why.answer import NodeRoute
from podwire.why.nodes import Nodes
from podwire.why.route_text import lines
from podwire.why.routing.explainer import PodOwners, explain_route

UNEXPECTED_PAIRS = 8
"""Pairs of nodes whose route is shown because of an unexpected result; a broken network has very many."""


class ProbeRoutes(msgspec.Struct, frozen=True):
    """The routes by pair of nodes, and why some are missing."""

    by_pair: Mapping[NodePair, NodeRoute] = {}
    remarks: tuple[str, ...] = ()

    def text(self) -> str:
        """The routes as ``podwire why`` shows them, by the names of the nodes, then the remarks; empty without any."""
        routes = ["\n".join(lines(route)) for _, route in sorted(self.by_pair.items())]
        return "\n\n".join([*routes, *(f"note: {note}" for note in self.remarks)])

    def as_json(self) -> str:
        """One line of JSON for each route, without those of the results."""
        routes = (route for _, route in sorted(self.by_pair.items()))
        return "\n".join(msgspec.json.encode({"nodeRoute": route}).decode() for route in routes)


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
                network = str(network_at(owner, address) or "")
                crossed.setdefault(NodePair(result.attempt.source.node, owner.metadata.name, network), address)
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
    """The routes of pairs of nodes; a node that cannot be read causes a remark."""
    objects = {node.metadata.name: node for node in inputs.world.nodes}
    routes: dict[NodePair, NodeRoute] = {}
    remarks: dict[str, None] = {}
    for pair, address in crossed.items():
        if pair.node not in objects:
            continue
        try:
            routes[pair], new_remarks = explain_route(nodes, objects[pair.node], objects[pair.peer], address)
        except (ClusterError, KernelError) as failure:
            new_remarks = (f"the route from {pair.node} to {pair.peer} is not known: {failure}",)
        remarks |= dict.fromkeys(new_remarks)
    return ProbeRoutes(routes, tuple(remarks))
