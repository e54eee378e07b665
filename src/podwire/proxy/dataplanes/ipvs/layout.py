"""The chains that do not depend on Services, and the jumps to them (pure).

A packet to an address of a Service is delivered to this node, where IPVS takes it at the end of ``INPUT`` (that of the
node's own processes already in ``OUTPUT``, before ``filter``). So what is dropped is dropped in ``mangle``, before
anything else, and what is refused in ``filter`` of ``INPUT``, where packets of the node pass again when no virtual
server took them. ``nat`` marks for masquerade. Which frontends a rule is about says a set, so the number of rules does
not grow with the Services; the exception are frontends of ``externalTrafficPolicy: Local``, which serve clients outside
of the cluster by the endpoints of this node and all others by those of any node. A virtual server has one list, so one
kind of client is translated to the cluster address, which has the other: a rule for each such frontend.

A pod's segment out of its window is not translated back by connection tracking, so it comes to the node itself where
the client is masqueraded. The node would answer by a reset, and so end the connection; such segments are dropped.
"""

from ipaddress import ip_network

from podwire.proxy.dataplanes.ipvs import names
from podwire.proxy.dataplanes.ipvs.names import SetKind, set_name
from podwire.proxy.servicemap import NodeFacts, of_family
from podwire.proxy.xtables.matches import comment, host
from podwire.state.chain_marks import IPVS_MARK
from podwire.state.iptables import ChainKey, Rules

INSIDE = ("nat", "KUBE-LOCAL-INSIDE")
OUTSIDE = ("nat", "KUBE-LOCAL-OUTSIDE")

_NEW = "-m conntrack --ctstate NEW"
_INVALID = "-m conntrack --ctstate INVALID"
_HERE = "-m addrtype --src-type LOCAL"


class IpvsLayout:
    """The constant part for one family on one node; ``node_ports`` are the addresses at which node ports answer."""

    def __init__(self, family: str, facts: NodeFacts, node_ports: tuple[str, ...]) -> None:
        self.family = family
        self.facts = facts
        self.node_ports = of_family(node_ports, family)
        self.pods = tuple(str(ip_network(cidr)) for cidr in of_family(facts.pod_cidrs, family))
        device = facts.pod_interface.replace("*", "+")
        self.pod_interface = f"-i {device} " if device else ""
        self.mark = f"0x{facts.masquerade_mark:x}/0x{facts.masquerade_mark:x}"
        self._services = tuple(str(ip_network(cidr)) for cidr in of_family(facts.service_cidrs, family))

    def match(self, kind: SetKind, way: str = "dst,dst") -> str:
        """The match of a set."""
        return f"-m set --match-set {set_name(kind, self.family)} {way}"

    @property
    def knows_pods(self) -> bool:
        """Whether pods are told from other clients."""
        return bool(self.pods or self.pod_interface)

    def _from_pods(self, what: str, target: str, protocol: str = "") -> Rules:
        """Rules for packets of pods."""
        sources = [self.pod_interface] if self.pod_interface else [f"-s {cidr} " for cidr in self.pods]
        return tuple(f"{source}{protocol}{comment(what)} {target}" for source in sources)

    def chains(self) -> dict[ChainKey, Rules]:
        """The chains with their rules, without those of single frontends."""
        return {**self._nat(), **self._filter(), **self._mangle()}

    def _nat(self) -> dict[ChainKey, Rules]:
        match, masquerade = self.match, "-j KUBE-MARK-MASQ"
        chains: dict[ChainKey, Rules] = {
            ("nat", IPVS_MARK): (),
            ("nat", "KUBE-SERVICES"): (
                f"{comment('load balancer addresses')} {match(names.LOAD_BALANCER)} -j KUBE-LOAD-BALANCER",
                *self._mark_outside(),
                f"{comment('external addresses')} {match(names.EXTERNAL_IP)} {masquerade}",
                f"{comment('external addresses, policy Local')} {match(names.EXTERNAL_IP_LOCAL)} "
                "-j KUBE-EXTERNAL-LOCAL",
                *(f"-d {host(a)} {comment('node ports')} -j KUBE-NODE-PORT" for a in self.node_ports),
            ),
            ("nat", "KUBE-LOAD-BALANCER"): (
                f"{comment('policy Local')} {match(names.LOAD_BALANCER_LOCAL)} -g KUBE-EXTERNAL-LOCAL",
                masquerade,
            ),
            ("nat", "KUBE-NODE-PORT"): tuple(
                f"-p {protocol} {comment(what)} {self._port(kinds[protocol])} {target}"
                for protocol in names.PROTOCOLS
                for what, kinds, target in (
                    ("node ports, policy Local", names.NODE_PORT_LOCAL, "-g KUBE-EXTERNAL-LOCAL"),
                    ("node ports", names.NODE_PORT, masquerade),
                )
            ),
            ("nat", "KUBE-EXTERNAL-LOCAL"): (
                *self._from_pods("pods reach every endpoint", "-g KUBE-LOCAL-INSIDE"),
                f"{comment('so does this node')} {_HERE} {masquerade}",
                f"{comment('so does this node')} {_HERE} -g KUBE-LOCAL-INSIDE",
                "-j KUBE-LOCAL-OUTSIDE",
            ),
            ("nat", "KUBE-MARK-MASQ"): (f"-j MARK --set-xmark {self.mark}",),
            ("nat", "KUBE-POSTROUTING"): (
                f"{comment('a pod that reaches itself')} {match(names.LOOP_BACK, 'dst,dst,src')} -j MASQUERADE",
                f"-m mark ! --mark {self.mark} -j RETURN",
                f"-j MARK --set-xmark 0x{self.facts.masquerade_mark:x}/0x0",
                f"{comment('kubernetes service traffic requiring SNAT')} -j MASQUERADE --random-fully",
            ),
        }
        if not self.facts.masquerade_all and len(self.pods) > 1:
            inside = tuple(f"-s {cidr} -j RETURN" for cidr in self.pods)
            chains["nat", "KUBE-MARK-OUTSIDE-PODS"] = (*inside, masquerade)
        return chains

    def _port(self, kind: SetKind) -> str:
        return self.match(kind, "dst" if kind.kind == "bitmap:port" else "dst,dst")

    def _mark_outside(self) -> Rules:
        """Masquerades clients of cluster addresses that are not pods.

        The node itself always: the source that it takes is the very address of the Service.
        """
        text, target = comment("cluster addresses"), "-j KUBE-MARK-MASQ"
        matched = self.match(names.CLUSTER_IP)
        if self.facts.masquerade_all:
            return (f"{text} {matched} {target}",)
        if self.pod_interface:
            return (f"! {self.pod_interface}{text} {matched} {target}",)
        if len(self.pods) == 1:
            return (f"! -s {self.pods[0]} {text} {matched} {target}",)
        if self.pods:
            return (f"{text} {matched} -j KUBE-MARK-OUTSIDE-PODS",)
        return (f"{text} {matched} {_HERE} {target}",)

    def _filter(self) -> dict[ChainKey, Rules]:
        match = self.match
        served = (
            names.CLUSTER_IP, names.EXTERNAL_IP, names.EXTERNAL_IP_LOCAL, names.LOAD_BALANCER,
            names.LOAD_BALANCER_LOCAL,
        )  # fmt: skip
        unreachable = "icmp-port-unreachable" if self.family == "ip" else "icmp6-port-unreachable"
        return {
            ("filter", "KUBE-FORWARD"): (
                f"{comment('kubernetes forwarding rules')} -m mark --mark {self.mark} -j ACCEPT",
                f"{comment('kubernetes forwarding conntrack rule')} -m conntrack --ctstate RELATED,ESTABLISHED "
                "-j ACCEPT",
            ),
            ("filter", "KUBE-NODE-PORT"): (
                f"-p tcp {comment('health check node ports')} {match(names.HEALTH_PORTS, 'dst')} -j ACCEPT",
            ),
            ("filter", "KUBE-IPVS-FILTER"): (
                f"{comment('no endpoints')} {match(names.REFUSED)} -j KUBE-IPVS-REFUSE",
                *(f"{match(kind)} -j RETURN" for kind in served),
                f"{comment('ports of no service')} {match(names.IPVS_IPS, 'dst')} -j KUBE-IPVS-REFUSE",
            ),
            ("filter", "KUBE-IPVS-INVALID"): self._from_pods(
                "out of their window", f"{_INVALID} -m tcp --tcp-flags SYN,RST NONE -j DROP", "-p tcp "
            ),
            ("filter", "KUBE-IPVS-REFUSE"): (
                "-p tcp -j REJECT --reject-with tcp-reset",
                *(f"-p {protocol} -j REJECT --reject-with {unreachable}" for protocol in ("udp", "sctp")),
            ),
        }

    def _mangle(self) -> dict[ChainKey, Rules]:
        match = self.match
        return {
            ("mangle", "KUBE-PROXY-FIREWALL"): (
                *(
                    f"-d {cidr} {comment('addresses of no service')} "
                    f"-m set ! --match-set {set_name(names.IPVS_IPS, self.family)} dst -j DROP"
                    for cidr in self._services
                ),
                f"{comment('no local endpoints')} {match(names.DROPPED)} -j DROP",
                f"{comment('no local endpoints')} {match(names.DROPPED_OUTSIDE)} -j KUBE-IPVS-DROP-OUTSIDE",
                f"{comment('source ranges')} {match(names.LOAD_BALANCER_FW)} -j KUBE-SOURCE-RANGES-FIREWALL",
            ),
            ("mangle", "KUBE-IPVS-DROP-OUTSIDE"): (
                *self._from_pods("pods reach every endpoint", "-j RETURN"),
                f"{comment('so does this node')} {_HERE} -j RETURN",
                "-j DROP",
            ),
            ("mangle", "KUBE-SOURCE-RANGES-FIREWALL"): (
                f"{match(names.SOURCE_CIDR, 'dst,dst,src')} -j RETURN",
                f"{match(names.SOURCE_IP, 'dst,dst,src')} -j RETURN",
                "-j DROP",
            ),
        }

    def jumps(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """(chain, rule) by table, for the kernel's own chains."""
        portals = comment("kubernetes service portals")
        access = comment("kubernetes ipvs access filter")
        guard = comment("kubernetes load balancer firewall")
        return {
            "nat": (
                ("PREROUTING", f"{portals} -j KUBE-SERVICES"),
                ("OUTPUT", f"{portals} -j KUBE-SERVICES"),
                ("POSTROUTING", f"{comment('kubernetes postrouting rules')} -j KUBE-POSTROUTING"),
            ),
            "filter": (
                ("INPUT", f"{_INVALID} -j KUBE-IPVS-INVALID"),
                ("INPUT", f"{_NEW} {access} -j KUBE-IPVS-FILTER"),
                ("INPUT", f"{comment('kubernetes health check rules')} -j KUBE-NODE-PORT"),
                ("FORWARD", f"{comment('kubernetes forwarding rules')} -j KUBE-FORWARD"),
            ),
            "mangle": (
                ("PREROUTING", f"{_NEW} {guard} -j KUBE-PROXY-FIREWALL"),
                ("OUTPUT", f"{_NEW} {guard} -j KUBE-PROXY-FIREWALL"),
            ),
        }
