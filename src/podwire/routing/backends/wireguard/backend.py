"""Pod routing by WireGuard: packets between nodes are encrypted and authenticated.

The kernel encrypts packets that a WireGuard device gets, and sends them in UDP packets. Where it lacks WireGuard, the
process wireguard-go does the same with packets from a TUN device; the device is persistent, so without the process
packets are dropped and never leave in clear. Each node has a key pair and announces
the public key. Per peer there are: one route per pod CIDR to the device, and a peer of the device with the node's
address as endpoint. The peer's allowed addresses are its pod CIDRs, and the node's own addresses, from which it answers
pods: packets to these addresses go to the peer, and the peer may send from these alone. So no guard of the port is
needed: a host that is not a peer has no session.

A node that is configured with ``wireguard`` has an ``unreachable`` route to every pod network of the cluster, which
depends on no device. The routes to peers are longer or have a smaller metric. So packets to a peer's pods are refused
until the peer has announced its key, while the device is missing, and while this node has no program to encrypt with.

A new key without loss: a WireGuard device has one key, and a network belongs to one peer of a device, so old and new
key cannot work side by side on one device. Therefore each generation of keys has a device and a port of its own (two
of each, by the generation's parity). A peer that announces another generation makes every node add the device of that
generation; a node sends by its own generation to peers that have announced a key of it, else by theirs. When no node
announces the old generation, its device goes. That is the switch between two backends, with the routes replaced in
place. For a while after its generation was changed, a node keeps the old one, and sends by it to peers with which the
new device has no session yet.

Encapsulation takes 60 bytes over IPv4 and 80 over IPv6 (WireGuard 32, UDP 8, IP 20 or 40).
Source: the WireGuard paper (Donenfeld 2017), sections 2 and 5.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_network
from typing import Any, ClassVar, Literal

import msgspec
from msgspec.structs import replace

from podwire.routing.backend import CARRIER_NICENESS, BackendOptions, BackendPlan, check_range
from podwire.routing.mtu import device_mtu
from podwire.routing.nodes import Address, ClusterView, LocalNode, NodeKey, Peer
from podwire.routing.paths import OuterHeader, PathState, PeerPath, follow_route, leads_to
from podwire.routing.peerstates import PeerStates
from podwire.routing.tunnels import no_outer_address, tunnel_addresses, tunnel_routes, tunnel_sources, tunnel_sysctls
from podwire.runtime.program import Child
from podwire.state.ipvs import endpoint_text
from podwire.state.link import Link
from podwire.state.network import NetworkState, merge
from podwire.state.route import Route
from podwire.state.wireguard import WireGuard, WireGuardPeer, key_bytes

NAME = "wireguard"
DEVICES = ("podwire-wg", "podwire-wg2")
"""The devices of even and of odd generations."""
_KERNEL = "wireguard"
"""The feature of kernels that have WireGuard."""
_OVERHEAD = {4: 60, 6: 80}
_UNREACHABLE_METRIC = 4096
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ALONE = ("/usr/bin/unshare", "--mount", "--propagation", "slave")
_START = """\
mkdir -p "$1" && mount --bind "$1" /var/run || exit 1
until grep -q "^ *$2:" /proc/net/dev; do sleep 0.1; done
exec wireguard-go -f "$2"
"""
"""wireguard-go has its socket in /var/run/wireguard, whatever the network namespace; a mount of its own gives each node
a folder. Unmounts of the host reach the mount namespace (``slave``), so that it keeps no namespace of a pod. Without
the device wireguard-go would make one that ends with the process, so it waits for the device."""


class WireGuardSection(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The options; ``port`` is the UDP port of even generations of keys, and the next one that of odd generations.

    ``keepalive`` is the time in seconds between empty packets to each peer, 0 for none. The first is sent when a peer
    becomes known, and begins the session; without it, packets may wait 5 s for the second attempt of the other side.
    ``key_generation`` is the generation of this node's key: the next number makes a new key. ``engine``: the kernel's
    WireGuard where there is one (``auto``), or always wireguard-go (``process``).
    """

    engine: Literal["auto", "process"] = "auto"
    port: int = 51820
    keepalive: int = 25
    key_generation: int = 0


class WireGuardOptions(BackendOptions, frozen=True):
    """The section ``routing.wireguard``."""

    encrypts: ClassVar[bool] = True

    wireguard: WireGuardSection = WireGuardSection()

    def check(self, source: str) -> None:
        """Checks the ranges of UDP and of WireGuard.

        Raises: ConfigError naming the field.
        """
        check_range(source, "routing.wireguard.port", self.wireguard.port, 1, 65534)
        check_range(source, "routing.wireguard.keepalive", self.wireguard.keepalive, 0, 65535)
        check_range(source, "routing.wireguard.keyGeneration", self.wireguard.key_generation, 0, (1 << 31) - 1)


class _Announced(msgspec.Struct, frozen=True, rename="camel"):
    """The announcement of a node: the generation it sends with, and its public keys by generation."""

    generation: int
    keys: dict[str, str]


class WireGuardTunnel:
    """A WireGuard device per generation of keys, to all peers."""

    name = NAME
    feature = "wireguard-engine"
    features = (_KERNEL,)
    options = WireGuardOptions
    tables = ()
    announced = True
    crosses_routers = True
    udp_ports: tuple[int, ...] = ()
    """None: packets are authenticated, so pods may use these ports too."""

    def __init__(self, options: WireGuardOptions) -> None:
        self._options = options.wireguard
        self._routes = PeerStates()

    def key_names(self, nodes: Sequence[Peer | LocalNode]) -> Sequence[str]:
        """The generations in use: this node's, and the one of the other parity that a node has announced.

        Two generations of one parity have one device, so of these this node's alone is used. While packets wait for
        sessions, this node keeps what it has announced.
        """
        own = self._options.key_generation
        generations = {own % 2: own}
        for node in nodes:
            if (announced := _announced(node)) is None:
                continue
            generations.setdefault(announced.generation % 2, announced.generation)
            if isinstance(node, LocalNode) and node.sessions is not None:
                for generation in map(int, announced.keys):
                    generations.setdefault(generation % 2, generation)
        return [str(generation) for generation in sorted(generations.values())]

    def announce(self, me: LocalNode) -> Mapping[str, Any]:
        """The generation of this node, and its public keys."""
        keys = {name: pair.public for name, pair in _keys(me).items()}
        return {NAME: {"generation": self._options.key_generation, "keys": keys}} if keys else {}

    def plan(self, me: LocalNode, peers: Sequence[Peer], cluster: ClusterView) -> BackendPlan:
        """Per generation a device with its peers, and its process without WireGuard in the kernel; routes to ``peers``.

        Every node of the cluster with a key is a peer of the device, so that this node receives from all of them.
        """
        names = sorted(_keys(me), key=int)
        devices = tuple(_device(name) for name in names)
        sources = tunnel_sources(me)
        routes = self._routes.merged(
            peers, (names, sources, me.sessions), lambda peer: self._routes_to(me, peer, sources)
        )
        mtu, alias = device_mtu(me, self.overhead(me)), f"podwire/routing {NAME}"
        kind = "wireguard" if self._in_kernel(me) else "tun"
        common = NetworkState(
            links=tuple(Link(name=device, kind=kind, mtu=mtu, alias=alias) for device in devices),
            addresses=tuple(address for device in devices for address in tunnel_addresses(device, me)),
            sysctls=tuple(sysctl for device in devices for sysctl in tunnel_sysctls(device, me)),
        )
        return BackendPlan(
            network=merge([common, routes]),
            children=() if self._in_kernel(me) else tuple(_process(me, device) for device in devices),
            program_values=tuple(self._value(me, name, cluster) for name in names),
            tunnels=devices,
            configured=_refusals(me, cluster),
        )

    def _in_kernel(self, me: LocalNode) -> bool:
        return _KERNEL in me.features and self._options.engine == "auto"

    def _routes_to(self, me: LocalNode, peer: Peer, sources: Mapping[int, str]) -> Iterable[Route]:
        name = self._common(me, peer)
        return tunnel_routes(_device(name), peer, sources) if name else ()

    def _value(self, me: LocalNode, name: str, cluster: ClusterView) -> WireGuard:
        outer, port = me.addresses[0].version, self._options.port + int(name) % 2
        peers = []
        for peer in cluster.peers:
            address, key = peer.address(outer), _peer_keys(peer).get(name)
            if address is not None and key is not None:
                networks = tuple(map(str, (*peer.pod_cidrs, *peer.addresses)))
                peers.append(WireGuardPeer(key, endpoint_text(str(address), port), self._options.keepalive, networks))
        device, pair = _device(name), _keys(me)[name]
        control = "" if self._in_kernel(me) else f"{_folder(me, device)}/wireguard/{device}.sock"
        return WireGuard(device, port, pair.public, pair.file, control, tuple(peers))

    def _common(self, me: LocalNode, peer: Peer) -> str:
        """The generation by which this node sends to a peer: its own if the peer has a key of it; empty for none.

        While packets wait for sessions, one without a session comes after one with a session.
        """
        own, theirs = str(self._options.key_generation), _peer_keys(peer)
        both = _keys(me).keys() & theirs.keys()
        ready = both if me.sessions is None else {name for name in both if theirs[name] in me.sessions}
        if own in ready or (own in both and not ready):
            return own
        return max(ready or both, key=int, default="")

    def reaches(self, me: LocalNode, peer: Peer) -> str:
        """Whether the peer has an address of the outer family, and has announced a key that this node can use."""
        if problem := no_outer_address(me, peer):
            return problem
        if not _keys(me):
            return "this node has no WireGuard key"
        if not _peer_keys(peer):
            return f"node {peer.name} has announced no WireGuard key yet"
        if not self._common(me, peer):
            own, theirs = ", ".join(_keys(me)) or "none", ", ".join(_peer_keys(peer))
            return f"node {peer.name} has WireGuard keys of generation {theirs}, this node has {own}"
        return ""

    def has_session(self, me: LocalNode, peer: Peer) -> bool:
        """Whether the device by which this node sends to the peer has a session with it."""
        return _peer_keys(peer).get(self._common(me, peer), "") in (me.sessions or ())

    def path(self, me: LocalNode, peer: Peer, address: Address, state: PathState) -> PeerPath:
        """The route to a device, and the device's peer that owns the address."""
        path = follow_route(state.network, peer, address, DEVICES)
        if path.missing or path.route is None:
            return path
        name = path.route.link
        values = (value for value in state.program_values if isinstance(value, WireGuard))
        device = next((value for value in values if value.device == name), None)
        if device is None:
            return replace(path, missing=(f"no process encrypts packets of {name}",))
        allowed = (peer for peer in device.peers if any(address in ip_network(net) for net in peer.allowed_ips))
        entry = next(allowed, None)
        if entry is None:
            return replace(path, missing=(f"{name} has no peer for {address}",))
        host, _, port = entry.endpoint.rpartition(":")
        tunnel = OuterHeader(
            protocol="WireGuard",
            port=int(port or 0),
            source=str(me.addresses[0]),
            destination=host.strip("[]"),
            encrypted=True,
        )
        return replace(path, tunnel=tunnel, missing=leads_to(peer, tunnel.destination, f"peer {entry.public_key}"))

    def announced_keys(self, node: LocalNode) -> Mapping[str, NodeKey]:
        """The keys that a node has announced, by their names; their files are not named."""
        announced = _announced(node)
        return {name: NodeKey(key, "") for name, key in announced.keys.items()} if announced is not None else {}

    def overhead(self, me: LocalNode) -> int:
        """60 bytes over IPv4, 80 over IPv6."""
        return _OVERHEAD[me.addresses[0].version]


def _keys(me: LocalNode) -> Mapping[str, NodeKey]:
    return me.keys.get(NAME, {})


def _device(generation: str) -> str:
    return DEVICES[int(generation) % 2]


def _announced(node: Peer | LocalNode) -> _Announced | None:
    """The announcement of a node; None when it is missing or malformed."""
    document = node.facts.details.get(NAME) if node.facts is not None else None
    try:
        announced = msgspec.convert(document, _Announced)
        for name, key in announced.keys.items():
            int(name), key_bytes(key)
    except ValueError:  # msgspec.ValidationError is one
        return None
    return announced


def _peer_keys(peer: Peer) -> Mapping[str, str]:
    announced = _announced(peer)
    return announced.keys if announced is not None else {}


def _folder(me: LocalNode, device: str) -> str:
    return f"{me.run_dir}/{device}"


def _process(me: LocalNode, device: str) -> Child:
    folder = _folder(me, device)
    return Child(
        name=device,
        argv=(*_ALONE, "/bin/sh", "-c", _START, "wireguard-go", folder, device),
        environment={"PATH": _PATH, "LOG_LEVEL": "error"},
        niceness=CARRIER_NICENESS,
        log=f"{folder}.log",
    )


def _refusals(me: LocalNode, cluster: ClusterView) -> NetworkState:
    """Routes that refuse packets to pods of which no node is known to take them encrypted."""
    networks = (network for network in cluster.pod_networks if network not in me.pod_cidrs)
    return NetworkState(
        routes=tuple(Route(dst=str(network), kind="unreachable", metric=_UNREACHABLE_METRIC) for network in networks)
    )
