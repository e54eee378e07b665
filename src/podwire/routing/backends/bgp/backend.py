"""Pod routing by BGP: plain routes, learned from routers and announced to them by BIRD 2, one process per node.

Routes to peers on the node's own subnet are those of ``hostgw``: podwire writes them itself, so that neither a restart
of BIRD nor a change of the backend takes them away. BIRD announces the node's pod CIDRs to all its neighbours and
writes what it learns beyond those routes: pods of nodes behind routers, and networks of external routers.

Neighbours of a node: all nodes that run BIRD (the mesh), or only the route reflectors; and external peers. Sessions
carry one family each (``sessions``). Objects of ``projectcalico.org/v3`` have precedence over the section
``routing.bgp`` (``objects``, followed by ``follow``). Of two nodes, the one with the lower address opens the
connection; with connections from both ends, a mesh of 100 nodes takes a second longer. The configuration is generated
(``podwire.bgp``), checked by ``bird -p`` and read by the running BIRD; only a changed command restarts it, by SIGKILL,
after which kernel and neighbours keep the routes (RFC 4724).

Cost per peer and family: one route, and in the mesh one session.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from podwire.bgp.birdconf import SessionTexts
from podwire.bgp.configuration import Address, BgpConfiguration, BgpSession, Network, with_services
from podwire.bgp.process import bird_child, router_id
from podwire.routing.backend import BackendPlan
from podwire.routing.backends.bgp.objects import NO_SERVICES, BgpObjects
from podwire.routing.backends.bgp.options import BgpOptions
from podwire.routing.backends.bgp.sessions import Sessions, peers_of, section_of
from podwire.routing.direct import DirectRoutes, behind_router, no_address
from podwire.routing.nodes import ClusterView, LocalNode, Peer
from podwire.routing.paths import PathState, PeerPath, follow_plain_route, follow_route
from podwire.routing.peerstates import PeerResults
from podwire.state.address import address_text
from podwire.state.network import NetworkState, merge
from podwire.state.route import Route

RTPROT_BIRD = 12  # linux/rtnetlink.h


class BgpRouting:
    """Routes through the peers themselves, and through routers that BIRD informs."""

    name = "bgp"
    feature = "bird"
    options = BgpOptions
    tables = ()
    announced = True
    crosses_routers = True
    udp_ports = ()

    def __init__(self, options: BgpOptions) -> None:
        self._section = options.bgp
        self._objects = BgpObjects()
        self._knows_objects = False
        self._routes = DirectRoutes()
        self._near = PeerResults[tuple[str, ...]]()
        self._mesh = PeerResults[tuple[BgpSession, ...]]()
        self._texts = SessionTexts()

    def take_objects(self, objects: BgpObjects) -> None:
        """Sets what the objects of ``projectcalico.org/v3`` say."""
        self._objects = objects
        self._knows_objects = True

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The node's autonomous system number."""
        return {"bgp": {"asNumber": section_of(self._section, self._objects, me).as_number}}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """A route for each peer of the same subnet, and BIRD for all others."""
        near = self._near.take(
            peers,
            me.underlay.addresses,
            lambda peer: tuple(map(address_text, filter(me.underlay.reaches, peer.addresses))),
        )
        section, values = section_of(self._section, self._objects, me), self._objects.of_node(me.name)
        sessions = Sessions(self._section, self._objects, me, cluster, self._mesh)
        gateways = tuple(sessions.gateways())
        ranges = values.service_ranges.announced if values.service_ranges is not None else ()
        services = (*ranges, *self._objects.service_addresses) if NO_SERVICES not in me.labels else ()
        configuration = BgpConfiguration(
            router_id=router_id(me.address(4), me.name),
            link=me.underlay.link,
            networks=(*me.pod_cidrs, *_of_families(services, me)),
            ignored_devices=values.ignored_devices or (),
            writes_pod_routes=values.writes_pod_routes is not False,
            unsent=tuple(pool.network for pool in self._objects.pools if not pool.is_sent),
            tags=values.tags or (),
            gateways=gateways,
            strict_bind=bool(values.strict_bind),
            sources=tuple(a for version in (4, 6) if (a := me.address(version)) is not None),
            pod_networks=cluster.pod_networks,
            planned_next_hops=tuple([text for peer in peers for text in near[peer.name]]),
            sessions=tuple(sessions.plan()),
            restart_time_s=section.restart_time_s,
            log_file=f"{me.run_dir}/bird.log",
            log_level=section.log_level,
        )
        further = NetworkState(routes=tuple(_gateway_route(me, *gateway) for gateway in gateways))
        network = merge([self._routes.state(me, peers), further])
        configuration = with_services(configuration, self._objects.services)
        return BackendPlan(network=network, children=(bird_child(me.run_dir, configuration, self._texts),))

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether the peer is on the same subnet, or both run BIRD and this node has a session with a router."""
        if reason := no_address(peer):
            return reason
        reason = behind_router(me, peer)
        if reason and self._objects.of_node(me.name).writes_pod_routes is False:
            return f"{reason}, and programClusterRoutes of the BGPConfiguration keeps BIRD from writing routes to pods"
        if reason and not self._has_router(me):
            return f"{reason}, and neither routing.bgp.peers nor a BGPPeer names a router for {me.name}"
        if reason and peer.facts is not None and "bgp" not in peer.facts.details:
            return f"{reason} and does not run BGP yet"
        return ""

    @staticmethod
    def route_protocol() -> int:
        """That of BIRD, for nodes behind routers."""
        return RTPROT_BIRD

    def has_routes(self, me: LocalNode, peer: Peer) -> bool:
        """Whether BIRD has written the routes to the peer; those inside the subnet are podwire's."""
        networks = {str(cidr) for cidr in peer.pod_cidrs}
        return not behind_router(me, peer) or networks <= (me.learned or frozenset())

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route through a peer of the same subnet; to others, the route that BIRD learned."""
        if not behind_router(me, peer):
            return follow_plain_route(state.network, peer, address)
        path = follow_route(state.network, peer, address)
        learned = tuple(f"{problem}; BIRD has learned none" for problem in path.missing)
        return replace(path, missing=learned)

    def overhead(self, me: LocalNode) -> int:
        """0: packets between nodes are not encapsulated."""
        return 0

    def _has_router(self, me: LocalNode) -> bool:
        """Whether the node may have a session with a router: without the objects this cannot be denied."""
        return (
            not self._knows_objects
            or bool(peers_of(self._section, me))
            or any(peer.is_of(me) for peer in self._objects.peers)
        )


def _of_families(networks: Iterable[Network], me: LocalNode) -> tuple[Network, ...]:
    """The networks of the families of the node's pods."""
    families = {cidr.version for cidr in me.pod_cidrs}
    return tuple(network for network in networks if network.version in families)


def _gateway_route(me: LocalNode, remote: Address, gateway: Address) -> Route:
    source = me.address(remote.version)
    return Route(
        dst=f"{remote}/{remote.max_prefixlen}",
        via=str(gateway),
        link=me.underlay.link,
        src=str(source) if source else "",
    )
