"""The sessions of one node: with other nodes (the mesh, reflectors, peers of BGPPeers) and with external peers.

There is one session with an address. Where several parts ask for one, the later of these decides: the mesh and the
reflectors of ``routing.bgp``, the external peers of ``routing.bgp``, the BGPPeers of some nodes in the order of their
names, those of all nodes. A node that is a reflector by its annotation or label has no part in the mesh, only the
sessions of BGPPeers. A BGPPeer that leads to a node, by a selector or an address, gives that node a session back.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from podwire.bgp.configuration import BGP_PORT, Address, BgpSession, RouteRule
from podwire.bgp.fields import AS_MAX, community
from podwire.routing.backends.bgp.objects import NODE_AS, REFLECTOR, BgpObjects, PeerValues
from podwire.routing.backends.bgp.options import BgpSection, ExternalPeer
from podwire.routing.nodes import ClusterView, LocalNode, Peer
from podwire.routing.peerstates import PeerResults
from podwire.state.address import address_text

_IN_SYMBOLS = str.maketrans(".:", "__")


class Speaker(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a node's BIRD by its settings; ``cluster_id`` is empty when the node is no reflector."""

    as_number: int
    listen_port: int
    cluster_id: str = ""
    in_mesh: bool = True


class Sessions:
    """Plans the sessions of one node with the settings of ``routing.bgp`` and of objects."""

    def __init__(
        self,
        section: BgpSection,
        objects: BgpObjects,
        me: LocalNode,
        cluster: ClusterView,
        mesh: PeerResults[tuple[BgpSession, ...]],
    ) -> None:
        """``mesh`` keeps the sessions between nodes from one plan to the next."""
        self._section = section_of(section, objects, me)
        self._all_nodes = section
        self._objects = objects
        self._me = me
        self._cluster = cluster
        self._mesh = mesh
        self._own = speaker(section, objects, me)

    def plan(self) -> list[BgpSession]:
        """One session for each address, in the order of the parts."""
        further = {session.remote: session for session in (*self._external(), *self._of_peers())}
        if not further:
            return self._between_nodes()
        sessions = {session.name: session for session in self._between_nodes()}
        for remote in further:
            sessions.pop(symbol("node", remote), None)
        return [*sessions.values(), *further.values()]

    @cached_property
    def _versions(self) -> list[int]:
        return sorted({cidr.version for cidr in self._me.pod_cidrs})

    @cached_property
    def _speakers(self) -> tuple[Peer, ...]:
        return tuple(filter(is_speaker, self._cluster.peers))

    @cached_property
    def _nodes(self) -> Mapping[Address, Peer]:
        return {address: peer for peer in self._speakers for address in peer.addresses}

    def gateways(self) -> list[tuple[Address, Address]]:
        """The addresses of peers, and the next hop to each of them.

        A next hop that is not on the node's subnet, and one for a peer that is, are left out.
        """
        reaches = self._me.underlay.reaches
        gateways = {
            peer.address: peer.gateway
            for peer in sorted(self._objects.peers, key=lambda peer: peer.name)
            if peer.address is not None and peer.gateway is not None and peer.is_of(self._me)
            if reaches(peer.gateway) and not reaches(peer.address)
        }
        return list(gateways.items())

    def _between_nodes(self) -> list[BgpSession]:
        me = self._me
        basis = (
            *(self._section, self._all_nodes, self._objects.default, self._objects.nodes, self._own),
            *(me.name, me.addresses, me.pod_cidrs, me.labels, me.underlay.addresses),
        )
        sessions = self._mesh.take(self._cluster.peers, basis, lambda peer: tuple(self._in_mesh(peer)))
        return [session for peer in self._cluster.peers for session in sessions[peer.name]]

    def _in_mesh(self, peer: Peer) -> Iterator[BgpSession]:
        section = self._section
        if not (is_speaker(peer) and self._own.in_mesh):
            return
        other = self._speaker(peer)
        if not other.in_mesh:
            return
        if section.mesh or section.reflectors.has(self._me) or section.reflectors.has(peer):
            options = {"password": section.password, "bfd": section.bfd, "add_paths": section.add_paths}
            yield from self._with_node(peer, other, options)

    def _with_node(self, peer: Peer, other: Speaker, options: Mapping[str, Any] = {}) -> Iterator[BgpSession]:
        """A session with further options in each family of the own pod CIDRs in which both nodes have an address."""
        is_client = other.as_number == self._own.as_number and self._is_client(other.cluster_id)
        for version in self._versions:
            local, remote = self._me.address(version), peer.address(version)
            if local is None or remote is None:
                continue
            yield BgpSession(
                name=symbol("node", remote),
                peer=f"Node {peer.name}",
                local=local,
                local_as=self._own.as_number,
                local_port=self._own.listen_port,
                remote=remote,
                remote_as=other.as_number,
                remote_port=other.listen_port,
                on_link=self._me.underlay.reaches(remote),
                waits=int(remote) < int(local),
                sends="all" if is_client else "own",
                cluster_id=self._own.cluster_id if is_client else "",
                **options,
            )

    def _is_client(self, cluster_id: str) -> bool:
        """Whether a neighbour of the same number, with the identifier of its own cluster, is a client of this node."""
        return bool(self._own.cluster_id) and cluster_id != self._own.cluster_id

    def _external(self) -> Iterator[BgpSession]:
        section = self._section
        for peer in peers_of(section, self._me):
            session = self._with_address(ip_address(peer.address), peer.as_number, peer.port)
            if session is not None:
                yield replace(
                    session,
                    peer="routing.bgp.peers",
                    password=peer.password,
                    sends="pods" if section.reflectors.has(self._me) else "own",
                    accepts=tuple(ip_network(text) for text in peer.accept),
                    communities=tuple(community(text) for text in peer.communities),
                    prepends=peer.prepend,
                    bfd=peer.bfd,
                    add_paths=section.add_paths,
                )

    def _with_address(self, remote: Address, remote_as: int, port: int) -> BgpSession | None:
        """A session with a router; None where this node has no address of its family."""
        local = self._me.address(remote.version)
        if local is None:
            return None
        return BgpSession(
            name=symbol("peer", remote),
            local=local,
            local_as=self._own.as_number,
            local_port=self._own.listen_port,
            remote=remote,
            remote_as=remote_as,
            remote_port=port,
            on_link=self._me.underlay.reaches(remote),
        )

    def _of_peers(self) -> Iterator[BgpSession]:
        """Sessions of BGPPeers; of two with one address the later decides.

        So the session back to the nodes of a BGPPeer gives way to one that another BGPPeer describes, and a BGPPeer of
        some nodes to one of all nodes.
        """
        peers = sorted(self._objects.peers, key=lambda peer: (peer.is_of_all, peer.name))
        for peer in peers:
            for session in self._back(peer):
                yield self._with_options(session, peer, session.local_as)
        for peer in peers:
            for session in self._forth(peer):
                yield self._with_options(session, peer, peer.local_as or session.local_as)

    def _with_options(self, session: BgpSession, peer: PeerValues, local_as: int) -> BgpSession:
        """A session with what its BGPPeer says; it sends all pod networks that the node knows, as those of Calico."""
        is_internal = local_as == session.remote_as
        return replace(
            session,
            peer=session.peer or f"BGPPeer {peer.name}",
            local_as=local_as,
            password=peer.password,
            sends="all" if session.cluster_id else "pods",
            bfd=False,
            add_paths=self._section.add_paths,
            imports=_applicable(peer.imports, session, is_internal=is_internal),
            exports=_applicable(peer.exports, session, is_internal=is_internal),
            next_hop=_next_hop(peer, is_internal=is_internal),
            has_source=peer.has_source,
            restart_time_s=peer.restart_time_s,
            keepalive_s=peer.keepalive_s,
            own_as_limit=peer.own_as_limit,
            hops=peer.hops,
        )

    def _forth(self, peer: PeerValues) -> Iterator[BgpSession]:
        """The sessions of this node as one of those that a BGPPeer selects."""
        if not peer.is_of(self._me):
            return
        if peer.address is not None:
            if peer.address not in self._me.addresses:
                yield from self._with_peer_address(peer, peer.address)
            return
        for node in filter(peer.is_to, self._speakers):
            for session in self._with_node(node, self._speaker(node)):
                yield session if peer.has_reverse else replace(session, waits=False)

    def _back(self, peer: PeerValues) -> Iterator[BgpSession]:
        """The sessions of this node, to which a BGPPeer leads, with the nodes that the BGPPeer selects."""
        if not peer.has_reverse or not (peer.is_to(self._me) or self._is_at(peer)):
            return
        for node in filter(peer.is_of, self._speakers):
            for session in self._with_node(node, self._speaker(node)):
                if peer.address is None or peer.address == session.local:
                    yield replace(session, remote_as=peer.local_as or session.remote_as)

    def _is_at(self, peer: PeerValues) -> bool:
        """Whether the address, number and port of a BGPPeer are those of this node."""
        own = self._own
        return (
            peer.address in self._me.addresses
            and peer.as_number in (None, own.as_number)
            and peer.port in (None, own.listen_port)
        )

    def _with_peer_address(self, peer: PeerValues, address: Address) -> Iterator[BgpSession]:
        node = self._nodes.get(address)
        other = self._speaker(node) if node is not None else None
        remote_as = peer.as_number or (other.as_number if other is not None else 0)
        port = peer.port or (other.listen_port if other is not None else BGP_PORT)
        session = self._with_address(address, remote_as, port) if remote_as else None
        if session is not None:
            own_as = peer.local_as or self._own.as_number
            is_client = remote_as == own_as and self._is_client(other.cluster_id if other is not None else "")
            yield replace(session, cluster_id=self._own.cluster_id if is_client else "")

    def _speaker(self, node: Peer) -> Speaker:
        return speaker(self._all_nodes, self._objects, node)


def is_speaker(peer: Peer) -> bool:
    """Whether BIRD runs on a node, as far as it is known."""
    return peer.facts is None or "bgp" in peer.facts.details


def section_of(section: BgpSection, objects: BgpObjects, node: LocalNode | Peer) -> BgpSection:
    """The section ``routing.bgp`` with what BGPConfigurations and annotations say about a node."""
    values = objects.of_node(node.name)
    chosen = {
        "as_number": _number(node.annotations.get(NODE_AS, "")) or values.as_number,
        "listen_port": values.listen_port,
        "mesh": values.mesh,
        "password": values.password,
        "restart_time_s": values.restart_time_s,
        "log_level": values.log_level,
    }
    changes = {field: value for field, value in chosen.items() if value is not None}
    return replace(section, **changes) if changes else section


def speaker(section: BgpSection, objects: BgpObjects, node: LocalNode | Peer) -> Speaker:
    """The role of a node's BIRD; the number of a peer is the announced number, if it announced one."""
    own = section_of(section, objects, node)
    annotated = _identifier(node.annotations.get(REFLECTOR) or node.labels.get(REFLECTOR, ""))
    announced = _announced_as(node) if isinstance(node, Peer) else 0
    return Speaker(
        as_number=announced or own.as_number,
        listen_port=own.listen_port,
        cluster_id=annotated or (own.reflectors.cluster_id if own.reflectors.has(node) else ""),
        in_mesh=not annotated,
    )


def peers_of(section: BgpSection, me: LocalNode) -> list[ExternalPeer]:
    """The external peers of ``routing.bgp`` with which a node has a session."""
    return [peer for peer in section.peers if not peer.nodes or me.name in peer.nodes]


def symbol(kind: str, address: Address) -> str:
    """The name of a session, made of the characters that BIRD takes in a name."""
    return f"{kind}_{address_text(address).translate(_IN_SYMBOLS)}"


def _applicable(rules: Iterable[RouteRule], session: BgpSession, *, is_internal: bool) -> tuple[RouteRule, ...]:
    """The rules of the session's family and type."""
    types = ("", "iBGP" if is_internal else "eBGP")
    return tuple(rule for rule in rules if rule.version == session.local.version and rule.peer_type in types)


def _next_hop(peer: PeerValues, *, is_internal: bool) -> Literal["", "self", "keep"]:
    if peer.next_hop == "keep external":
        return "" if is_internal else "keep"
    return peer.next_hop


def _announced_as(peer: Peer) -> int:
    details = peer.facts.details.get("bgp") if peer.facts is not None else None
    number = details.get("asNumber") if isinstance(details, Mapping) else None
    return number if isinstance(number, int) else 0


def _number(text: str) -> int | None:
    """An autonomous system number; None for invalid text."""
    return int(text) if text.isdecimal() and 1 <= int(text) <= AS_MAX else None


def _identifier(text: str) -> str:
    """The identifier of a cluster; empty for invalid text."""
    if not text:
        return ""  # as at nearly all nodes: 5 us less than by an exception
    try:
        return str(IPv4Address(text))
    except ValueError:
        return ""
