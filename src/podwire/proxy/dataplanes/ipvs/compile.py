"""From a resolved Service port to its virtual servers, and what it adds to sets and chains (pure).

A frontend has a virtual server as long as somebody serves it. One of ``externalTrafficPolicy: Local`` has the endpoints
of this node, and pods and the node itself are translated to the cluster address, which has all. Where that is Local
too, it is the other way round: the frontend has all endpoints, and clients outside are translated to the cluster
address.

Cost: a virtual server for each address, of a node port for each address of the node; an element of a set for each of
them, and one for each endpoint (a pod that reaches itself).
"""

from collections.abc import Iterable
from ipaddress import ip_network

import msgspec

from podwire.proxy.dataplanes.ipvs import names
from podwire.proxy.dataplanes.ipvs.layout import INSIDE, OUTSIDE, IpvsLayout
from podwire.proxy.dataplanes.ipvs.names import SetKind, set_name
from podwire.proxy.frontends import Frontend
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort, of_family
from podwire.proxy.xtables.matches import comment, host
from podwire.state.iptables import ChainKey
from podwire.state.ipvs import FLAG_1, FLAG_2, OWNER_FLAG, Destination, Key, VirtualServer, endpoint_text, protocol_of

_SCHEDULER_FLAGS = {"sh": FLAG_1, "mh": FLAG_1 | FLAG_2}
"""``sh`` and ``mh`` take another endpoint where the hash points to one that is leaving; ``mh`` hashes the client's port
too, as kube-proxy has it."""


def flags_of(scheduler: str) -> int:
    """The flags of our virtual servers with a scheduler."""
    return OWNER_FLAG | _SCHEDULER_FLAGS.get(scheduler, 0)


class Compiled(msgspec.Struct, frozen=True):
    """What Service ports put into one family."""

    servers: dict[Key, VirtualServer] = {}
    addresses: dict[str, None] = {}
    """What is bound to the device; those that the node has elsewhere are left out later."""
    elements: dict[str, dict[str, None]] = {}
    """Elements, as ipset(8) writes them, by the name of the set."""
    rules: dict[ChainKey, dict[str, None]] = {}
    serving: dict[Key, frozenset[str]] = {}
    """``address:port`` of the endpoints of a virtual server's Service that serve anywhere, those it lacks included."""


def compile_service(layout: IpvsLayout, ports: tuple[ResolvedPort, ...], owned: frozenset[Frontend]) -> Compiled:
    """All that the ports of one Service need, as far as their frontends are ``owned``."""
    out = Compiled({}, {}, {}, {}, {})
    for port in ports:
        _IpvsPortCompiler(layout, port, owned, out).compile()
    return out


class _IpvsPortCompiler:
    """One port while it is compiled."""

    def __init__(self, layout: IpvsLayout, port: ResolvedPort, owned: frozenset[Frontend], out: Compiled) -> None:
        self.layout = layout
        self.port = port
        self.owned = owned
        self.out = out

    def compile(self) -> None:
        """Adds everything."""
        port = self.port
        self._internal()
        external = (names.EXTERNAL_IP_LOCAL,) if port.external_local else (names.EXTERNAL_IP,)
        for address in dict.fromkeys(port.external_ips):
            self._address(address, external)
        local = (names.LOAD_BALANCER_LOCAL,) if port.external_local else ()
        for address in dict.fromkeys(port.load_balancer_ips):
            self._address(address, (names.LOAD_BALANCER, *local))
            if port.source_ranges and self._owns(address):
                self._firewall(address)
        if port.node_port and Frontend("", port.protocol, port.node_port) in self.owned:
            self._node_port()
        if port.health_check_node_port:
            self._add(names.HEALTH_PORTS, str(port.health_check_node_port))

    def _owns(self, address: str) -> bool:
        return Frontend(address, self.port.protocol, self.port.port) in self.owned

    def _add(self, kind: SetKind, element: str) -> None:
        self.out.elements.setdefault(set_name(kind, self.layout.family), {})[element] = None

    def _element(self, address: str, port: int) -> str:
        return f"{address},{self.port.protocol}:{port}"

    def _internal(self) -> None:
        port = self.port
        if not self._owns(port.cluster_ip):
            return
        self._bind(port.cluster_ip)
        element = self._element(port.cluster_ip, port.port)
        if port.internal_endpoints:
            self._serve(port.cluster_ip, port.port, port.internal_endpoints)
            self._add(names.CLUSTER_IP, element)
        elif port.internal_local and port.has_endpoints:
            self._add(names.DROPPED, element)
        else:
            self._add(names.REFUSED, element)

    def _address(self, address: str, kinds: tuple[SetKind, ...]) -> None:
        """An external or a load balancer address."""
        if not self._owns(address):
            return
        self._bind(address)
        if self._external(address, self.port.port):
            for kind in kinds:
                self._add(kind, self._element(address, self.port.port))

    def _node_port(self) -> None:
        port = self.port
        served = [self._external(address, port.node_port) for address in self.layout.node_ports]
        if not any(served):
            return
        for kinds in (names.NODE_PORT, *((names.NODE_PORT_LOCAL,) if port.external_local else ())):
            kind = kinds[port.protocol]
            if kind.kind == "bitmap:port":
                self._add(kind, str(port.node_port))
            else:
                for address in self.layout.node_ports:
                    self._add(kind, self._element(address, port.node_port))

    def _external(self, address: str, number: int) -> bool:
        """A way in from outside; whether anybody serves it."""
        port = self.port
        if not port.has_endpoints:
            self._add(names.REFUSED, self._element(address, number))
            return False
        if not port.external_local:
            self._serve(address, number, port.cluster_endpoints)
            return True
        if not port.local_endpoints:
            self._add(names.DROPPED_OUTSIDE, self._element(address, number))
        endpoints, chain = (port.cluster_endpoints, OUTSIDE) if port.internal_local else (port.local_endpoints, INSIDE)
        self._serve(address, number, endpoints)
        self._elsewhere(chain, address, number)
        return True

    def _elsewhere(self, chain: ChainKey, address: str, number: int) -> None:
        """One kind of client goes to the cluster address."""
        port = self.port
        where = f"-d {host(address)} -p {port.protocol} {comment(port.name)} -m {port.protocol} --dport {number}"
        target = endpoint_text(port.cluster_ip, port.port)
        self.out.rules.setdefault(chain, {})[f"{where} -j DNAT --to-destination {target}"] = None

    def _bind(self, address: str) -> None:
        self.out.addresses[address] = None
        self._add(names.IPVS_IPS, address)

    def _serve(self, address: str, number: int, endpoints: Iterable[ResolvedEndpoint]) -> None:
        destinations = tuple(sorted((Destination(e.address, e.port) for e in endpoints), key=str))
        if not destinations:
            return
        key = Key(protocol_of(self.port.protocol), address, number)
        self.out.serving[key] = self.port.serving
        scheduler = self.layout.facts.ipvs.scheduler
        self.out.servers[key] = VirtualServer(
            key=key,
            scheduler=scheduler,
            flags=flags_of(scheduler),
            persistent_s=self.port.affinity_s,
            destinations=destinations,
        )
        for each in destinations:
            self._add(names.LOOP_BACK, f"{self._element(each.address, each.port)},{each.address}")

    def _firewall(self, address: str) -> None:
        """Sources that may come in; a node that may reach its own load balancer address comes with that address."""
        port = self.port
        element = self._element(address, port.port)
        self._add(names.LOAD_BALANCER_FW, element)
        own = of_family(self.layout.facts.addresses, port.family)
        for text in port.source_ranges:
            network = ip_network(text)
            alone = network.prefixlen == network.max_prefixlen
            self._add(names.SOURCE_CIDR, f"{element},{network.network_address if alone else network}")
            if any(ip_network(each).subnet_of(network) for each in own):  # type: ignore[arg-type]
                self._add(names.SOURCE_IP, f"{element},{address}")
