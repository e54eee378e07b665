"""How a pod is wired: a veth, as the state of two namespaces.

The pod's end holds its addresses with full prefix length and a default route via 169.254.1.1 (fe80::1), an address
that no interface has: both ends have a permanent neighbour entry for the other, so no ARP or neighbour discovery is
needed. There is no bridge, and two pods of one node communicate through the node's routing table. The
node's end has one route per pod address. Measured: both sides in two netlink sends, 0.5 to 0.8 ms.
With ``cni.link: bridge`` the node's end is a port of a bridge (:mod:`podwire.cni.podbridge`), and routes and neighbours
are those of the bridge. A running pod stays as it was wired.

An interface of a pod that has a default route by another interface (a second one, or podwire as a secondary network)
gets its own routing table, which packets from its addresses use: replies leave by the interface that the requests used,
as ``rp_filter`` on the node's end demands.

The node's end is named ``<pod[:8]>-<hash>`` and carries the alias ``namespace/pod container``. The hash is of the
attachment's key and can be computed again from the alias, which identifies devices of podwire even when
the ledger is lost. ``rp_filter`` 1 on it drops IPv4 packets with a source that is not the pod's.
"""

import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

import msgspec
from msgspec.structs import replace

from podwire.cluster.podbridge import ALIAS, BRIDGE
from podwire.cluster.podleg import PodLeg
from podwire.cluster.podnetworks import DEFAULT_NETWORK, SEPARATION_PRIORITY
from podwire.cni import podbridge, ports, spec
from podwire.cni.ipam.ledger import Attachment
from podwire.cni.ipam.pool import host_network, version_of
from podwire.cni.pinned import chosen_network
from podwire.cni.protocol import AttachmentKey, CniRequest
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark, merge
from podwire.state.route import Address, Fdb, FibRule, Neighbour, Route, Sysctl

ROUTE_PROTOCOL = 112
"""rtnetlink protocol number of the routes to pods."""

OWNER = OwnerMark(route_protocol=ROUTE_PROTOCOL)
"""The mark of pods' wiring, in the node's namespace and in the pods'."""

NODE_OWNER = OwnerMark(route_protocol=ROUTE_PROTOCOL, alias_prefix=ALIAS)
"""The same in the node's namespace, where the bridge of pods belongs to the wiring."""

HOST_MAC = "02:70:77:00:00:01"
"""Hardware address of every node's end: a pod that is moved or restored finds the same gateway."""

GATEWAYS = {4: IPv4Address("169.254.1.1"), 6: IPv6Address("fe80::1")}
_GATEWAY_TEXTS = {version: str(gateway) for version, gateway in GATEWAYS.items()}
_DEFAULT = {4: "0.0.0.0/0", 6: "::/0"}
FIRST_TABLE = 11200
"""The routing table of a pod's second interface, and the priority of its rules; a third one has the next number."""
LEG = "lan0"
"""The name of a pod's second interface."""
_LEG_ALIAS = "podwire/cni leg"
_POD_LETTERS = 8
_NO_LABEL = re.compile("[^A-Za-z0-9-]")
_HASH_LETTERS = 6


class WiringFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of the node that pods' wiring depends on.

    ``mtu`` is that of pods' devices in bytes, ``route_mtus`` those of the families that have a smaller one. ``sources``
    are the sources of the node's own packets to pods, by family; ``cidrs`` the node's pod CIDRs, none while they are
    not known. ``leg`` None: pods have one interface. ``whole``: each address of the CIDRs is for a pod. ``networks``
    are the node's ranges of further pod networks, by their names. ``link`` is how new pods are connected: ``routed``
    or ``bridge``.
    """

    mtu: int = 1500
    sources: dict[int, str] = {}
    cidrs: tuple[str, ...] = ()
    leg: PodLeg | None = None
    route_mtus: dict[int, int] = {}
    whole: bool = False
    networks: dict[str, tuple[str, ...]] = {}
    link: str = "routed"

    def route_mtu(self, version: int) -> int:
        """The MTU of a pod's default route of a family."""
        return self.route_mtus.get(version, self.mtu)


class Wiring(msgspec.Struct, frozen=True):
    """The state that one pod adds to its node's namespace, and the whole state of the pod's namespace.

    ``leg`` is the pod's second interface as it is created: its lower device is one of the node's namespace. ``pod`` has
    the leg as a device that another namespace made.
    """

    host: NetworkState
    pod: NetworkState
    leg: Link | None = None

    @property
    def first(self) -> NetworkState:
        """The state of the pod's namespace without the leg."""
        if self.leg is None:
            return self.pod
        return NetworkState(
            links=tuple(link for link in self.pod.links if link.name != LEG),
            addresses=tuple(address for address in self.pod.addresses if address.link != LEG),
            neighbours=self.pod.neighbours,
            rules=self.pod.rules,
            routes=tuple(route for route in self.pod.routes if route.link != LEG),
        )

    def __str__(self) -> str:
        return f"# node\n{self.host}\n# pod\n{self.pod}"


def wiring_facts(
    mtus: Mapping[int, int],
    addresses: Iterable[IPv4Address | IPv6Address],
    cidrs: Iterable[IPv4Network | IPv6Network],
    leg: PodLeg | None = None,
    *,
    whole: bool = False,
    networks: Mapping[str, tuple[str, ...]] = {},
) -> WiringFacts:
    """The facts of a node with these addresses; the first address of a family is the source of its packets to pods.

    ``mtus`` are the MTUs of pods by family, ``networks`` the ranges of further pod networks by their names.
    """
    sources: dict[int, str] = {}
    for address in addresses:
        sources.setdefault(address.version, str(address))
    mtu = max(mtus.values())
    smaller = {version: size for version, size in mtus.items() if size < mtu}
    return WiringFacts(
        mtu=mtu,
        sources=sources,
        cidrs=tuple(map(str, cidrs)),
        leg=leg,
        route_mtus=smaller,
        whole=whole,
        networks=dict(networks),
    )


def separated_networks(node: WiringFacts, have: NetworkState) -> WiringFacts:
    """The facts without the further networks whose separation the node's namespace does not hold, as after a boot."""
    if not node.networks:
        return node
    sources = [ip_network(rule.src) for rule in have.rules if rule.priority == SEPARATION_PRIORITY and rule.src]
    networks = {
        name: cidrs
        for name, cidrs in node.networks.items()
        if all(any(ip_network(cidr).overlaps(source) for source in sources) for cidr in cidrs)
    }
    return replace(node, networks=networks)


def key_hash(container: str, ifname: str) -> str:
    """Six hexadecimal digits that identify an attachment."""
    digest = hashlib.sha1(f"{container}/{ifname}".encode(), usedforsecurity=False)
    return digest.hexdigest()[:_HASH_LETTERS]


def host_link_name(pod: str, key: AttachmentKey) -> str:
    """The name of the node's end."""
    label = _NO_LABEL.sub("-", (pod or key.container)[:_POD_LETTERS])
    return f"{label}-{key_hash(key.container, key.ifname)}"


def pod_mac(key: AttachmentKey) -> str:
    """The hardware address of the pod's end: locally administered, the same when the pod is wired again."""
    digest = hashlib.sha1(f"mac {key}".encode(), usedforsecurity=False).digest()
    return f"02:{digest[:5].hex(':')}"


def pod_name(attachment: Attachment) -> str:
    """``namespace/pod``; a dash when the pod's name is not known."""
    return f"{attachment.namespace}/{attachment.pod}" if attachment.pod else "-"


def alias_of(attachment: Attachment) -> str:
    """The alias of the node's end, which ``ip link`` shows: pod and container, and the interface unless eth0."""
    suffix = "" if attachment.key.ifname == "eth0" else f" {attachment.key.ifname}"
    return f"{pod_name(attachment)} {attachment.key.container}{suffix}"


def owner_of(link: Link) -> tuple[str, str] | None:
    """Container and interface of a device that podwire made, or None for another device."""
    fields = link.alias.split(" ")
    if link.kind != "veth" or not 2 <= len(fields) <= 3:
        return None
    container, ifname = fields[1], fields[2] if len(fields) == 3 else "eth0"
    return (container, ifname) if link.name.endswith(f"-{key_hash(container, ifname)}") else None


def belongs(link: Link, attachment: Attachment) -> bool:
    """Whether a device is the node's end of an attachment.

    A device without an alias counts too: an agent killed in the middle of ADD leaves such a device behind (the kernel
    ends a batch of messages early when its sender is killed; seen on Linux 6.18).
    """
    if link.name != attachment.host_link or link.kind != "veth":
        return False
    return owner_of(link) == (attachment.key.container, attachment.key.ifname) or (
        not link.alias and link.mac == HOST_MAC
    )


def is_complete(state: NetworkState, attachment: Attachment) -> bool:
    """Whether an attachment's device exists and its ADD was completed."""
    link = state.link(attachment.host_link)
    return link is not None and bool(link.alias)


def missing_in_ledger(state: NetworkState, held: Collection[AttachmentKey], network: str) -> list[Attachment]:
    """The wired pods that the ledger lacks, rebuilt from the node's devices, routes and neighbours.

    A device of podwire without routes was detached by DEL and waits for the group delete: it is left out.
    """
    known = {(key.container, key.ifname) for key in held}
    attachments = []
    for link in state.links:
        owner = owner_of(link)
        if owner is None or owner in known:
            continue
        routes, macs = _behind(state, link)
        if routes and macs:
            namespace, _, pod = link.alias.split(" ")[0].partition("/")
            attachments.append(
                Attachment(
                    key=AttachmentKey(network, *owner),
                    mac=macs[0],
                    host_link=link.name,
                    netns="",
                    addresses=tuple(r.dst.partition("/")[0] for r in routes),
                    namespace=namespace if pod else "",
                    pod=pod,
                    bridge=link.master,
                    gateways=_held_gateways(state, routes) if link.master else (),
                )
            )
    return attachments


def _behind(state: NetworkState, link: Link) -> tuple[list[Route], list[str]]:
    """The routes to the pod behind a device, and the hardware addresses of its neighbour entries."""
    routes = [r for r in state.routes if r.link == (link.master or link.name) and r.proto == ROUTE_PROTOCOL]
    if not link.master:
        return routes, [n.mac for n in state.neighbours if n.link == link.name]
    behind = {entry.mac for entry in state.fdb if entry.link == link.name}
    macs = {n.ip: n.mac for n in state.neighbours if n.link == link.master and n.mac in behind}
    return [r for r in routes if r.dst.partition("/")[0] in macs], list(macs.values())


def _held_gateways(state: NetworkState, routes: Iterable[Route]) -> tuple[str, ...]:
    """The first address of the bridge of pods in each family of the routes."""
    first: dict[bool, str] = {}
    for address in state.addresses:
        if address.link == BRIDGE and not address.cidr.startswith("fe80:"):
            first.setdefault(":" in address.cidr, address.cidr.partition("/")[0])
    return tuple(first[six] for six in sorted({":" in route.dst for route in routes}) if six in first)


def free_table(attachments: Iterable[Attachment]) -> int:
    """The first routing table that none of a pod's interfaces uses."""
    used = {attachment.table for attachment in attachments}
    return next(number for number in itertools.count(FIRST_TABLE) if number not in used)


def attach(
    request: CniRequest, addresses: Sequence[IPv4Address | IPv6Address], node: WiringFacts, mac: str = ""
) -> Attachment:
    """The attachment for a request, the addresses chosen for it and the requested hardware address."""
    network = chosen_network(request.conf.runtime_config.annotations)
    is_bridged = node.link == "bridge"
    return Attachment(
        key=request.key,
        addresses=tuple(str(address) for address in addresses),
        host_link=host_link_name(request.pod, request.key),
        mac=mac or pod_mac(request.key),
        netns=request.netns,
        namespace=request.namespace,
        pod=request.pod,
        uid=request.uid,
        ports=ports.checked(request.conf.runtime_config.port_mappings),
        pod_network="" if network == DEFAULT_NETWORK else network,
        bridge=BRIDGE if is_bridged else "",
        gateways=podbridge.gateways(node.cidrs, whole=node.whole) if is_bridged else (),
    )


def plan(attachment: Attachment, node: WiringFacts) -> Wiring:
    """The wiring of an attachment."""
    host, pod = node_side(attachment, node), _pod_side(attachment, node)
    if node.leg is None or attachment.table:
        return Wiring(host, pod)
    pod = merge((pod, OWNER.stamp(_leg_state(attachment, node.leg))))
    return Wiring(host, pod, _leg_link(attachment, node.leg))


def node_side(attachment: Attachment, node: WiringFacts) -> NetworkState:
    """What an attachment adds to the node's namespace; every object has the owner's mark."""
    host, device, bridge = attachment.host_link, attachment.device, attachment.bridge
    texts, proto = attachment.addresses, ROUTE_PROTOCOL
    alias, peer = alias_of(attachment), attachment.key.ifname
    link = Link(name=host, kind="veth", mtu=node.mtu, mac=HOST_MAC, alias=alias, peer=peer)
    if bridge:
        link = replace(link, master=bridge, hairpin=True, locked=True)
    return NetworkState(
        links=(link,),
        neighbours=tuple(Neighbour(link=device, ip=text, mac=attachment.mac, proto=proto) for text in texts),
        fdb=(Fdb(link=host, mac=attachment.mac, bridge=True),) if bridge else (),
        routes=tuple(_node_route(attachment, text, node) for text in texts),
        rules=_lone_rules(attachment, node),
        sysctls=_sysctls(attachment) if any(":" not in text for text in texts) else (),
    )


def _pod_side(attachment: Attachment, node: WiringFacts) -> NetworkState:
    """The state of the pod's namespace without a leg."""
    inner, texts, proto = attachment.key.ifname, attachment.addresses, ROUTE_PROTOCOL
    versions = sorted(set(map(version_of, texts)))
    gateways = [(v, gateway_of(attachment, v)) for v in versions]
    return NetworkState(
        links=(_LOOPBACK, Link(name=inner, kind="veth", mtu=node.mtu, mac=attachment.mac)),
        addresses=tuple(Address(link=inner, cidr=host_network(text), proto=proto) for text in texts),
        neighbours=tuple(_gateway_neighbour(inner, gateway) for _, gateway in gateways),
        routes=tuple(route for v in versions for route in _pod_routes(attachment, v, node.route_mtu(v))),
        rules=tuple(
            FibRule(priority=attachment.table, src=host_network(text), table=attachment.table, proto=proto)
            for text in texts
            if version_of(text) in attachment.beside
        ),
    )


_LOOPBACK = Link(name="lo")


@lru_cache(64)
def _gateway_neighbour(link: str, gateway: str) -> Neighbour:
    """The gateway in the pod's neighbour table, which is the same in most pods."""
    return Neighbour(link=link, ip=gateway, mac=HOST_MAC, proto=ROUTE_PROTOCOL)


def _lone_rules(attachment: Attachment, node: WiringFacts) -> tuple[FibRule, ...]:
    """Rules for a pod of a network that the node does not have (any more), and that nothing else keeps separate.

    The same for an address outside of the range that the node has in the network now. The pod reaches its node alone,
    whose addresses the kernel looks up before all rules.
    """
    if not attachment.pod_network:
        return ()
    ranges = [ip_network(cidr) for cidr in node.networks.get(attachment.pod_network, ())]
    return tuple(
        FibRule(priority=SEPARATION_PRIORITY, src=f"{ip}/{ip.max_prefixlen}", kind="unreachable", proto=ROUTE_PROTOCOL)
        for ip in attachment.ips
        if not any(ip in network for network in ranges)
    )


def of_pod(attachments: Iterable[Attachment], node: WiringFacts) -> NetworkState:
    """The state of a pod's namespace, with all of its interfaces."""
    states = [plan(attachment, node).pod for attachment in attachments]
    return states[0] if len(states) == 1 else merge(states)


def leg_mac(key: AttachmentKey) -> str:
    """The hardware address of a leg of kind macvlan: locally administered, the same when the pod is wired again."""
    digest = hashlib.sha1(f"leg {key}".encode(), usedforsecurity=False).digest()
    return ":".join(f"{byte:02x}" for byte in (0x02, *digest[:5]))


def is_leg(link: Link, attachment: Attachment) -> bool:
    """Whether a device in the pod's namespace is its leg: by the hardware address, that of kind ipvlan by the alias."""
    if link.name != LEG:
        return False
    return link.alias == _LEG_ALIAS if link.kind == "ipvlan" else link.mac == leg_mac(attachment.key)


def _own_mac(attachment: Attachment, leg: PodLeg) -> str:
    return "" if leg.kind == "ipvlan" else leg_mac(attachment.key)


def _leg_link(attachment: Attachment, leg: PodLeg) -> Link:
    mac = _own_mac(attachment, leg)
    return Link(name=LEG, kind=leg.kind, mtu=leg.mtu, mac=mac, device=leg.uplink, mode=leg.mode, up=False)


def _leg_state(attachment: Attachment, leg: PodLeg) -> NetworkState:
    """The leg in the pod's namespace, with the pod's addresses: IPv6 answers only for those of the interface itself.

    Packets may arrive by the other interface than those to their source leave, while nodes change their backend.
    """
    versions = {ip.version for ip in attachment.ips}
    networks = [network for network in leg.networks if (6 if ":" in network else 4) in versions]
    sysctls = [Sysctl(path=f"net/ipv4/conf/{name}/rp_filter", value="2") for name in (attachment.key.ifname, LEG)]
    if 6 in versions:
        sysctls.append(Sysctl(path=f"net/ipv6/conf/{LEG}/accept_ra", value="0"))
    routes = [Route(dst=network, link=LEG, scope="" if ":" in network else "link") for network in networks]
    for network, gateway in leg.gateways:
        if (6 if ":" in network else 4) in versions:
            routes.append(Route(dst=network, via=gateway, link=LEG, onlink=True))
    alias = _LEG_ALIAS if leg.kind == "ipvlan" else ""
    return NetworkState(
        links=(Link(name=LEG, mtu=leg.mtu, mac=_own_mac(attachment, leg), alias=alias),),
        addresses=tuple(Address(link=LEG, cidr=f"{ip}/{ip.max_prefixlen}") for ip in attachment.ips),
        routes=tuple(routes),
        sysctls=tuple(sysctls),
    )


def merged(attachments: Iterable[Attachment], node: WiringFacts) -> NetworkState:
    """The node's side of several attachments, without the names of the pods' ends, which are in other namespaces."""
    held = tuple(attachments)
    states = [node_side(attachment, node) for attachment in held]
    links = [replace(link, peer="") for state in states for link in state.links]
    if bridge := bridge_of(held, node):
        states.append(bridge)
        links += bridge.links
    return replace(merge(states), links=tuple(links))


def bridge_of(attachments: Iterable[Attachment], node: WiringFacts) -> NetworkState | None:
    """The bridge of the node's pods; None when neither new pods nor these attachments need one."""
    bridged = [attachment for attachment in attachments if attachment.bridge]
    if not bridged and not (node.link == "bridge" and node.cidrs):
        return None
    gateways = itertools.chain(
        podbridge.gateways(node.cidrs, whole=node.whole), *(attachment.gateways for attachment in bridged)
    )
    return OWNER.stamp(podbridge.plan(node.mtu, HOST_MAC, gateways))


def _node_route(attachment: Attachment, text: str, node: WiringFacts) -> Route:
    """The node's route to an address of a pod."""
    dst, source = host_network(text), node.sources.get(version_of(text), "")
    if attachment.bridge and ":" not in text:
        return Route(dst=dst, via=text, link=attachment.bridge, onlink=True, src=source, proto=ROUTE_PROTOCOL)
    return Route(dst=dst, link=attachment.device, src=source, proto=ROUTE_PROTOCOL)


_OWN_SYSCTLS = (("accept_redirects", "0"), ("forwarding", "1"), ("rp_filter", "1"), ("send_redirects", "0"))


def _sysctls(attachment: Attachment) -> tuple[Sysctl, ...]:
    values = () if attachment.bridge else _OWN_SYSCTLS  # Those of the bridge do not depend on its pods.
    if attachment.ports and ports.on_loopback(attachment.ports):
        values = (*values, ("route_localnet", "1"))
    prefix = f"net/ipv4/conf/{attachment.device}/"
    return tuple(Sysctl(path=prefix + name, value=value) for name, value in values)


def gateway_of(attachment: Attachment, version: int) -> str:
    """The gateway of a pod in a family."""
    own = (gateway for gateway in attachment.gateways if (":" in gateway) == (version == 6))
    return next(own, _GATEWAY_TEXTS[version])


def _pod_routes(attachment: Attachment, version: int, mtu: int) -> tuple[Route, ...]:
    table = attachment.table if version in attachment.beside else 0
    return _routes_by(gateway_of(attachment, version), attachment.key.ifname, mtu, table)


@lru_cache(64)
def _routes_by(gateway: str, link: str, mtu: int, table: int) -> tuple[Route, ...]:
    """The routes by a gateway, which are the same in most pods; ``table`` 0: another interface has no default route."""
    version = 6 if ":" in gateway else 4
    default = Route(dst=_DEFAULT[version], via=gateway, link=link, mtu=mtu, proto=ROUTE_PROTOCOL)
    if table:
        default = replace(default, onlink=version == 4, table=table)
    if gateway.startswith("fe80:"):
        return (default,)
    if version == 6:
        return (Route(dst=f"{gateway}/128", link=link, table=default.table, proto=ROUTE_PROTOCOL), default)
    if table:
        return (default,)
    return (Route(dst=f"{gateway}/32", link=link, scope="link", proto=ROUTE_PROTOCOL), default)


def result(attachment: Attachment, node: WiringFacts, dns: spec.Dns) -> spec.CniResult:
    """The CNI result of ADD."""
    versions = sorted(set(map(version_of, attachment.addresses)))
    names = (*filter(None, (attachment.bridge,)), attachment.host_link)
    return spec.CniResult(
        interfaces=(
            *(spec.CniInterface(name=name, mac=HOST_MAC, mtu=node.mtu) for name in names),
            spec.CniInterface(name=attachment.key.ifname, mac=attachment.mac, sandbox=attachment.netns, mtu=node.mtu),
        ),
        ips=tuple(
            spec.Ip(address=host_network(text), gateway=gateway_of(attachment, version_of(text)), interface=len(names))
            for text in attachment.addresses
        ),
        routes=tuple(
            spec.CniRoute(dst=_DEFAULT[v], gw=gateway_of(attachment, v)) for v in versions if v not in attachment.beside
        ),
        dns=dns,
    )
