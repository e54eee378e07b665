"""The difference between the routes that nodes need and those that a cloud's tables have (pure).

Each pod CIDR of each node needs a route to the interface with the node's address, in every table. The interface must
forward, because its packets have the addresses of pods. What the tables have inside the cluster's pod networks beyond
that is deleted if it belongs to podwire (:mod:`podwire.controllers.cloudroutes.provider`). Anything else is not
touched, and a foreign route to a pod CIDR is a problem of that node.

The order is: delete routes (which frees room in a full table), claim interfaces, add routes, release interfaces. An
interface is released only when no route leads to it any more, as the cloud showed before this plan. So a controller
that is killed between two calls leaves nothing that its successor cannot recognise: a mark is written before the first
route and removed after the last one.

A node whose instance is not known keeps its routes, unless their target no longer exists.

Cost: linear in nodes and routes; a second plan for a cloud that has everything is empty.
Source: the route controller of Kubernetes (``k8s.io/cloud-provider/controllers/route``).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from podwire.controllers.cloudroutes.provider import (
    AddRoute,
    Change,
    Claim,
    CloudInterface,
    CloudRoute,
    CloudState,
    CloudTable,
    DeleteRoute,
    Network,
    Release,
)

NO_TABLE = "the cloud has no route table for this cluster"


class CloudNode(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A node as the cloud's routes need it; ``instance`` is empty when ``problem`` says why it is not known."""

    name: str
    instance: str = ""
    addresses: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    problem: str = ""


class CloudPlan(msgspec.Struct, frozen=True):
    """The changes in their order, each with the node that needs it (empty for none), and nodes without a route.

    ``problems`` has the reason for each node that cannot have all of its routes.
    """

    changes: tuple[tuple[Change, str], ...] = ()
    problems: Mapping[str, str] = {}

    def __str__(self) -> str:
        lines = [f"{change}\n" for change, _ in self.changes]
        return "".join([*lines, *(f"# {node}: {problem}\n" for node, problem in sorted(self.problems.items()))])


def plan(nodes: Iterable[CloudNode], state: CloudState, pod_networks: Sequence[Network]) -> CloudPlan:
    """The changes that give every node its routes; ``pod_networks`` are those of the whole cluster."""
    routed = [node for node in sorted(nodes, key=lambda node: node.name) if node.networks]
    problems = {node.name: node.problem for node in routed if node.problem}
    targets: dict[str, CloudInterface] = {}
    for node in routed:
        interface = choose_interface(node, state)
        if interface is not None:
            targets[node.name] = interface
        elif not node.problem:
            problems[node.name] = f"instance {node.instance} does not exist, or has no interface"
    if not state.tables:
        problems |= dict.fromkeys((node.name for node in routed), NO_TABLE)
    _refuse_shared(routed, problems, targets)
    destinations = {
        network: (node.name, targets[node.name]) for node in routed if node.name in targets for network in node.networks
    }
    needed = {network for node in routed for network in node.networks}
    deleted: list[tuple[Change, str]] = []
    added: list[tuple[Change, str]] = []
    for table in state.tables:
        superfluous = _superfluous(table, state, needed - destinations.keys(), pod_networks)
        deleted += [(DeleteRoute(table.id, network), "") for network in superfluous if network not in destinations]
        added += _missing(table, state, destinations, problems)
    claimed = [
        (Claim(interface.id, interface.restores if interface.marked else not interface.forwards), name)
        for name, interface in targets.items()
        if state.tables and not (interface.marked and interface.forwards)
    ]
    unknown = {address for node in routed if node.name not in targets for address in node.addresses}
    released = [
        (Release(interface.id, interface.restores), "")
        for interface in _unused(state, {interface.id for interface in targets.values()}, pod_networks)
        if not unknown & set(interface.addresses)
    ]
    return CloudPlan((*deleted, *claimed, *added, *released), problems)


def choose_interface(node: CloudNode, state: CloudState) -> CloudInterface | None:
    """The interface of the node's instance that has the node's address, else the first one; None without any."""
    own = [
        interface for interface in state.interfaces.values() if node.instance and interface.instance == node.instance
    ]
    own.sort(key=lambda candidate: (not set(candidate.addresses) & set(node.addresses), candidate.index, candidate.id))
    return own[0] if own else None


def _refuse_shared(nodes: Iterable[CloudNode], problems: dict[str, str], targets: dict[str, CloudInterface]) -> None:
    """Takes the target from nodes with a pod CIDR that an earlier node has, too."""
    holders: dict[Network, str] = {}
    for node in nodes:
        for network in node.networks:
            other = holders.setdefault(network, node.name)
            if other != node.name:
                problems[node.name] = f"pod CIDR {network} is also that of node {other}"
                targets.pop(node.name, None)


def _is_ours(route: CloudRoute, state: CloudState) -> bool:
    interface = state.interfaces.get(route.target)
    return bool(route.target) and (route.dead or (interface is not None and interface.marked))


def _superfluous(
    table: CloudTable, state: CloudState, needed: set[Network], pod_networks: Sequence[Network]
) -> list[Network]:
    """The destinations of podwire's routes that no node needs, or whose target no longer exists."""
    return [
        route.network
        for route in table.routes
        if _inside(route.network, pod_networks)
        and _is_ours(route, state)
        and (route.network not in needed or route.dead)
    ]


def _missing(
    table: CloudTable,
    state: CloudState,
    destinations: Mapping[Network, tuple[str, CloudInterface]],
    problems: dict[str, str],
) -> list[tuple[Change, str]]:
    present = {route.network: route for route in table.routes}
    changes: list[tuple[Change, str]] = []
    for network, (name, interface) in destinations.items():
        route = present.get(network)
        if route is None:
            changes.append((AddRoute(table.id, network, interface.id), name))
        elif route.target != interface.id:  # A route to a stopped instance is dead, and right.
            if _is_ours(route, state):
                changes.append((AddRoute(table.id, network, interface.id, replace=True), name))
            else:
                target = route.target or "something that is no interface"
                problems[name] = f"table {table.id} has a route of others to {network}, via {target}: delete it"
    return changes


def _unused(state: CloudState, used: set[str], pod_networks: Sequence[Network]) -> list[CloudInterface]:
    """The marked interfaces that no node uses and to which no route of podwire leads."""
    led = {route.target for table in state.tables for route in table.routes if _inside(route.network, pod_networks)}
    return [
        interface
        for _, interface in sorted(state.interfaces.items())
        if interface.marked and interface.id not in used and interface.id not in led
    ]


def _inside(network: Network, pod_networks: Sequence[Network]) -> bool:
    return any(network.version == pods.version and network.subnet_of(pods) for pods in pod_networks)  # type: ignore[arg-type]
