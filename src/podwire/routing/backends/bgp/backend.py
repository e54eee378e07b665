"""Pod routing by BGP: plain routes, learned from routers and announced to them by BIRD 2, one process per node.

Routes to peers on the node's own subnet are those of ``hostgw``: podwire writes them itself, so that neither a restart
of BIRD nor a change of the backend takes them away. BIRD announces the node's pod CIDRs to all its neighbours and
writes what it learns beyond those routes: pods of nodes behind routers, and networks of external routers.

Neighbours of a node: all nodes that run BIRD (the mesh), or only the route reflectors; and external peers. Sessions
carry one family each. Of two nodes, the one with the lower address opens the connection; with connections from both
ends, a mesh of 100 nodes takes a second longer. The configuration is generated (``podwire.bgp``), checked by
``bird -p`` and read by the running BIRD; only a changed command restarts it, by SIGKILL, after which kernel and
neighbours keep the routes (RFC 4724).

Cost per peer and family: one route, and in the mesh one session.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

from podwire.bgp.birdconf import render
from podwire.bgp.configuration import Address, BgpConfiguration, BgpSession
from podwire.routing.backend import BackendPlan
from podwire.routing.backends.bgp.options import BgpOptions, ExternalPeer, community
from podwire.routing.direct import behind_router, direct_routes, no_address
from podwire.routing.nodes import ClusterView, LocalNode, Peer
from podwire.runtime.program import Child
from podwire.state.network import NetworkState

BIRD = "/usr/sbin/bird"
BIRDCL = "/usr/sbin/birdcl"


class BgpRouting:
    """Routes through the peers themselves, and through routers that BIRD informs."""

    name = "bgp"
    feature = "bird"
    options = BgpOptions
    tables = ()
    announced = True
    crosses_routers = False
    udp_ports = ()

    def __init__(self, options: BgpOptions) -> None:
        self._section = options.bgp

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The node's autonomous system number."""
        return {"bgp": {"asNumber": self._section.as_number}}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """A route for each peer of the same subnet, and BIRD for all others."""
        near = tuple(a for peer in peers for a in peer.addresses if me.underlay.reaches(a))
        configuration = BgpConfiguration(
            router_id=_router_id(me),
            link=me.underlay.link,
            networks=me.pod_cidrs,
            sources=tuple(a for version in (4, 6) if (a := me.address(version)) is not None),
            pod_networks=cluster.pod_networks,
            planned_next_hops=near,
            sessions=(*self._node_sessions(me, cluster), *self._external_sessions(me)),
            restart_time_s=self._section.restart_time_s,
            log_file=f"{me.run_dir}/bird.log",
            log_level=self._section.log_level,
        )
        file, control = f"{me.run_dir}/bird.conf", f"{me.run_dir}/bird.ctl"
        bird = Child(
            name="bird",
            argv=(BIRD, "-f", "-R", "-c", file, "-s", control),
            files={file: render(configuration).encode()},
            check=(BIRD, "-p", "-c", file),
            on_file_change="reload",
            reload=(BIRDCL, "-s", control, "configure"),
            restart_by="kill",
        )
        return BackendPlan(network=NetworkState(routes=direct_routes(me, peers)), children=(bird,))

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether the peer is on the same subnet, or both run BIRD and this node has a session with a router."""
        if reason := no_address(peer):
            return reason
        reason = behind_router(me, peer)
        if reason and not self._peers_of(me):
            return f"{reason}, and routing.bgp.peers names no router for {me.name}"
        if reason and peer.facts is not None and "bgp" not in peer.facts.details:
            return f"{reason} and does not run BGP yet"
        return ""

    def overhead(self, me: LocalNode) -> int:
        """None."""
        return 0

    def _peers_of(self, me: LocalNode) -> list[ExternalPeer]:
        return [peer for peer in self._section.peers if not peer.nodes or me.name in peer.nodes]

    def _node_sessions(self, me: LocalNode, cluster: ClusterView) -> list[BgpSession]:
        section = self._section
        reflectors = section.reflectors
        is_reflector = reflectors.has(me)
        sessions = []
        for peer in cluster.peers:
            speaks = peer.facts is None or "bgp" in peer.facts.details
            reflected = is_reflector or reflectors.has(peer)
            if not speaks or not (section.mesh or reflected):
                continue
            remote_as = _as_number(peer, section.as_number)
            is_client = is_reflector and not reflectors.has(peer) and remote_as == section.as_number
            for local, remote in _address_pairs(me, peer):
                sessions.append(
                    BgpSession(
                        name=_symbol("node", remote),
                        local=local,
                        local_as=section.as_number,
                        local_port=section.listen_port,
                        remote=remote,
                        remote_as=remote_as,
                        remote_port=section.listen_port,
                        password=section.password,
                        on_link=me.underlay.reaches(remote),
                        waits=int(remote) < int(local),
                        sends="all" if is_client else "own",
                        cluster_id=reflectors.cluster_id if is_client else "",
                        bfd=section.bfd,
                        add_paths=section.add_paths,
                    )
                )
        return sessions

    def _external_sessions(self, me: LocalNode) -> list[BgpSession]:
        section = self._section
        sessions = []
        for peer in self._peers_of(me):
            remote = ip_address(peer.address)
            local = me.address(remote.version)
            if local is None:
                continue
            sessions.append(
                BgpSession(
                    name=_symbol("peer", remote),
                    local=local,
                    local_as=section.as_number,
                    local_port=section.listen_port,
                    remote=remote,
                    remote_as=peer.as_number,
                    remote_port=peer.port,
                    password=peer.password,
                    on_link=me.underlay.reaches(remote),
                    sends="pods" if section.reflectors.has(me) else "own",
                    accepts=tuple(ip_network(text) for text in peer.accept),
                    communities=tuple(community(text) for text in peer.communities),
                    prepends=peer.prepend,
                    bfd=peer.bfd,
                    add_paths=section.add_paths,
                )
            )
        return sessions


def _router_id(me: LocalNode) -> IPv4Address:
    """The node's IPv4 address; on a node without one, a number derived from its name (RFC 6286: unique and not 0)."""
    address = me.address(4)
    if isinstance(address, IPv4Address):
        return address
    return IPv4Address(int.from_bytes(sha256(me.name.encode()).digest()[:4], "big") | 1)


def _address_pairs(me: LocalNode, peer: Peer) -> list[tuple[Address, Address]]:
    """The own address and the peer's in each family of the own pod CIDRs."""
    pairs = ((me.address(version), peer.address(version)) for version in sorted({c.version for c in me.pod_cidrs}))
    return [(local, remote) for local, remote in pairs if local is not None and remote is not None]


def _as_number(peer: Peer, default: int) -> int:
    details = peer.facts.details.get("bgp") if peer.facts is not None else None
    number = details.get("asNumber") if isinstance(details, Mapping) else None
    return number if isinstance(number, int) else default


def _symbol(kind: str, address: Address) -> str:
    """The name of a session, made of the characters that BIRD takes in a name."""
    return f"{kind}_{str(address).replace('.', '_').replace(':', '_')}"
