"""The explainer of load balancers: where an address comes from, which node answers or announces, and why (pure).

The choice of nodes is derived from the objects as each agent derives it; the Lease of the address says who holds it.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.loadbalancer.advertisements import read_l2_scopes
from podwire.loadbalancer.bgppeers import (
    Vocabulary,
    read_advertisement,
    read_communities,
    read_each,
    read_peer,
    read_profile,
)
from podwire.loadbalancer.bgproutes import BalancedRoutes, BgpFacts, plan_routes
from podwire.loadbalancer.election import Elector, L2Choice, L2Facts, Serving, addresses_of, serving
from podwire.loadbalancer.pools import BalancerPools, read_pools
from podwire.loadbalancer.ranges import Address
from podwire.model.meta import key_of
from podwire.model.node import Node
from podwire.model.service import Service
from podwire.why.answer import Answer, ExplainerFinding
from podwire.why.cluster import ClusterAccess
from podwire.why.objects import BalancerObjects
from podwire.why.question import Question

PART = "loadbalancer"


async def explain_balancers(question: Question, answer: Answer, cluster: ClusterAccess) -> Answer:
    """The answer with the pool and the nodes of the address of a load balancer.

    Raises: ApiError, ApiUnreachable.
    """
    if not question.target.address:
        return answer
    address = ip_address(question.target.address)
    services = [
        service for service in await cluster.objects.services_at(str(address), 0) if address in addresses_of(service)
    ]
    if not services:
        return answer
    objects = await cluster.objects.balancers()
    endpoints = {key_of(item.metadata): serving(await cluster.objects.slices(item)) for item in services}
    nodes = {node.metadata.name: node for node in await cluster.objects.nodes()}
    pools = read_pools(objects.pools, {})
    keyed = {key_of(service.metadata): service for service in services}
    messages = [_pool_text(address, pools, keyed), *_l2_texts(objects, pools, keyed, endpoints, nodes, address)]
    messages += _bgp_texts(objects, pools, keyed, endpoints, nodes)
    if len(messages) == 1:
        messages.append(f"no L2Advertisement and no BGPAdvertisement announces {address}")
    findings = (ExplainerFinding(part=PART, message=message) for message in messages)
    return replace(answer, findings=(*answer.findings, *findings))


def _pool_text(address: Address, pools: BalancerPools, services: Mapping[str, Service]) -> str:
    pool, names = pools.of(address), ", ".join(f"Service {key}" for key in sorted(services))
    source = f"IPAddressPool {pool.name}" if pool is not None else "no IPAddressPool that exists now"
    return f"{address} of {names} comes from {source}"


def _l2_texts(
    objects: BalancerObjects,
    pools: BalancerPools,
    services: Mapping[str, Service],
    endpoints: Mapping[str, Serving],
    nodes: Mapping[str, Node],
    address: Address,
) -> Iterable[str]:
    scopes, _ = read_l2_scopes(objects.l2_advertisements, {})
    alive = frozenset(objects.speakers)
    facts = L2Facts(services=services, endpoints=endpoints, pools=pools, scopes=scopes, nodes=nodes, alive=alive)
    choice = Elector().choose(facts).get(address)
    if choice is not None:
        yield _choice_text(choice, objects.holders.get(str(address), ""))


def _choice_text(choice: L2Choice, holder: str) -> str:
    protocol = "ARP" if choice.address.version == 4 else "NDP"
    if not choice.node:
        held = f"; {holder} holds it" if holder else ""
        return f"no node answers {protocol} for {choice.address}: {choice.reason}{held}"
    among = f"lowest hash of the candidates {', '.join(sorted(choice.candidates))}"
    if holder == choice.node:
        return f"node {holder} answers {protocol} for {choice.address}: {among}"
    state = f"{holder} still holds it" if holder else "it does not hold it yet"
    return f"node {choice.node} should answer {protocol} for {choice.address}: {among}; {state}"


def _bgp_texts(
    objects: BalancerObjects,
    pools: BalancerPools,
    services: Mapping[str, Service],
    endpoints: Mapping[str, Serving],
    nodes: Mapping[str, Node],
) -> Iterable[str]:
    names = _vocabulary(objects)
    scopes, _ = read_each(objects.bgp_advertisements, {}, lambda item: read_advertisement(item, names))
    peers, _ = read_each(objects.peers, {}, lambda item: read_peer(item, names))
    facts = BgpFacts(services=services, endpoints=endpoints, pools=pools, scopes=scopes, peers=peers)
    planned = {name: plan_routes(facts, node) for name, node in nodes.items()} if scopes and peers else {}
    by_route: dict[tuple[str, str], list[str]] = {}
    for name, routes in planned.items():
        for entry in routes.announcements:
            by_route.setdefault((str(entry.network), entry.peers[0]), []).append(name)
    for (network, peer), announcing in sorted(by_route.items()):
        yield f"{', '.join(announcing)} announce {network} to BGPPeer {peer}" + _local_text(services)
    yield from _contradictions(planned.values())


def _contradictions(planned: Iterable[BalancedRoutes]) -> Iterable[str]:
    yield from sorted({text for routes in planned for text in routes.problems.values()})


def _local_text(services: Mapping[str, Service]) -> str:
    local = any(service.spec.external_traffic_policy == "Local" for service in services.values())
    return " (externalTrafficPolicy Local: nodes with an endpoint)" if local else ""


def _vocabulary(objects: BalancerObjects) -> Vocabulary:
    communities = {}
    for item in objects.communities:
        try:
            communities.update(read_communities(item))
        except ConfigError:
            continue  # The agents report it.
    profiles, _ = read_each(objects.profiles, {}, read_profile)
    return Vocabulary(communities, profiles)
