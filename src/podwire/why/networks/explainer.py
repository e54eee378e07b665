"""The explainer of pod networks: names the networks of both ends, and what joins or separates them (pure).

The rules of the source's node decide, as they are in its kernel, or as they are planned. The packet is the one behind
the translation by a Service, so an endpoint in another network counts and not the Service. Without pod networks nothing
is added to an answer.
"""

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from msgspec.structs import replace

from podwire.cluster.podnetworks import NodePodNetwork, network_at
from podwire.model.node import Node
from podwire.routing.nodes import Address
from podwire.routing.paths import shown
from podwire.routing.podnetworks import refusing_route, separation
from podwire.why.answer import Answer, ExplainerFinding
from podwire.why.cluster import ClusterAccess
from podwire.why.nodes import Nodes
from podwire.why.question import Question
from podwire.why.routing.explainer import ends_of

PART = "networks"


async def explain_networks(question: Question, answer: Answer, cluster: ClusterAccess) -> Answer:
    """The answer with the pod networks of its ends; ``outcome`` is refused where no end may be reached.

    Raises: KernelError, ClusterError when the source's node cannot be read; ApiError, ApiUnreachable.
    """
    source = answer.source.address
    if answer.source.kind != "Pod" or question.on_node or not source:
        return answer
    nodes = await cluster.objects.nodes()
    client = ip_address(source)
    own = _network(nodes, client)
    if own is None:
        return answer
    crossings = [
        (address, network)
        for text in dict.fromkeys(ends_of(answer))
        if (network := _network(nodes, address := ip_address(text))) is not None and address.version == client.version
    ]
    if not crossings:
        return answer
    crossed = _Crossed(question, own, cluster.nodes)
    ports = _ports(answer)
    findings = [
        crossed.finding(client, address, network, ports.get(str(address), answer.target.port))
        for address, network in crossings
    ]
    outcome = "refused" if all(finding.outcome for finding in findings) else answer.outcome
    return replace(answer, outcome=outcome, findings=(*answer.findings, *dict.fromkeys(findings)))


class _Crossed:
    """What separates the network of a client from those of the ends, by the rules of the client's node."""

    def __init__(self, question: Question, own: NodePodNetwork, nodes: Nodes) -> None:
        self._question, self._own = question, own
        access, held = nodes.access(question.node.metadata.name), nodes.network(question.node)
        self._settings = access.routing.pod_networks
        clusters = tuple(ip_network(text) for text in access.cluster_cidrs)
        self._rules = separation(self._settings, clusters) if held is None else held

    def finding(self, client: Address, address: Address, network: NodePodNetwork, port: int) -> ExplainerFinding:
        """The finding about one end."""
        own, protocol = self._own, self._question.protocol
        route = refusing_route(self._rules, client, address, protocol, port)
        if route is not None:
            problem = f"{address} is in the pod network {network}, and the client in {own}"
            lack = f"no contract joins them for {protocol.upper()}/{port}"
            message = f"{problem}; {lack}, so {self._question.node.metadata.name} refuses the packet by {shown(route)}"
            return ExplainerFinding(part=PART, message=message, outcome="refused")
        if network.name == own.name:
            return ExplainerFinding(part=PART, message=f"both ends are in the pod network {own}")
        ends = {own.name, network.name}
        names = [
            contract.name for contract in self._settings.contracts if {contract.consumer, contract.provider} == ends
        ]
        by = f"by the contract {', '.join(names)}" if names else "by rules for which there is no contract any more"
        return ExplainerFinding(part=PART, message=f"from the pod network {own} to {network}, joined {by}")


def _network(nodes: Sequence[Node], address: Address) -> NodePodNetwork | None:
    return next((network for node in nodes if (network := network_at(node, address)) is not None), None)


def _ports(answer: Answer) -> dict[str, int]:
    """The ports of the endpoints by their addresses."""
    return {endpoint.address: endpoint.port for hop in answer.hops for endpoint in hop.endpoints if endpoint.used}
