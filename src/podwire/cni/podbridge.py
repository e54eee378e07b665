"""Pods that are ports of a bridge (``cni.link: bridge``), as the state of the node's namespace (pure).

The bridge has the gateway of the pods as its address, and a fixed hardware address. A pod has a route to the gateway,
its default route by the gateway, and no route to the network of the pods: it sends packets to its neighbours to the
node, too. So Services and policies see all packets, with and without ``br_netfilter``, and no pod needs ARP. The route
from the node to a pod names the pod itself as next hop: without a next hop the kernel would tell pods to send to each
other (``ip_rt_send_redirect`` in net/ipv4/route.c; for IPv6 it does so only with a link-local address of the bridge).

Ports are locked: the kernel drops frames that do not come from the pod's hardware address, which a permanent forwarding
entry names (Linux 5.18). With ``br_netfilter`` the kernel forwards a packet to a Service from port to port, also back
to the port that it came from, which needs ``hairpin``.

Cost: per pod and address a neighbour and a route, as without the bridge, and one forwarding entry per pod.
Source: ``br_handle_frame_finish`` in net/bridge/br_input.c, ``br_nf_pre_routing_finish`` in
net/bridge/br_netfilter_hooks.c.
"""

from collections.abc import Iterable
from ipaddress import ip_address, ip_network

from podwire.cluster.podbridge import ALIAS, BRIDGE
from podwire.state.link import Link
from podwire.state.network import NetworkState
from podwire.state.route import Address, Sysctl

_LEAST_ADDRESSES = 4
"""A range with fewer addresses is one that another node lent: it has no gateway."""


def gateways(cidrs: Iterable[str], *, whole: bool = False) -> tuple[str, ...]:
    """The gateway of pods in each family: the first address of the node's first range in that family.

    A family is left out when the node has no such range, or all of its addresses are for pods (``whole``).
    """
    first: dict[int, str] = {}
    for network in map(ip_network, () if whole else cidrs):
        if network.num_addresses >= _LEAST_ADDRESSES:
            first.setdefault(network.version, str(network[1]))
    return tuple(first[version] for version in sorted(first))


def loopback_path() -> str:
    """The sysctl that lets packets between the node's loopback network and the bridge pass."""
    return f"net/ipv4/conf/{BRIDGE}/route_localnet"


def address_mode_path() -> str:
    """The sysctl that with the value 1 keeps the kernel from giving the bridge a link-local address."""
    return f"net/ipv6/conf/{BRIDGE}/addr_gen_mode"


def plan(mtu: int, mac: str, own: Iterable[str]) -> NetworkState:
    """The bridge with the gateways ``own`` as its addresses; ``mac`` is its hardware address."""
    own = tuple(dict.fromkeys(own))
    values = {"forwarding": "1", "rp_filter": "1", "send_redirects": "0", "accept_redirects": "0"}
    sysctls = [Sysctl(path=f"net/ipv4/conf/{BRIDGE}/{name}", value=value) for name, value in values.items()]
    if any(":" in address for address in own):
        sysctls += [Sysctl(address_mode_path(), "1"), Sysctl(f"net/ipv6/conf/{BRIDGE}/accept_ra", "0")]
    return NetworkState(
        links=(Link(name=BRIDGE, kind="bridge", mtu=mtu, mac=mac, alias=ALIAS),),
        addresses=tuple(Address(link=BRIDGE, cidr=f"{ip}/{ip_address(ip).max_prefixlen}") for ip in own),
        sysctls=tuple(sysctls),
    )


def without(state: NetworkState) -> NetworkState:
    """The state of a node without the bridge, its ports, and what is on these devices."""
    devices = {link.name for link in state.links if BRIDGE in (link.name, link.master)}
    return NetworkState(
        links=tuple(link for link in state.links if link.name not in devices),
        addresses=tuple(address for address in state.addresses if address.link not in devices),
        routes=tuple(route for route in state.routes if route.link not in devices),
        neighbours=tuple(neighbour for neighbour in state.neighbours if neighbour.link not in devices),
        fdb=tuple(entry for entry in state.fdb if entry.link not in devices),
        rules=state.rules,
        sysctls=tuple(value for value in state.sysctls if f"/{BRIDGE}/" not in value.path),
    )
