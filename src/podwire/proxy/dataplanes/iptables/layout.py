"""The chains that do not depend on Services, and the jumps to them (pure).

Chains, comments and order are kube-proxy's, with four differences. Node ports answer on the node's addresses alone,
or in the ranges that are asked for. Where those have loopback, the kernel is told to route what comes from there
(``route_localnet``), and chain ``KUBE-LOOPBACK`` drops what others on the network send there then. What is refused is
refused by reset where it is TCP (the kernel holds back ICMP errors, not resets). Where the Service ranges are known,
a packet to one of them that no Service took is not routed on: an address that a Service has refuses (chain
``KUBE-CLUSTER-IPS``), one that none has drops; only such packets walk that chain. What is tracked already began while
the rules were away, and nothing translates it: it is dropped until the flow is forgotten. And the node itself is
refused by external addresses without endpoints, too.

What connection tracking calls invalid is dropped where it would be forwarded, as kube-proxy has it, and where a pod's
segment out of its window comes to the node itself (``KUBE-INVALID``): the node would answer the connection that it
masquerades by a reset. Where the kernel has named counters, these rules count.
"""

from ipaddress import collapse_addresses, ip_network

from podwire.proxy.dataplane import INVALID_DROPPED
from podwire.proxy.nodeports import LOOPBACKS, localhost_node_ports, without_loopback
from podwire.proxy.servicemap import NodeFacts, of_family
from podwire.proxy.xtables.matches import comment, host
from podwire.state.chain_marks import IPTABLES_MARK
from podwire.state.iptables import ChainKey, Rules

SERVICES = ("nat", "KUBE-SERVICES")
NODE_PORTS = ("nat", "KUBE-NODEPORTS")
REFUSED = ("filter", "KUBE-SERVICES")
EXTERNAL_REFUSED = ("filter", "KUBE-EXTERNAL-SERVICES")
FIREWALL = ("filter", "KUBE-PROXY-FIREWALL")
HEALTH_PORTS = ("filter", "KUBE-NODEPORTS")
CLUSTER_IPS = ("filter", "KUBE-CLUSTER-IPS")

LOOPBACK = "KUBE-LOOPBACK"

SHARED = (SERVICES, NODE_PORTS, REFUSED, EXTERNAL_REFUSED, FIREWALL, HEALTH_PORTS, CLUSTER_IPS)
"""Chains to which every Service adds rules of its own. Those rules exclude each other, so their order is free."""


_INVALID = "-m conntrack --ctstate INVALID"
_NEW = "-m conntrack --ctstate NEW"
_LAST = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"


class IptablesLayout:
    """The constant part for one family on one node; ``liberal``: connection tracking accepts what is out of window."""

    def __init__(self, family: str, facts: NodeFacts, *, liberal: bool = False, counted: bool = False) -> None:
        """``counted``: the kernel has the named counters."""
        self.family = family
        self.facts = facts
        self.liberal = liberal
        self._counted = counted
        self.pods = tuple(str(ip_network(cidr)) for cidr in of_family(facts.pod_cidrs, family))
        device = facts.pod_interface.replace("*", "+")
        self.pod_interface = f"-i {device} " if device else ""
        self.mark = f"0x{facts.masquerade_mark:x}/0x{facts.masquerade_mark:x}"
        self._services = tuple(str(ip_network(cidr)) for cidr in of_family(facts.service_cidrs, family))

    def refuse(self, protocol: str) -> str:
        """The target that refuses."""
        if protocol == "tcp":
            return "-j REJECT --reject-with tcp-reset"
        kind = "icmp-port-unreachable" if self.family == "ip" else "icmp6-port-unreachable"
        return f"-j REJECT --reject-with {kind}"

    def tail(self, key: ChainKey) -> Rules:
        """What stands in a shared chain behind the rules of Services."""
        if key == SERVICES:
            if self.facts.node_port_ranges:
                local = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
                return tuple(f"{where} {comment(_LAST)} {local}".strip() for where in self._node_port_ranges())
            addresses = of_family(self.facts.addresses, self.family)
            return tuple(f"-d {host(a)} {comment(_LAST)} -j KUBE-NODEPORTS" for a in addresses)
        if key == REFUSED:
            text = comment("not taken by any service")
            early = f"{comment('began without these rules')} -m conntrack --ctstatus CONFIRMED -j DROP"
            return tuple(
                f"-d {cidr} {rest}" for cidr in self._services for rest in (early, f"{text} -j KUBE-CLUSTER-IPS")
            )
        if key == CLUSTER_IPS:
            return (f"{comment('addresses of no service')} -j DROP",)
        return ()

    def count(self, name: str) -> str:
        """The match that counts into a named counter."""
        return f" -m nfacct --nfacct-name {name}" if self._counted else ""

    @property
    def loopback(self) -> bool:
        """Whether node ports answer on loopback."""
        return self.family == "ip" and localhost_node_ports(self.facts)

    def _node_port_ranges(self) -> list[str]:
        """Matches for the ranges, without loopback unless node ports answer there."""
        networks = [ip_network(text) for text in of_family(self.facts.node_port_ranges, self.family)]
        if self.loopback:
            return [f"-d {network}" if network.prefixlen else "" for network in collapse_addresses(networks)]  # type: ignore[type-var]
        if any(network.prefixlen == 0 for network in networks):
            return [f"! -d {LOOPBACKS[self.family]}"]
        return [f"-d {network}" for network in without_loopback(self.facts.node_port_ranges, self.family)]

    def chains(self) -> dict[ChainKey, Rules]:
        """The constant chains with their rules, without the shared ones."""
        chains: dict[ChainKey, Rules] = {
            ("nat", IPTABLES_MARK): (),
            ("nat", "KUBE-MARK-MASQ"): (f"-j MARK --set-xmark {self.mark}",),
            ("nat", "KUBE-POSTROUTING"): (
                f"-m mark ! --mark {self.mark} -j RETURN",
                f"-j MARK --set-xmark 0x{self.facts.masquerade_mark:x}/0x0",
                f"{comment('kubernetes service traffic requiring SNAT')} -j MASQUERADE --random-fully",
            ),
            ("filter", "KUBE-FORWARD"): self._forward(),
            ("filter", "KUBE-REFUSE"): (f"-p tcp {self.refuse('tcp')}", self.refuse("")),
        }
        if not self.liberal and (self.pods or self.pod_interface):
            sources = [self.pod_interface] if self.pod_interface else [f"-s {cidr} " for cidr in self.pods]
            tail = f"-p tcp {_INVALID} -m tcp --tcp-flags SYN,RST NONE{self.count(INVALID_DROPPED)} -j DROP"
            chains["filter", "KUBE-INVALID"] = tuple(f"{source}{tail}" for source in sources)
        if self.loopback:
            others = "! -s 127.0.0.0/8 -d 127.0.0.0/8"
            answers = "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT"
            text = comment("block incoming localnet connections")
            chains["filter", LOOPBACK] = (f"{others} {text} {answers} -j DROP",)
        if len(self.pods) > 1:
            inside = tuple(f"-s {cidr} -j RETURN" for cidr in self.pods)
            chains["nat", "KUBE-MARK-OUTSIDE"] = (*inside, "-j KUBE-MARK-MASQ")
        return chains

    def _forward(self) -> Rules:
        invalid = () if self.liberal else (f"{_INVALID}{self.count(INVALID_DROPPED)} -j DROP",)
        return (
            *invalid,
            f"{comment('kubernetes forwarding rules')} -m mark --mark {self.mark} -j ACCEPT",
            f"{comment('kubernetes forwarding conntrack rule')} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        )

    def jumps(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """(chain, rule) by table, for the kernel's own chains."""
        portals = comment("kubernetes service portals")
        visible = comment("kubernetes externally-visible service portals")
        guard = comment("kubernetes load balancer firewall")
        health = comment("kubernetes health check service ports")
        made = self.chains()
        first = []
        if ("filter", LOOPBACK) in made:
            first = [("INPUT", "-j KUBE-LOOPBACK"), ("OUTPUT", "-j KUBE-LOOPBACK")]
        if ("filter", "KUBE-INVALID") in made:
            first.append(("INPUT", f"{_INVALID} -j KUBE-INVALID"))
        return {
            "filter": (
                *first,
                ("INPUT", f"{_NEW} {guard} -j KUBE-PROXY-FIREWALL"),
                ("INPUT", f"{health} -j KUBE-NODEPORTS"),
                ("INPUT", f"{_NEW} {visible} -j KUBE-EXTERNAL-SERVICES"),
                ("FORWARD", f"{_NEW} {guard} -j KUBE-PROXY-FIREWALL"),
                ("FORWARD", f"{comment('kubernetes forwarding rules')} -j KUBE-FORWARD"),
                ("FORWARD", f"{_NEW} {portals} -j KUBE-SERVICES"),
                ("FORWARD", f"{_NEW} {visible} -j KUBE-EXTERNAL-SERVICES"),
                ("OUTPUT", f"{_NEW} {guard} -j KUBE-PROXY-FIREWALL"),
                ("OUTPUT", f"{_NEW} {portals} -j KUBE-SERVICES"),
                ("OUTPUT", f"{_NEW} {visible} -j KUBE-EXTERNAL-SERVICES"),
            ),
            "nat": (
                ("PREROUTING", f"{portals} -j KUBE-SERVICES"),
                ("OUTPUT", f"{portals} -j KUBE-SERVICES"),
                ("POSTROUTING", f"{comment('kubernetes postrouting rules')} -j KUBE-POSTROUTING"),
            ),
        }
