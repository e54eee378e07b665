"""What the routing of one node should hold for one peer, from the objects and the settings (pure).

A plan for one peer has the entries for that peer as the plan for all peers has them, at the cost of one.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_interface

import msgspec
from msgspec.structs import replace

from podwire.cluster.podnetworks import announced_networks
from podwire.model.node import Node
from podwire.routing.backend import Backend, KeyHolder
from podwire.routing.nodes import Device, LocalNode, Network, NodeKey, Peer, Underlay, own_node_of
from podwire.routing.paths import PathState
from podwire.routing.plan import Plan, plan
from podwire.routing.settings import RoutingSettings
from podwire.routing.underlay import DEFAULT_MTU
from podwire.state.drift import Sign
from podwire.state.link import Link
from podwire.state.network import NetworkState, merge
from podwire.state.route import Address, Route

ASSUMED_DEVICE = "eth0"


class _AnyDevice(Mapping[str, Device]):
    """Devices of a node that is not read: any that a setting names."""

    def __getitem__(self, name: str) -> Device:
        return Device(mtu=DEFAULT_MTU)

    def __iter__(self) -> Iterator[str]:
        return iter((ASSUMED_DEVICE,))

    def __len__(self) -> int:
        return 1


class NodeRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The routing of one node towards one peer.

    ``planned`` None: another program routes. ``held`` None: the node's kernel is not read. ``drift`` are lines in which
    what is held for the peer differs from what is planned.
    """

    me: LocalNode
    peer: Peer
    backends: Mapping[str, Backend]
    planned: Plan | None = None
    held: PathState | None = None
    drift: tuple[tuple[Sign, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def desired(self) -> PathState:
        """The planned state, with the underlay device."""
        if self.planned is None:
            return PathState(network=NetworkState())
        underlay = self.me.underlay
        around = NetworkState(
            links=(Link(name=underlay.link, mtu=underlay.mtu),),
            addresses=tuple(Address(link=underlay.link, cidr=str(own)) for own in underlay.addresses),
        )
        network = merge((around, self.planned.state))
        return PathState(network=network, program_values=self.planned.program_values)


def local_node(node: Node, underlay: Underlay | None, run_dir: str) -> LocalNode:
    """A node as its own agent sees it; without an underlay that is known, all nodes are on its subnet."""
    own = own_node_of(node)
    if underlay is None:
        assumed = tuple(ip_interface(f"{address}/0") for address in own.addresses)
        underlay = Underlay(ASSUMED_DEVICE, DEFAULT_MTU, assumed, _AnyDevice())
    return LocalNode(
        name=own.name,
        addresses=own.addresses,
        pod_cidrs=own.pod_cidrs,
        underlay=underlay,
        labels=own.labels,
        run_dir=run_dir,
        facts=own.facts,
    )


def plan_for(me: LocalNode, peer: Peer, settings: RoutingSettings, cidrs: Iterable[Network]) -> tuple[LocalNode, Plan]:
    """The node with the keys that it has announced, and its plan for one peer.

    The backend is the one that the node has announced, which is not the configured one where the kernel lacks that.
    """
    backends = settings.load()
    if me.facts is not None and me.facts.backend in backends:
        settings = replace(settings, backend=me.facts.backend)
    keys: dict[str, Mapping[str, NodeKey]] = {
        name: backend.announced_keys(me) for name, backend in backends.items() if isinstance(backend, KeyHolder)
    }
    me = replace(me, keys=keys)
    return me, plan(me, (peer,), settings, backends, cidrs)


def concerning(state: NetworkState, peer: Peer) -> NetworkState:
    """The objects of a plan for one peer by which packets reach it: devices, its routes, neighbours and entries."""
    return NetworkState(
        links=state.links,
        routes=tuple(route for route in state.routes if _is_to(route, peer)),
        neighbours=state.neighbours,
        fdb=state.fdb,
    )


def _is_to(route: Route, peer: Peer) -> bool:
    if route.dst == "default":
        return False
    first = ip_interface(route.dst).ip
    further = announced_networks(peer.facts.details) if peer.facts is not None else ()
    ranges = (*peer.pod_cidrs, *(cidr for network in further for cidr in network.networks))
    return any(first.version == cidr.version and first in cidr for cidr in ranges)


def matching(held: NetworkState, desired: NetworkState) -> NetworkState:
    """The objects of ``held`` with the keys of desired ones."""
    links = {link.name for link in desired.links}
    chosen = {
        field: tuple(value for value in getattr(held, field) if value.key in {w.key for w in getattr(desired, field)})
        for field in ("routes", "neighbours", "fdb")
    }
    return NetworkState(links=tuple(link for link in held.links if link.name in links), **chosen)
