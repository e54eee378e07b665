"""Lets pods on a bridge of another plugin reach podwire's pods on the same node.

Where podwire takes the place of a bridge plugin (``cni.hostLocal``), pods of both run side by side. A pod on the bridge
considers the node's whole pod CIDR as its own network segment and asks the bridge for the hardware address of a pod
that podwire wired, which is not there. So the node answers for each of podwire's pods: a proxy entry in the neighbour
table of the bridge, without delay (``proxy_delay``), and for IPv6 ``proxy_ndp``. The packets then take the node's
route to the pod. The other direction needs nothing: the bridge's network is a route of the node.

A bridge counts if its own address is in a pod CIDR of the node. Entries carry the route protocol :data:`OWNER` and stay
when the agent ends. Cost: one entry for each pod, address and bridge; a comparison with the kernel every
:data:`CHECK_S` and after each ADD and DEL, noticed within :data:`POLL_S`.
Source: ``arp_process`` in net/ipv4/arp.c, ``ndisc_recv_ns`` in net/ipv6/ndisc.c.
"""

from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network

from podwire.cluster.podbridge import is_pod_bridge
from podwire.cni.ipam.leases import Leases
from podwire.errors import KernelError
from podwire.kernel import network
from podwire.kernel.netlink import Netlink
from podwire.kernel.netns import NetnsPath
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import Neighbour, Sysctl
from podwire.state.share import Share

OWNER = OwnerMark(route_protocol=116)
"""The mark of proxy entries on bridges of other plugins."""

CHECK_S = 1.0
POLL_S = 0.1


def bridges(state: NetworkState, cidrs: Iterable[IPv4Network | IPv6Network]) -> tuple[str, ...]:
    """The bridges of other plugins with an address in one of the networks."""
    kinds = {link.name: link.kind for link in state.links if not is_pod_bridge(link)}
    ranges = tuple(cidrs)
    names = {
        address.link
        for address in state.addresses
        if kinds.get(address.link) == "bridge" and any(ip_interface(address.cidr).ip in cidr for cidr in ranges)
    }
    return tuple(sorted(names))


def plan(names: Collection[str], addresses: Collection[str]) -> NetworkState:
    """Proxy entries of every address on every bridge, and the sysctls that they need."""
    six = any(":" in address for address in addresses)
    sysctls = [Sysctl(f"net/ipv4/neigh/{name}/proxy_delay", "0") for name in names]
    if six:
        sysctls += [Sysctl(f"net/ipv6/neigh/{name}/proxy_delay", "0") for name in names]
        sysctls += [Sysctl(f"net/ipv6/conf/{name}/proxy_ndp", "1") for name in names]
    entries = [Neighbour(link=name, ip=address, proxy=True) for name in names for address in addresses]
    return OWNER.stamp(NetworkState(neighbours=tuple(entries), sysctls=tuple(sysctls)))


class BridgedPods:
    """Keeps the proxy entries of one node."""

    def __init__(self, leases: Leases, clock: Clock, netns: NetnsPath = None) -> None:
        self._leases = leases
        self._clock = clock
        self._netns = netns
        self._log = Log("cni")
        self._problem = ""
        self._desired = NetworkState()
        self._addresses: frozenset[str] | None = None

    def shares(self) -> Iterator[Share]:
        """The desired proxy entries."""
        yield Share(part="bridges", protocol=OWNER.route_protocol, alias="", note="", desired=(self._desired,))

    async def run(self) -> None:
        """Keeps the entries until cancelled."""
        while True:
            self.hold()
            due = self._clock.monotonic() + CHECK_S
            while self._clock.monotonic() < due and self._addresses == self._held():
                await self._clock.sleep(POLL_S)

    def hold(self) -> None:
        """Makes the kernel hold the entries of the pods that podwire has wired; a failure is logged once."""
        self._addresses = self._held()
        cidrs = [ip_network(pool.network) for pool in self._leases.pools]
        problem = ""
        try:
            with Netlink(self._netns) as netlink:
                names = bridges(network.read_paths(netlink), cidrs)
                self._desired = plan(names, self._addresses)
                network.apply(netlink, self._desired, OWNER).check()
        except KernelError as failure:
            problem = str(failure)
        if problem and problem != self._problem:
            self._log.warning("pods on bridges do not reach all pods of this node; trying again", problem=problem)
        self._problem = problem

    def _held(self) -> frozenset[str]:
        return frozenset(address for item in self._leases.held.values() for address in item.addresses)
