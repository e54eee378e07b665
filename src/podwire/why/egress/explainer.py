"""The explainer of EgressPolicies: with which source a pod's packets leave the cluster, and through which node (pure).

The first policy, in the order of names, that selects the pod and the destination decides. The node is that of the
policy's status, which the controller writes. Connections that end inside the cluster, or that Services translate, read
no policy.
"""

from contextlib import suppress
from ipaddress import ip_address, ip_network

from msgspec.structs import replace

from podwire.cluster.podnetworks import further_ranges
from podwire.cluster.world import World
from podwire.errors import ClusterError, ConfigError
from podwire.model.egress import Address, EgressPolicy, EgressScope, read_egress_policy
from podwire.model.meta import key_of
from podwire.model.pod import Pod
from podwire.why.answer import Answer, ExplainerFinding, SourceTranslation
from podwire.why.cluster import ClusterAccess
from podwire.why.question import Question

PART = "egress"


async def explain_egress(question: Question, answer: Answer, cluster: ClusterAccess) -> Answer:
    """The answer with the EgressPolicy that decides; ``outcome`` is dropped where no node has the address.

    Raises: ApiError, ApiUnreachable.
    """
    source, target = question.source, question.target
    if source.kind != "Pod" or answer.outcome != "untouched" or not target.address or question.on_node:
        return answer
    destination = ip_address(target.address)
    if await _is_inside(destination, cluster):
        return answer
    policies = await cluster.objects.egress_policies()
    if not policies:
        return answer
    world = await cluster.objects.world(frozenset({source.name}), frozenset())
    pod = next((candidate for candidate in world.pods if key_of(candidate.metadata) == source.name), None)
    ordered = sorted(policies, key=lambda policy: policy.metadata.name)
    selecting = next((policy for policy in ordered if _selects(policy, pod, world, destination)), None)
    return _explained(answer, selecting, destination) if selecting is not None else answer


async def _is_inside(destination: Address, cluster: ClusterAccess) -> bool:
    """Whether an address is a pod's or a node's."""
    if destination.is_multicast or destination.is_link_local or destination.is_loopback:
        return True
    nodes = await cluster.objects.nodes()
    own = {str(destination)} & {address for node in nodes for address in node.addresses}
    texts = {cidr for node in nodes for cidr in (*node.pod_cidrs, *map(str, further_ranges(node)))}
    with suppress(ClusterError):  # Nothing of that node may be known here.
        texts.update(cidr for node in nodes[:1] for cidr in cluster.nodes.access(node.metadata.name).cluster_cidrs)
    return bool(own) or any(_contains(text, destination) for text in texts)


def _contains(text: str, address: Address) -> bool:
    network = ip_network(text)
    return network.version == address.version and address in network


def _scope(policy: EgressPolicy) -> EgressScope | None:
    try:
        return read_egress_policy(policy)
    except ConfigError:
        return None


def _selects(policy: EgressPolicy, pod: Pod | None, world: World, destination: Address) -> bool:
    """Whether a policy is about a pod's packets to a destination."""
    scope = _scope(policy)
    if scope is None or pod is None or pod.spec.host_network:
        return False
    labels = world.labels_of(pod.metadata.namespace)
    if not scope.namespaces.matches(labels) or not scope.pods.matches(pod.metadata.labels):
        return False
    if any(n.version == destination.version and destination in n for n in scope.excluded):
        return False
    destinations = scope.destinations
    return not destinations or any(n.version == destination.version and destination in n for n in destinations)


def _explained(answer: Answer, policy: EgressPolicy, destination: Address) -> Answer:
    scope, name = _scope(policy), f"EgressPolicy {policy.metadata.name}"
    address = scope.address(destination.version) if scope is not None else None
    node = policy.status.node
    if address is None:
        return _dropped(answer, f"{name} has no IPv{destination.version} address, so the packet is dropped")
    if not node:
        conditions = policy.status.conditions
        why = f": {conditions[0].message}" if conditions else "; its status says no node yet"
        return _dropped(answer, f"{name}: no node has {address}, so the packet is dropped{why}")
    message = f"{name}: through node {node}, which has {address}; the receiver sees {address}"
    translation = SourceTranslation(masqueraded=True, reason="EgressPolicy", message=f"{address}, by {name} on {node}")
    hops = (*answer.hops[:-1], replace(answer.hops[-1], snat=translation)) if answer.hops else answer.hops
    return replace(answer, hops=hops, findings=(*answer.findings, ExplainerFinding(part=PART, message=message)))


def _dropped(answer: Answer, message: str) -> Answer:
    finding = ExplainerFinding(part=PART, message=message)
    return replace(answer, outcome="dropped", findings=(*answer.findings, finding))
