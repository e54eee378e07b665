"""Pod routing by a process: packets of a TUN device travel in UDP packets, as in the first mode of Flannel.

This is the one backend in which packets pass Python. Each node has a persistent TUN device and a process; the process
reads packets from the device, sends them in UDP packets to the node whose pods they are for, and writes what it
receives to the device. Per peer there is one route per pod CIDR to the device, and a line in the state of the process
(:mod:`podwire.state.udptunnel`): the peer's endpoint and its networks.

The packets are not encrypted. The guard of the port takes them only from nodes; the process takes them only from the
address and port of a peer, and drops those whose inner source is not the peer's pod or the peer itself.

Encapsulation takes 36 bytes over IPv4 and 56 over IPv6 (header of :mod:`.frames` 8, UDP 8, IP 20 or 40).
"""

import sys
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.routing.backend import CARRIER_NICENESS, BackendOptions, BackendPlan, check_range
from podwire.routing.backends.udp.tunnelpeers import TunnelPeers
from podwire.routing.mtu import device_mtu
from podwire.routing.nodes import Address, ClusterView, LocalNode, Peer
from podwire.routing.paths import OuterHeader, PathState, PeerPath, follow_route, leads_to
from podwire.routing.peerstates import PeerStates
from podwire.routing.tables import INGRESS, guard_udp_port
from podwire.routing.tunnels import no_outer_address, tunnel_addresses, tunnel_routes, tunnel_sources, tunnel_sysctls
from podwire.runtime.program import Child
from podwire.state.ipvs import endpoint_text
from podwire.state.link import Link
from podwire.state.network import NetworkState, merge
from podwire.state.udptunnel import UdpTunnel, endpoint_address

NAME = "udp"
DEVICE = "podwire-udp"
GUARD = "podwire-routing-udp"
PROGRAM = "podwire.routing.backends.udp.process"
_OVERHEAD = {4: 36, 6: 56}


class UdpSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The options; ``port`` is the UDP port from which this node sends and on which it receives."""

    port: int = 8285


class UdpOptions(BackendOptions, frozen=True):
    """The section ``routing.udp``."""

    udp: UdpSection = UdpSection()

    def check(self, source: str) -> None:
        """Checks the range of UDP.

        Raises: ConfigError naming the field.
        """
        check_range(source, "routing.udp.port", self.udp.port, 1, 65535)


class UdpProcess:
    """A TUN device, whose packets a process carries to all peers."""

    name = NAME
    feature = "tun"
    features = (INGRESS,)
    options = UdpOptions
    tables = (GUARD,)
    announced = True
    crosses_routers = True

    def __init__(self, options: UdpOptions) -> None:
        self._port = options.udp.port
        self._routes = PeerStates()
        self._members = TunnelPeers()

    @property
    def udp_ports(self) -> tuple[int, ...]:
        """The port of the process."""
        return (self._port,)

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The port of this node."""
        return {NAME: {"port": self._port}}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """The device, its process, the routes to ``peers``, and the guard of the port.

        Every node of the cluster is a peer of the process, so that this node receives from all of them.
        """
        sources = tunnel_sources(me)
        mtu = device_mtu(me, self.overhead(me))
        common = NetworkState(
            links=(Link(name=DEVICE, kind="tun", mtu=mtu, alias=f"podwire/routing {NAME}"),),
            addresses=tunnel_addresses(DEVICE, me),
            sysctls=tunnel_sysctls(DEVICE, me),
        )
        listen = endpoint_text(str(me.addresses[0]), self._port)
        routes = self._routes.merged(peers, sources, lambda peer: tunnel_routes(DEVICE, peer, sources))
        return BackendPlan(
            network=merge([common, routes]),
            values=(guard_udp_port(GUARD, self._port, me, cluster),),
            children=(_process(me, listen),),
            program_values=(UdpTunnel(DEVICE, listen, self._members.take(me, cluster.peers, self._port_of)),),
            tunnels=(DEVICE,),
        )

    def _port_of(self, peer: Peer) -> int:
        """The port that a peer announces, else that of this node."""
        details = peer.facts.details.get(NAME) if peer.facts is not None else None
        port = details.get("port") if isinstance(details, Mapping) else None
        return port if isinstance(port, int) and 0 < port <= 0xFFFF else self._port

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether the peer has an address of the outer family and runs the process, which it announces with its port.

        Nodes of Flannel announce ``udp`` too, but no port: their packets have another form.
        """
        if problem := no_outer_address(me, peer):
            return problem
        if peer.facts is not None and not (NAME in peer.facts.receives and NAME in peer.facts.details):
            return f"node {peer.name} does not receive udp yet"
        return ""

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route to the device, and the process's peer with the longest network that has the address."""
        path = follow_route(state.network, peer, address, (DEVICE,))
        if path.missing or path.route is None:
            return path
        values = (value for value in state.program_values if isinstance(value, UdpTunnel))
        carried = next((value for value in values if value.device == DEVICE), None)
        if carried is None:
            return replace(path, missing=(f"no process carries packets of {DEVICE}",))
        networks = ((ip_network(text), entry) for entry in carried.peers for text in entry.networks)
        holders = [(network.prefixlen, entry) for network, entry in networks if address in network]
        if not holders:
            return replace(path, missing=(f"{DEVICE} has no peer for {address}",))
        _, entry = max(holders, key=lambda holder: holder[0])
        destination, port = endpoint_address(entry.endpoint)
        source, _ = endpoint_address(carried.listen)
        tunnel = OuterHeader(protocol="UDP", port=port, source=source, destination=destination)
        return replace(path, tunnel=tunnel, missing=leads_to(peer, destination, f"peer {entry.endpoint}"))

    def overhead(self, me: LocalNode) -> int:
        """36 bytes over IPv4, 56 over IPv6."""
        return _OVERHEAD[me.addresses[0].version]


def _process(me: LocalNode, listen: str) -> Child:
    file = f"{me.run_dir}/{DEVICE}"
    return Child(
        name=DEVICE,
        argv=(sys.executable, "-m", PROGRAM, DEVICE, listen, f"{file}.state"),
        restart_by="kill",  # ends the keeper; the worker goes on until the new process takes the descriptors from it
        environment={"PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"},
        niceness=CARRIER_NICENESS,
        log=f"{file}.log",
    )
