"""From a resolved Service port to its chains, and its rules in the chains that all share (pure).

A connection to a frontend goes ``KUBE-SERVICES`` (or ``KUBE-NODEPORTS``) to ``KUBE-SVC-`` or ``KUBE-SVL-`` (policies
Cluster and Local), from outside by way of ``KUBE-EXT-`` (masquerade, or the short cut of pods and of this node to a
Local frontend) and, with source ranges, ``KUBE-FW-``. One of n endpoints is chosen by n - 1 rules that match with
probability 1/n, 1/(n-1) and so on; its ``KUBE-SEP-`` translates. What has no endpoint has a rule in ``filter``.

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
from podwire.proxy.frontends import Frontend, admitted
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort
from podwire.proxy.xtables.matches import comment, host
from podwire.state.iptables import ChainKey, Rules

_SCALE = 0x80000000  # linux/netfilter/xt_statistic.h: probabilities are 31 bits


class Compiled(msgspec.Struct, frozen=True):
    """What Service ports put into one family: chains of ``nat``, and rules of shared chains."""

    chains: dict[str, Rules] = {}
    shared: dict[ChainKey, dict[str, None]] = {}


def compile_service(layout: IptablesLayout, ports: tuple[ResolvedPort, ...], owned: frozenset[Frontend]) -> Compiled:
    """All that the ports of one Service need, as far as their frontends are ``owned``."""
    out = Compiled({}, {})
    for port in ports:
        _IptablesPortCompiler(layout, port, owned, out).compile()
    return out


class _IptablesPortCompiler:
    """One port while it is compiled."""

    def __init__(self, layout: IptablesLayout, port: ResolvedPort, owned: frozenset[Frontend], out: Compiled) -> None:
        self.layout = layout
        self.port = port
        self.owned = owned
        self.out = out
        self.names = PortChains(port)
        self.match = f"-p {port.protocol}"
        self.dport = f"-m {port.protocol} --dport {port.port}"

    def compile(self) -> None:
        """Adds everything."""
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
                self._share(FIREWALL, f"-d {host(address)} {self.match} {text} {self.dport} -j DROP")
        if port.node_port and Frontend("", port.protocol, port.node_port) in self.owned:
            self._node_port()
        if port.health_check_node_port:
            text = comment(f"{port.name} health check node port")
            self._share(HEALTH_PORTS, f"-p tcp {text} -m tcp --dport {port.health_check_node_port} -j ACCEPT")

    def _owns(self, address: str) -> bool:
        return Frontend(address, self.port.protocol, self.port.port) in self.owned

    def _share(self, key: ChainKey, rule: str) -> None:
        self.out.shared.setdefault(key, {})[rule] = None

    def _internal(self) -> None:
        port = self.port
        address = host(port.cluster_ip)
        if not self._owns(port.cluster_ip):
            return
        self._share(CLUSTER_IPS, f"-d {address} {comment(port.service)} -g KUBE-REFUSE")
        if port.internal_endpoints:
            chain = self.names.local if port.internal_local else self.names.cluster
            text = comment(f"{port.name} cluster IP")
            self._share(SERVICES, f"-d {address} {self.match} {text} {self.dport} -j {chain}")
            return
        text, target = self._unreachable(local=port.internal_local)
        self._share(REFUSED, f"-d {address} {self.match} {text} {self.dport} {target}")

    def _unreachable(self, *, local: bool) -> tuple[str, str]:
        """The comment and the target of the rule for a frontend without endpoints."""
        if local and self.port.has_endpoints:
            return comment(f"{self.port.name} has no local endpoints"), "-j DROP"
        return comment(f"{self.port.name} has no endpoints"), self.layout.refuse(self.port.protocol)

    @property
    def _external_endpoints(self) -> tuple[ResolvedEndpoint, ...]:
        return self.port.local_endpoints if self.port.external_local else self.port.cluster_endpoints

    def _external(self, address: str, what: str, chain: str) -> None:
        if not self._owns(address):
            return
        where = f"-d {host(address)} {self.match}"
        if self.port.has_endpoints:
            text = comment(f"{self.port.name} {what}")
            self._share(SERVICES, f"{where} {text} {self.dport} -j {chain}")
        if not self._external_endpoints:
            text, target = self._unreachable(local=self.port.external_local)
            self._share(EXTERNAL_REFUSED, f"{where} {text} {self.dport} {target}")

    def _node_port(self) -> None:
        port = self.port
        dport = f"-m {port.protocol} --dport {port.node_port}"
        if port.has_endpoints:
            elsewhere = ""
            if self.layout.loopback:
                elsewhere = "! -d 127.0.0.0/8 "
                local = f"-d 127.0.0.0/8 {self.match} {comment(port.name)} {dport}"
                count = self.layout.count(LOCALHOST_ACCEPTED)
                self._share(NODE_PORTS, f"{local}{count} -j {self.names.external}")
            self._share(NODE_PORTS, f"{elsewhere}{self.match} {comment(port.name)} {dport} -j {self.names.external}")
        if not self._external_endpoints:
            text, target = self._unreachable(local=port.external_local)
            where = f"{self.match} {text} -m addrtype --dst-type LOCAL"
            self._share(EXTERNAL_REFUSED, f"{where} {dport} {target}")

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
        """Masquerades clients of the cluster address that are not pods."""
        port, pods, device = self.port, self.layout.pods, self.layout.pod_interface
        target = "-j KUBE-MARK-MASQ"
        source = came = ""
        if self.layout.facts.masquerade_all:
            pass
        elif device:
            came = f"! {device}"
        elif len(pods) == 1:
            source = f"! -s {pods[0]} "
        elif pods:
            target = "-j KUBE-MARK-OUTSIDE"
        else:
            return ()
        text = comment(f"{port.name} cluster IP")
        return (f"{source}-d {host(port.cluster_ip)} {came}{self.match} {text} {self.dport} {target}",)

    def _balance(self, endpoints: tuple[ResolvedEndpoint, ...]) -> Rules:
        name, count = self.port.name, len(endpoints)
        chains = [self.names.endpoint(endpoint) for endpoint in endpoints]
        rules: list[str] = []
        if self.port.affinity_s:
            for endpoint, chain in zip(endpoints, chains, strict=True):
                seen = f"-m recent --rcheck --seconds {self.port.affinity_s} --reap {self._recent(chain)}"
                rules.append(f"{comment(f'{name} -> {endpoint}')} {seen} -j {chain}")
        for index, (endpoint, chain) in enumerate(zip(endpoints, chains, strict=True)):
            self.out.chains[chain] = self._endpoint(endpoint, chain)
            chance = ""
            if index < count - 1:
                share = round(_SCALE / (count - index)) / _SCALE
                chance = f" -m statistic --mode random --probability {share:.11f}"
            rules.append(f"{comment(f'{name} -> {endpoint}')}{chance} -j {chain}")
        return tuple(rules)

    def _recent(self, chain: str) -> str:
        mask = "255.255.255.255" if self.layout.family == "ip" else "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        return f"--name {chain} --mask {mask} --rsource"

    def _endpoint(self, endpoint: ResolvedEndpoint, chain: str) -> Rules:
        text = comment(self.port.name)
        keep = f" -m recent --set {self._recent(chain)}" if self.port.affinity_s else ""
        return (
            f"-s {host(endpoint.address)} {text} -j KUBE-MARK-MASQ",
            f"{self.match} {text}{keep} -m {self.port.protocol} -j DNAT --to-destination {endpoint}",
        )

    def _from_outside(self) -> Rules:
        port, cluster = self.port, self.names.cluster
        name = f"{port.name} external destinations"
        if not port.external_local:
            mark = f"{comment(f'masquerade traffic for {name}')} -j KUBE-MARK-MASQ"
            return (mark, f"-j {cluster}")
        sources = [self.layout.pod_interface] if self.layout.pod_interface else [f"-s {x} " for x in self.layout.pods]
        pods = (f"{source}{comment(f'pod traffic for {name}')} -j {cluster}" for source in sources)
        here = "-m addrtype --src-type LOCAL"
        rules = (
            *pods,
            f"{comment(f'masquerade LOCAL traffic for {name}')} {here} -j KUBE-MARK-MASQ",
            f"{comment(f'route LOCAL traffic for {name}')} {here} -j {cluster}",
        )
        return (*rules, f"-j {self.names.local}") if port.local_endpoints else rules

    def _firewall(self) -> Rules:
        """Source ranges that are allowed in."""
        text = comment(f"{self.port.name} loadbalancer IP")
        sources = admitted(self.port, self.layout.facts)
        return tuple(f"-s {source} {text} -j {self.names.external}" for source in sources)
