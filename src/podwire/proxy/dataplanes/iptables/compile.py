"""Compiles a resolved Service port to its own chains and to its rules in the shared chains (pure).

A connection to a frontend passes ``KUBE-SERVICES`` (or ``KUBE-NODEPORTS``), then ``KUBE-SVC-`` (traffic policy Cluster)
or ``KUBE-SVL-`` (traffic policy Local). A connection from outside passes ``KUBE-EXT-`` in between, which masquerades,
or leads pods and this node from a Local frontend to all endpoints; with source ranges it also passes ``KUBE-FW-``. One
of n endpoints is chosen by n - 1 rules that match with probability 1/n, 1/(n-1) and so on; the chain ``KUBE-SEP-`` of
the endpoint translates. A frontend without endpoints has a rule in table ``filter``.

Cost: 3 rules for a ClusterIP port, and 3 for each endpoint (4 with affinity).
"""

import msgspec

from podwire.proxy.dataplane import LOCALHOST_ACCEPTED
from podwire.proxy.dataplanes.iptables.layout import (
    CLUSTER_IPS,
    EXTERNAL_REFUSED,
    FIREWALL,
    HEALTH_PORTS,
    NODE_PORTS,
    REFUSED,
    SERVICES,
    IptablesLayout,
)
from podwire.proxy.dataplanes.iptables.names import PortChains
from podwire.proxy.dataplanes.iptables.shared import Part, part_of_address, part_of_port
from podwire.proxy.frontends import Frontend, admitted
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort
from podwire.proxy.xtables.matches import comment, host
from podwire.state.iptables import ChainKey, Rules

_SCALE = 0x80000000  # linux/netfilter/xt_statistic.h: probabilities are 31 bits


class Compiled(msgspec.Struct, frozen=True):
    """The rules of Service ports in one family: chains of table ``nat``, and rules in shared chains."""

    chains: dict[str, Rules] = {}
    shared: dict[ChainKey, dict[str, Part]] = {}


def compile_service(layout: IptablesLayout, ports: tuple[ResolvedPort, ...], owned: frozenset[Frontend]) -> Compiled:
    """The rules for the ports of one Service, for the frontends that the Service owns (``owned``)."""
    out = Compiled({}, {})
    for port in ports:
        _IptablesPortCompiler(layout, port, owned, out).compile()
    return out


class _IptablesPortCompiler:
    """Adds the rules of one port to ``out``."""

    def __init__(self, layout: IptablesLayout, port: ResolvedPort, owned: frozenset[Frontend], out: Compiled) -> None:
        self.layout = layout
        self.port = port
        self.owned = owned
        self.out = out
        self.names = PortChains(port)
        self.match = f"-p {port.protocol}"
        self.dport = f"-m {port.protocol} --dport {port.port}"

    def compile(self) -> None:
        """Adds all rules of the port."""
        port = self.port
        if port.has_endpoints:
            self._chains()
        self._internal()
        for address in dict.fromkeys(port.external_ips):
            self._external(address, "external IP", self.names.external)
        guarded = bool(port.source_ranges)
        for address in dict.fromkeys(port.load_balancer_ips):
            self._external(address, "loadbalancer IP", self.names.firewall if guarded else self.names.external)
            if guarded and port.has_endpoints and self._owns(address):
                text = comment(f"{port.name} traffic not accepted by {self.names.firewall}")
                rule = f"-d {host(address)} {self.match} {self.dport} {text} -j DROP"
                self._share(FIREWALL, rule, part_of_address(address))
        if port.node_port and Frontend("", port.protocol, port.node_port) in self.owned:
            self._node_port()
        if port.health_check_node_port:
            text = comment(f"{port.name} health check node port")
            rule = f"-p tcp {text} -m tcp --dport {port.health_check_node_port} -j ACCEPT"
            self._share(HEALTH_PORTS, rule, part_of_port("tcp", port.health_check_node_port))

    def _owns(self, address: str) -> bool:
        return Frontend(address, self.port.protocol, self.port.port) in self.owned

    def _share(self, key: ChainKey, rule: str, part: Part) -> None:
        self.out.shared.setdefault(key, {})[rule] = part

    def _internal(self) -> None:
        port = self.port
        address = host(port.cluster_ip)
        if not self._owns(port.cluster_ip):
            return
        part = part_of_address(port.cluster_ip)
        self._share(CLUSTER_IPS, f"-d {address} {comment(port.service)} -g KUBE-REFUSE", part)
        if port.internal_endpoints:
            chain = self.names.local if port.internal_local else self.names.cluster
            text = comment(f"{port.name} cluster IP")
            self._share(SERVICES, f"-d {address} {self.match} {self.dport} {text} -j {chain}", part)
            return
        text, target = self._unreachable(local=port.internal_local)
        self._share(REFUSED, f"-d {address} {self.match} {self.dport} {text} {target}", part)

    def _unreachable(self, *, local: bool) -> tuple[str, str]:
        """The comment and the target of the rule for a frontend without endpoints."""
        if local and self.port.has_endpoints:
            return comment(f"{self.port.name} has no local endpoints"), "-j DROP"
        return comment(f"{self.port.name} has no endpoints"), self.layout.refuse(self.port.protocol)

    @property
    def _external_endpoints(self) -> tuple[ResolvedEndpoint, ...]:
        return self.port.local_endpoints if self.port.external_local else self.port.cluster_endpoints

    def _external(self, address: str, kind: str, chain: str) -> None:
        if not self._owns(address):
            return
        match, part = f"-d {host(address)} {self.match}", part_of_address(address)
        if self.port.has_endpoints:
            text = comment(f"{self.port.name} {kind}")
            self._share(SERVICES, f"{match} {self.dport} {text} -j {chain}", part)
        if not self._external_endpoints:
            text, target = self._unreachable(local=self.port.external_local)
            self._share(EXTERNAL_REFUSED, f"{match} {self.dport} {text} {target}", part)

    def _node_port(self) -> None:
        port = self.port
        dport = f"-m {port.protocol} --dport {port.node_port}"
        part = part_of_port(port.protocol, port.node_port)
        if port.has_endpoints:
            not_loopback = ""
            if self.layout.loopback:
                not_loopback = "! -d 127.0.0.0/8 "
                local = f"-d 127.0.0.0/8 {self.match} {dport} {comment(port.name)}"
                count = self.layout.count(LOCALHOST_ACCEPTED)
                self._share(NODE_PORTS, f"{local}{count} -j {self.names.external}", part)
            rule = f"{not_loopback}{self.match} {dport} {comment(port.name)} -j {self.names.external}"
            self._share(NODE_PORTS, rule, part)
        if not self._external_endpoints:
            text, target = self._unreachable(local=port.external_local)
            match = f"{self.match} {text} -m addrtype --dst-type LOCAL"
            self._share(EXTERNAL_REFUSED, f"{match} {dport} {target}", part)

    def _chains(self) -> None:
        port, chains = self.port, self.out.chains
        outside = bool(port.external_ips or port.load_balancer_ips or port.node_port)
        if not port.internal_local or outside:
            mark = () if port.internal_local else self._mark_outside()
            chains[self.names.cluster] = (*mark, *self._balance(port.cluster_endpoints))
        if port.local_endpoints and (port.internal_local or port.external_local):
            mark = self._mark_outside() if port.internal_local else ()
            chains[self.names.local] = (*mark, *self._balance(port.local_endpoints))
        if outside:
            chains[self.names.external] = self._from_outside()
        if port.load_balancer_ips and port.source_ranges:
            chains[self.names.firewall] = self._firewall()

    def _mark_outside(self) -> Rules:
        """The rule that marks clients of the cluster address for masquerade if they are not pods.

        Empty when pods are not distinguished from other clients.
        """
        port, pods, device = self.port, self.layout.pods, self.layout.pod_interface
        target = "-j KUBE-MARK-MASQ"
        source = device_match = ""
        if self.layout.facts.masquerade_all:
            pass
        elif device:
            device_match = f"! {device}"
        elif len(pods) == 1:
            source = f"! -s {pods[0]} "
        elif pods:
            target = "-j KUBE-MARK-OUTSIDE"
        else:
            return ()
        text = comment(f"{port.name} cluster IP")
        return (f"{source}-d {host(port.cluster_ip)} {device_match}{self.match} {self.dport} {text} {target}",)

    def _balance(self, endpoints: tuple[ResolvedEndpoint, ...]) -> Rules:
        name, count = self.port.name, len(endpoints)
        chains = [self.names.endpoint(endpoint) for endpoint in endpoints]
        rules: list[str] = []
        if self.port.affinity_s:
            for endpoint, chain in zip(endpoints, chains, strict=True):
                recent = f"-m recent --rcheck --seconds {self.port.affinity_s} --reap {self._recent(chain)}"
                rules.append(f"{comment(f'{name} -> {endpoint}')} {recent} -j {chain}")
        for index, (endpoint, chain) in enumerate(zip(endpoints, chains, strict=True)):
            self.out.chains[chain] = self._endpoint(endpoint, chain)
            random_match = ""
            if index < count - 1:
                probability = round(_SCALE / (count - index)) / _SCALE
                random_match = f" -m statistic --mode random --probability {probability:.11f}"
            rules.append(f"{comment(f'{name} -> {endpoint}')}{random_match} -j {chain}")
        return tuple(rules)

    def _recent(self, chain: str) -> str:
        mask = "255.255.255.255" if self.layout.family == "ip" else "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        return f"--name {chain} --mask {mask} --rsource"

    def _endpoint(self, endpoint: ResolvedEndpoint, chain: str) -> Rules:
        text = comment(self.port.name)
        remember = f" -m recent --set {self._recent(chain)}" if self.port.affinity_s else ""
        return (
            f"-s {host(endpoint.address)} {text} -j KUBE-MARK-MASQ",
            f"{self.match} {text}{remember} -m {self.port.protocol} -j DNAT --to-destination {endpoint}",
        )

    def _from_outside(self) -> Rules:
        port, cluster = self.port, self.names.cluster
        name = f"{port.name} external destinations"
        if not port.external_local:
            mark = f"{comment(f'masquerade traffic for {name}')} -j KUBE-MARK-MASQ"
            return (mark, f"-j {cluster}")
        pods = (f"{s}{comment(f'pod traffic for {name}')} -j {cluster}" for s in self.layout.pod_sources())
        from_node = "-m addrtype --src-type LOCAL"
        rules = (
            *pods,
            f"{comment(f'masquerade LOCAL traffic for {name}')} {from_node} -j KUBE-MARK-MASQ",
            f"{comment(f'route LOCAL traffic for {name}')} {from_node} -j {cluster}",
        )
        return (*rules, f"-j {self.names.local}") if port.local_endpoints else rules

    def _firewall(self) -> Rules:
        """The rules that accept the source ranges of a load balancer."""
        text = comment(f"{self.port.name} loadbalancer IP")
        sources = admitted(self.port, self.layout.facts)
        return tuple(f"-s {source} {text} -j {self.names.external}" for source in sources)
