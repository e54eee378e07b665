"""The explainer of routing: by which route, device and tunnel packets travel between the nodes of a connection (pure).

For each node with a pod that the connection may reach there is the route there, from the node that decided about the
Service; and, where the packet keeps the address of a pod, the route back. The backend follows the entries
(:mod:`podwire.routing.paths`), so nothing here knows a backend.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Literal

from msgspec.structs import replace

from podwire.cluster.podnetworks import further_ranges, network_at
from podwire.errors import ClusterError
from podwire.model.node import Node
from podwire.routing.nodes import Address
from podwire.routing.paths import PathExplainer, PathState, PeerPath, follow_route, lookup, shown
from podwire.why.answer import Answer, Drift, NodeRoute, TunnelHeader
from podwire.why.cluster import ClusterAccess
from podwire.why.nodes import Nodes
from podwire.why.question import Question
from podwire.why.routing.planned import NodeRoutes

_NAMED_PEERS = 8
"""Nodes to which the route is shown; a Service may have endpoints on every node."""

Direction = Literal["request", "reply"]


async def explain_routing(question: Question, answer: Answer, cluster: ClusterAccess) -> Answer:
    """The answer with the routes between nodes; ``outcome`` is dropped where every route is interrupted.

    Raises: KernelError, ClusterError when a node that sends cannot be read; ApiError, ApiUnreachable.
    """
    ends = list(dict.fromkeys(ends_of(answer)))
    if not ends:
        return answer
    owners = PodOwners(await cluster.objects.nodes())
    sender = owners.named(answer.hops[-1].node)
    if sender is None:
        return answer
    peers: dict[str, tuple[Node, Address]] = {}
    for text in ends:
        address = ip_address(text)
        owner = owners.of(address)
        if owner is not None and owner.metadata.name != sender.metadata.name:
            peers.setdefault(owner.metadata.name, (owner, address))
    explained = _Routes(answer, sender, owners, cluster.nodes)
    routes = [route for node, address in list(peers.values())[:_NAMED_PEERS] for route in explained.both(node, address)]
    if len(peers) > _NAMED_PEERS:
        explained.notes.append(f"the routes to {len(peers) - _NAMED_PEERS} more nodes are not shown")
    lost = {route.peer if route.direction == "request" else route.node for route in routes if route.lost}
    all_lost = bool(lost) and lost == {_owner(owners, text) for text in ends}
    return replace(
        answer,
        outcome="dropped" if all_lost else answer.outcome,
        routes=tuple(routes),
        notes=tuple(dict.fromkeys((*answer.notes, *explained.notes))),
    )


class PodOwners:
    """Nodes by the pod networks that they have."""

    def __init__(self, nodes: tuple[Node, ...]) -> None:
        self._nodes = nodes

    def named(self, name: str) -> Node | None:
        """A node by its name."""
        return next((node for node in self._nodes if node.metadata.name == name), None)

    def of(self, address: Address) -> Node | None:
        """The node with the pod network of an address."""
        for node in self._nodes:
            ranges = (*node.pod_networks, *further_ranges(node))
            if any(network.version == address.version and address in network for network in ranges):
                return node
        return None


def _owner(owners: PodOwners, text: str) -> str:
    owner = owners.of(ip_address(text))
    return owner.metadata.name if owner is not None else ""


def ends_of(answer: Answer) -> Iterator[str]:
    """The addresses to which packets go after translation; none where policies or Services drop all of them."""
    if not answer.hops or answer.outcome not in ("forwarded", "untouched"):
        return
    last = answer.hops[-1]
    used = [endpoint.address for endpoint in last.endpoints if endpoint.used]
    if used:
        yield from used
    elif last.outcome == "untouched" and answer.target.address:
        yield answer.target.address


class _Routes:
    """The routes from one node to others, and back to the client; ``notes`` say how nodes were read."""

    def __init__(self, answer: Answer, sender: Node, owners: PodOwners, nodes: Nodes) -> None:
        self.notes: list[str] = []
        self._sender = sender
        self._nodes = nodes
        source = answer.source.address
        client = ip_address(source) if source else None
        hidden = answer.hops[-1].snat is not None and answer.hops[-1].snat.masqueraded
        is_own = client is not None and owners.of(client) is sender
        self._client = client if is_own and not hidden else None
        """The pod to which replies go; None: they go to a node, or leave the pod networks."""

    def both(self, peer: Node, address: Address) -> Iterator[NodeRoute]:
        """The route to a pod of a peer, and the route back."""
        yield self._with_remarks(*explain_route(self._nodes, self._sender, peer, address, source=self._client))
        if self._client is None or self._client.version != address.version:
            return
        try:
            reply = explain_route(self._nodes, peer, self._sender, self._client, "reply", source=address)
            yield self._with_remarks(*reply)
        except ClusterError as failure:
            self.notes.append(f"the route back is not shown: {failure}")

    def _with_remarks(self, route: NodeRoute, notes: tuple[str, ...]) -> NodeRoute:
        self.notes += notes
        return route


def explain_route(
    nodes: Nodes,
    sender: Node,
    peer: Node,
    address: Address,
    direction: Direction = "request",
    *,
    source: Address | None = None,
) -> tuple[NodeRoute, tuple[str, ...]]:
    """The route from one node to an address of another node, and notes on how the nodes were read.

    ``source`` is the address of the pod that sends; None: it is not known, or the packet has a node's address.

    Raises: KernelError, ClusterError when the sender cannot be read.
    """
    routes = nodes.routes(sender, peer)
    state = replace(routes.held or routes.desired, source=source)
    backend, problem = _sender(routes)
    path = PeerPath(missing=(problem,)) if problem else _path(routes, backend, address, state)
    route = NodeRoute(
        direction=direction,
        node=sender.metadata.name,
        peer=peer.metadata.name,
        backend=backend,
        state="held" if routes.held is not None else "planned",
        address=str(address),
        network=str(network_at(peer, address) or ""),
        route=shown(path.route) if path.route is not None else "",
        device=path.route.link if path.route is not None else "",
        mtu=path.mtu,
        tunnel=_header(path, state),
        missing=path.missing,
        drift=tuple(Drift(where="routing", sign=sign, text=text) for sign, text in routes.drift),
    )
    return route, routes.notes


def _sender(routes: NodeRoutes) -> tuple[str, str]:
    """The backend that sends to the peer, and why none does."""
    if routes.planned is None:
        return "", ""
    problem = next(
        (
            reason_of_problem.reason
            for reason_of_problem in routes.planned.problems
            if reason_of_problem.peer == routes.peer.name
        ),
        "",
    )
    return routes.planned.senders.get(routes.peer.name, routes.planned.facts.backend), problem


def _path(routes: NodeRoutes, name: str, address: Address, state: PathState) -> PeerPath:
    backend = routes.backends.get(name)
    if isinstance(backend, PathExplainer):
        return backend.path(routes.me, routes.peer, address, state)
    return follow_route(state.network, routes.peer, address, any_route=not name)


def _header(path: PeerPath, state: PathState) -> TunnelHeader | None:
    """The outer header, and the route that the outer packet takes."""
    tunnel = path.tunnel
    if tunnel is None:
        return None
    outer = lookup(state.network, ip_address(tunnel.destination)) if tunnel.destination else None
    return TunnelHeader(
        protocol=tunnel.protocol,
        id=tunnel.id,
        port=tunnel.port,
        source=tunnel.source,
        destination=tunnel.destination,
        encrypted=tunnel.encrypted,
        device=outer.link if outer is not None else "",
        gateway=outer.via if outer is not None else "",
    )
