"""Compiles a resolved Service port to virtual servers, set elements and rules (pure).

A frontend has a virtual server while it has an endpoint. A frontend with ``externalTrafficPolicy: Local`` has the
endpoints of this node; pods and the node itself are translated to the cluster address, which has all endpoints. When
``internalTrafficPolicy`` is Local too, the frontend has all endpoints, and clients outside the cluster are translated
to the cluster address, which has the endpoints of this node.

Cost: one virtual server and one set element for each frontend address (for a node port for each address of the node),
and one set element for each endpoint, for pods that reach themselves.
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
"""``sh`` and ``mh`` take another endpoint when the hash selects an endpoint that is being removed; ``mh`` also hashes
the client's port, as kube-proxy does."""


def flags_of(scheduler: str) -> int:
    """The flags of our virtual servers that use a scheduler."""
    return OWNER_FLAG | _SCHEDULER_FLAGS.get(scheduler, 0)


class Compiled(msgspec.Struct, frozen=True):
    """The kernel state of Service ports in one family."""

    servers: dict[Key, VirtualServer] = {}
    addresses: dict[str, None] = {}
    """Addresses for the device; addresses that the node has on another device are left out later."""
    elements: dict[str, dict[str, None]] = {}
    """Elements, as ipset(8) writes them, by the name of the set."""
    rules: dict[ChainKey, dict[str, None]] = {}
    serving: dict[Key, frozenset[str]] = {}
    """``address:port`` of all serving endpoints of a virtual server's Service, on any node."""


def compile_service(layout: IpvsLayout, ports: tuple[ResolvedPort, ...], owned: frozenset[Frontend]) -> Compiled:
    """The kernel state for the ports of one Service, for the frontends that the Service owns (``owned``)."""
    out = Compiled({}, {}, {}, {}, {})
    for port in ports:
        _IpvsPortCompiler(layout, port, owned, out).compile()
    return out


class _IpvsPortCompiler:
    """Adds the state of one port to ``out``."""

    def __init__(self, layout: IpvsLayout, port: ResolvedPort, owned: frozenset[Frontend], out: Compiled) -> None:
        self.layout = layout
        self.port = port
        self.owned = owned
        self.out = out

    def compile(self) -> None:
        """Adds all state of the port."""
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
        """Adds an external address or an address of a load balancer."""
        if not self._owns(address):
            return
        self._bind(address)
        if self._external(address, self.port.port):
            for kind in kinds:
                self._add(kind, self._element(address, self.port.port))

    def _node_port(self) -> None:
        port = self.port
        has_server = [self._external(address, port.node_port) for address in self.layout.node_ports]
        if not any(has_server):
            return
        for kinds in (names.NODE_PORT, *((names.NODE_PORT_LOCAL,) if port.external_local else ())):
            kind = kinds[port.protocol]
            if kind.kind == "bitmap:port":
                self._add(kind, str(port.node_port))
            else:
                for address in self.layout.node_ports:
                    self._add(kind, self._element(address, port.node_port))

    def _external(self, address: str, number: int) -> bool:
        """Adds a frontend for clients outside the cluster; returns whether the Service has endpoints."""
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
        self._redirect_to_cluster_ip(chain, address, number)
        return True

    def _redirect_to_cluster_ip(self, chain: ChainKey, address: str, number: int) -> None:
        """Adds the rule that translates one kind of client to the cluster address."""
        port = self.port
        match = f"-d {host(address)} -p {port.protocol} {comment(port.name)} -m {port.protocol} --dport {number}"
        target = endpoint_text(port.cluster_ip, port.port)
        self.out.rules.setdefault(chain, {})[f"{match} -j DNAT --to-destination {target}"] = None

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
        for destination in destinations:
            element = self._element(destination.address, destination.port)
            self._add(names.LOOP_BACK, f"{element},{destination.address}")

    def _firewall(self, address: str) -> None:
        """Adds the allowed source ranges.

        A node that connects to a load balancer address has that address as its source.
        """
        port = self.port
        element = self._element(address, port.port)
        self._add(names.LOAD_BALANCER_FW, element)
        own = of_family(self.layout.facts.addresses, port.family)
        for text in port.source_ranges:
            network = ip_network(text)
            single = network.prefixlen == network.max_prefixlen
            self._add(names.SOURCE_CIDR, f"{element},{network.network_address if single else network}")
            if any(ip_network(node_address).subnet_of(network) for node_address in own):  # type: ignore[arg-type]
                self._add(names.SOURCE_IP, f"{element},{address}")
