"""The routing of one node: planned from the objects, and read from its kernel where that is possible."""

from ipaddress import ip_network

from msgspec.structs import replace

from podwire.errors import KernelError
from podwire.kernel import network
from podwire.kernel.kinds import read_values
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.model.node import Node
from podwire.routing import underlay
from podwire.routing.machine import OWNER
from podwire.routing.nodes import own_node_of, peer_of
from podwire.routing.paths import PathState
from podwire.routing.plan import Plan
from podwire.state.drift import compare_network
from podwire.state.kinds import KINDS
from podwire.state.network import NetworkState
from podwire.state.value import StateValue
from podwire.why.nodes import NodeAccess
from podwire.why.routing.planned import NodeRoutes, concerning, local_node, matching, plan_for

_UNKNOWN_SUBNETS = "the subnets of nodes are not known here; all nodes are assumed to be on one subnet"


def read_paths(netns_path: NetnsPath) -> NetworkState:
    """Devices, addresses, routes, neighbours and forwarding entries of a namespace, also those of other programs.

    Raises: KernelError.
    """
    with Netlink(netns_path) as netlink:
        return network.read(netlink)


def routes_of(access: NodeAccess, node: Node, peer: Node, held: NetworkState | None) -> NodeRoutes:
    """The routing of ``node`` towards ``peer``; ``held`` None: the kernel is not read.

    Raises: KernelError.
    """
    interface = underlay.find(held, own_node_of(node).addresses) if held is not None else None
    me, other = local_node(node, interface, access.routing_dir), peer_of(peer)
    if held is not None:  # Backends that choose by the kernel's features have devices of these kinds.
        me = replace(me, features=frozenset(link.kind for link in held.links if link.kind))
    backends = access.routing.load()
    if "routing" not in access.parts or not me.addresses:
        return NodeRoutes(
            me=me, peer=other, backends=backends, held=PathState(network=held) if held is not None else None
        )
    me, planned = plan_for(me, other, access.routing, tuple(ip_network(text) for text in access.cluster_cidrs))
    if held is None:
        by = backends.get(planned.senders.get(other.name, ""))
        remarks = (_UNKNOWN_SUBNETS,) if by is not None and not by.crosses_routers else ()
        return NodeRoutes(me=me, peer=other, backends=backends, planned=planned, notes=remarks)
    desired = concerning(planned.state, other)
    differences = compare_network("", matching(held, desired), desired, OWNER)
    return NodeRoutes(
        me=me,
        peer=other,
        backends=backends,
        planned=planned,
        held=PathState(network=held, program_values=_program_values(access.netns, planned)),
        drift=tuple((difference.sign, difference.text) for difference in differences),
    )


def _program_values(netns_path: NetnsPath, planned: Plan) -> tuple[StateValue, ...]:
    """What the child processes hold; nothing of those that do not run."""
    values: list[StateValue] = []
    for name, kind in KINDS.items():
        desired = tuple(value for value in planned.program_values if type(value) is kind.type)
        if desired:
            try:
                values += read_values(netns_path, {name: kind.mark(OWNER, desired)})
            except KernelError:
                continue
    return tuple(values)
