"""The chains that do not depend on Services, and the jumps to them (pure).

A packet to an address of a Service is delivered to this node, and IPVS takes it at the end of ``INPUT``. A packet of
the node's own processes is taken in ``OUTPUT``, before table ``filter``. So packets are dropped in table ``mangle``,
which comes first. Packets are refused in ``filter`` ``INPUT``: a packet of the node also passes there when no virtual
server took it. Table ``nat`` marks packets for masquerade.

Rules match frontends by sets, so the number of rules does not grow with the Services. Exception: frontends with
``externalTrafficPolicy: Local``. Their clients outside the cluster get endpoints of this node, all other clients get
endpoints of any node, but a virtual server has only one list of endpoints. So there is one rule for each such frontend,
which translates one kind of client to the cluster address, whose virtual server has the other list.

Connection tracking does not translate a pod's segment that is outside the window. When the client is masqueraded, such
a segment reaches the node itself, and the node would answer with a reset and end the connection; so such segments are
dropped.
"""

from podwire.proxy.dataplanes.ipvs import names
from podwire.proxy.dataplanes.ipvs.names import SetKind, set_name
from podwire.proxy.servicemap import NodeFacts, of_family
from podwire.proxy.xtables.layout import XtablesLayout
from podwire.proxy.xtables.matches import comment, host
from podwire.state.chain_marks import IPVS_MARK
from podwire.state.iptables import ChainKey, Rules

INSIDE = ("nat", "KUBE-LOCAL-INSIDE")
OUTSIDE = ("nat", "KUBE-LOCAL-OUTSIDE")

_NEW = "-m conntrack --ctstate NEW"
_INVALID = "-m conntrack --ctstate INVALID"
_FROM_NODE = "-m addrtype --src-type LOCAL"


class IpvsLayout(XtablesLayout):
    """The constant chains for one family on one node; node ports answer on the addresses ``node_ports``."""

    def __init__(self, family: str, facts: NodeFacts, node_ports: tuple[str, ...]) -> None:
        super().__init__(family, facts)
        self.node_ports = of_family(node_ports, family)

    def match(self, kind: SetKind, fields: str = "dst,dst") -> str:
        """The match of a set by these fields of a packet."""
        return f"-m set --match-set {set_name(kind, self.family)} {fields}"

    def _from_pods(self, text: str, target: str, protocol: str = "") -> Rules:
        """Rules for packets from pods, with a comment."""
        return tuple(f"{source}{protocol}{comment(text)} {target}" for source in self.pod_sources())

    def chains(self) -> dict[ChainKey, Rules]:
        """The chains with their rules, without the rules of single frontends."""
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
                f"-p {protocol} {comment(text)} {self._port(kinds[protocol])} {target}"
                for protocol in names.PROTOCOLS
                for text, kinds, target in (
                    ("node ports, policy Local", names.NODE_PORT_LOCAL, "-g KUBE-EXTERNAL-LOCAL"),
                    ("node ports", names.NODE_PORT, masquerade),
                )
            ),
            ("nat", "KUBE-EXTERNAL-LOCAL"): (
                *self._from_pods("pods reach every endpoint", "-g KUBE-LOCAL-INSIDE"),
                f"{comment('so does this node')} {_FROM_NODE} {masquerade}",
                f"{comment('so does this node')} {_FROM_NODE} -g KUBE-LOCAL-INSIDE",
                "-j KUBE-LOCAL-OUTSIDE",
            ),
            ("nat", "KUBE-MARK-MASQ"): (f"-j MARK --set-xmark {self.mark}",),
            ("nat", "KUBE-POSTROUTING"): (
                f"{comment('a pod that reaches itself')} {match(names.LOOP_BACK, 'dst,dst,src')} -j MASQUERADE",
                *self.masquerade_marked(),
            ),
        }
        if not self.facts.masquerade_all and len(self.pods) > 1:
            chains["nat", "KUBE-MARK-OUTSIDE-PODS"] = self.mark_outside_pods()
        return chains

    def _port(self, kind: SetKind) -> str:
        return self.match(kind, "dst" if kind.kind == "bitmap:port" else "dst,dst")

    def _mark_outside(self) -> Rules:
        """The rule that marks clients of cluster addresses that are not pods for masquerade.

        The node itself is always masqueraded: its source address is the address of the Service.
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
        return (f"{text} {matched} {_FROM_NODE} {target}",)

    def _filter(self) -> dict[ChainKey, Rules]:
        match = self.match
        served = (
            names.CLUSTER_IP, names.EXTERNAL_IP, names.EXTERNAL_IP_LOCAL, names.LOAD_BALANCER,
            names.LOAD_BALANCER_LOCAL,
        )  # fmt: skip
        unreachable = "icmp-port-unreachable" if self.family == "ip" else "icmp6-port-unreachable"
        return {
            ("filter", "KUBE-FORWARD"): self.forward_translated(),
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
                    for cidr in self.service_ranges
                ),
                f"{comment('no local endpoints')} {match(names.DROPPED)} -j DROP",
                f"{comment('no local endpoints')} {match(names.DROPPED_OUTSIDE)} -j KUBE-IPVS-DROP-OUTSIDE",
                f"{comment('source ranges')} {match(names.LOAD_BALANCER_FW)} -j KUBE-SOURCE-RANGES-FIREWALL",
            ),
            ("mangle", "KUBE-IPVS-DROP-OUTSIDE"): (
                *self._from_pods("pods reach every endpoint", "-j RETURN"),
                f"{comment('so does this node')} {_FROM_NODE} -j RETURN",
                "-j DROP",
            ),
            ("mangle", "KUBE-SOURCE-RANGES-FIREWALL"): (
                f"{match(names.SOURCE_CIDR, 'dst,dst,src')} -j RETURN",
                f"{match(names.SOURCE_IP, 'dst,dst,src')} -j RETURN",
                "-j DROP",
            ),
        }

    def jumps(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """The jumps from the kernel's own chains, by table: chain and rule."""
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
