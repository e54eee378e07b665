"""Which node answers for an address (pure).

Every agent derives the same node from the same objects, without asking the others. The candidates are the nodes that an
L2Advertisement selects, that are alive, reachable, and not excluded from load balancers; for a Service with
``externalTrafficPolicy: Local`` only those with an endpoint that serves. Of the candidates, the one with the lowest
SHA-256 of ``node#address`` answers, as in MetalLB, so addresses spread over the nodes; where advertisements of the pool
prefer nodes, the sum of their weights comes before that. A Service without any endpoint
that serves is announced by nobody. Services that share an address are announced by one node together.

Cost: one hash for each address and candidate, remembered while the candidates stay the same.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from podwire.loadbalancer.advertisements import L2Scope
from podwire.loadbalancer.pools import BalancerPool, BalancerPools
from podwire.loadbalancer.ranges import Address, parse_address
from podwire.loadbalancer.request import FROM_POOL
from podwire.model.meta import is_true, key_of
from podwire.model.node import Node
from podwire.model.service import EndpointSlice, Service

EXCLUDED = "node.kubernetes.io/exclude-from-external-load-balancers"

Candidates = frozenset[str]


class L2Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The node that answers for an address, empty for none, and why."""

    address: Address
    services: tuple[str, ...]
    node: str
    candidates: tuple[str, ...] = ()
    """Best first."""
    reason: str = ""
    """Why no node answers."""
    interfaces: frozenset[str] = frozenset()
    """The devices on which the node answers; empty: the one with the node's own address."""


class Serving(msgspec.Struct, frozen=True):
    """The nodes with an endpoint that serves; ``anywhere`` counts endpoints without a node too."""

    nodes: Candidates = frozenset()
    anywhere: bool = False


def serving(slices: Iterable[EndpointSlice]) -> Serving:
    """Where the endpoints of a Service serve."""
    nodes, anywhere = set(), False
    for item in slices:
        for endpoint in item.endpoints or ():
            conditions = endpoint.conditions
            serves = conditions.serving if conditions.serving is not None else conditions.ready
            if serves or serves is None:
                anywhere = True
                if endpoint.node_name:
                    nodes.add(endpoint.node_name)
    return Serving(frozenset(nodes), anywhere)


def can_announce(node: Node) -> bool:
    """Whether a node may have addresses of load balancers at all."""
    if EXCLUDED in node.metadata.labels or node.metadata.deletion_timestamp is not None:
        return False
    return not is_true(node.status.conditions, "NetworkUnavailable")


class L2Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the choice depends on."""

    services: Mapping[str, Service]
    endpoints: Mapping[str, Serving]
    """By Service; a Service that is not in it has no endpoint."""
    pools: BalancerPools
    scopes: Mapping[str, L2Scope]
    nodes: Mapping[str, Node]
    alive: Candidates


def addresses_of(service: Service) -> tuple[Address, ...]:
    """The addresses of a Service that come from pools."""
    if service.spec.type != "LoadBalancer" or FROM_POOL not in service.metadata.annotations:
        return ()
    parsed = (parse_address(entry.ip) for entry in service.status.load_balancer.ingress if entry.ip)
    return tuple(address for address in parsed if address is not None)


class _Ballot(NamedTuple):
    """What the order of the candidates for an address depends on."""

    address: Address
    candidates: Candidates
    weights: frozenset[tuple[str, int]]


class Elector:
    """Chooses the nodes of all addresses; remembers the order of candidates."""

    def __init__(self) -> None:
        self._orders: dict[_Ballot, tuple[str, ...]] = {}

    def choose(self, facts: L2Facts) -> dict[Address, L2Choice]:
        """The choice for each address that an L2Advertisement announces."""
        usable = {name for name, node in facts.nodes.items() if can_announce(node)}
        by_scope = {
            name: frozenset(node for node in usable if scope.has_node(facts.nodes[node]))
            for name, scope in facts.scopes.items()
        }
        holders: dict[Address, list[Service]] = {}
        for service in facts.services.values():
            for address in addresses_of(service):
                holders.setdefault(address, []).append(service)
        orders, self._orders = self._orders, {}
        choices = {}
        for address, services in holders.items():
            choice = self._choice(facts, by_scope, address, services, orders)
            if choice is not None:
                choices[address] = choice
        return choices

    def _choice(
        self,
        facts: L2Facts,
        by_scope: Mapping[str, Candidates],
        address: Address,
        services: list[Service],
        orders: Mapping[_Ballot, tuple[str, ...]],
    ) -> L2Choice | None:
        pool = facts.pools.of(address)
        keys = tuple(sorted(key_of(service.metadata) for service in services))
        scopes = [
            scope
            for scope in facts.scopes.values()
            if pool is not None and scope.has_pool(pool) and any(scope.has_service(item) for item in services)
        ]
        if not scopes:
            return None
        selected: Candidates = frozenset().union(*(by_scope[scope.name] for scope in scopes))
        candidates, reason = _limit(facts, services, selected)
        if not candidates:
            return L2Choice(address=address, services=keys, node="", reason=reason)
        ballot = _Ballot(address, candidates, _weights(facts, pool, candidates))
        order = orders.get(ballot) or _order(ballot)
        self._orders[ballot] = order
        best = facts.nodes[order[0]]
        devices = [scope.interfaces for scope in scopes if scope.has_node(best)]
        interfaces = frozenset().union(*devices) if all(devices) else frozenset[str]()
        return L2Choice(address=address, services=keys, node=order[0], candidates=order, interfaces=interfaces)


def _limit(facts: L2Facts, services: Collection[Service], selected: Candidates) -> tuple[Candidates, str]:
    """The candidates among the selected nodes, or why there is none."""
    if not selected:
        return selected, "no L2Advertisement selects a node that may announce"
    alive = selected & facts.alive
    if not alive:
        return alive, "no agent renews its Lease on the nodes that the L2Advertisement selects"
    serving_nodes = [facts.endpoints.get(key_of(service.metadata), Serving()) for service in services]
    if not any(item.anywhere for item in serving_nodes):
        return frozenset(), "no endpoint of the Service serves"
    for service, item in zip(services, serving_nodes, strict=True):
        if service.spec.external_traffic_policy == "Local" and item.anywhere:
            alive &= item.nodes
    return alive, "" if alive else "externalTrafficPolicy is Local, and no node that may announce has an endpoint"


def _weights(facts: L2Facts, pool: BalancerPool | None, candidates: Candidates) -> frozenset[tuple[str, int]]:
    """The candidates that advertisements of a pool prefer, with the sums of their weights.

    As with MetalLB, it does not matter which Services an advertisement selects.
    """
    scopes = [scope for scope in facts.scopes.values() if scope.preferred and pool is not None and scope.has_pool(pool)]
    sums = {node: sum(scope.weight(facts.nodes[node]) for scope in scopes) for node in (candidates if scopes else ())}
    return frozenset((node, weight) for node, weight in sums.items() if weight)


def _order(ballot: _Ballot) -> tuple[str, ...]:
    weights, text = dict(ballot.weights), f"#{ballot.address}"

    def rank(node: str) -> tuple[int, bytes]:
        return -weights.get(node, 0), hashlib.sha256((node + text).encode()).digest()

    return tuple(sorted(ballot.candidates, key=rank))
