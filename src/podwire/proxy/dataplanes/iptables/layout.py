"""The chains that do not depend on Services, and the jumps to them (pure).

Chains, comments and order are those of kube-proxy, with five differences:

1. Node ports answer only on the node's addresses, or in the configured ranges. When the ranges contain loopback, the
   kernel routes packets from loopback (``route_localnet``), and chain ``KUBE-LOOPBACK`` drops packets that other hosts
   send to loopback addresses.
2. TCP connections are refused with a reset, because the kernel limits the rate of ICMP errors, but not of resets.
3. When the Service ranges are known, a packet to a Service range that matches no frontend is not routed. It is refused
   when a Service has the address (chain ``KUBE-CLUSTER-IPS``), and dropped otherwise; only such packets pass this
   chain. A packet of a tracked flow is dropped too: the flow began while rules were missing and is not translated, so
   the packets are dropped until the flow is deleted.
4. External addresses without endpoints refuse connections of the node itself, too.
5. A comment comes after the match of a port: rules that are put back have their comment last
   (:mod:`podwire.kernel.iptables_comments`).

Packets that connection tracking calls invalid are dropped where they would be forwarded, as kube-proxy does. They are
also dropped when a pod sends a segment outside the window to the node itself (``KUBE-INVALID``): the node would answer
with a reset and end the connection that it masquerades. When the kernel has named counters, these rules count.
"""

from ipaddress import collapse_addresses, ip_network

from podwire.proxy.dataplane import INVALID_DROPPED
from podwire.proxy.nodeports import LOOPBACKS, localhost_node_ports, without_loopback
from podwire.proxy.servicemap import NodeFacts, of_family
from podwire.proxy.xtables.layout import XtablesLayout
from podwire.proxy.xtables.matches import comment, host
from podwire.state.chain_marks import IPTABLES_MARK, PROXY_IPTABLES
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
"""Chains to which every Service adds rules. At most one of these rules matches a packet, so their order is free.

Those with many rules are divided (:mod:`podwire.proxy.dataplanes.iptables.shared`).
"""

_INVALID = "-m conntrack --ctstate INVALID"
_NEW = "-m conntrack --ctstate NEW"
_LAST = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"
_NO_SERVICE = "addresses of no service"
_LAST_RULES: dict[ChainKey, str | None] = {SERVICES: _LAST, CLUSTER_IPS: _NO_SERVICE, REFUSED: None}


class IptablesLayout(XtablesLayout):
    """The constant chains for one family on one node."""

    def __init__(self, family: str, facts: NodeFacts, *, liberal: bool = False, counted: bool = False) -> None:
        """``liberal``: connection tracking accepts segments outside the window. ``counted``: named counters exist."""
        super().__init__(family, facts)
        self.liberal = liberal
        self._counted = counted

    def refuse(self, protocol: str) -> str:
        """The target that refuses packets of a protocol."""
        if protocol == "tcp":
            return "-j REJECT --reject-with tcp-reset"
        kind = "icmp-port-unreachable" if self.family == "ip" else "icmp6-port-unreachable"
        return f"-j REJECT --reject-with {kind}"

    def tail(self, key: ChainKey) -> Rules:
        """The rules at the end of a shared chain, after the rules of Services."""
        if key == SERVICES:
            if self.facts.node_port_ranges:
                local = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
                return tuple(f"{match} {comment(_LAST)} {local}".strip() for match in self._node_port_ranges())
            addresses = of_family(self.facts.addresses, self.family)
            return tuple(f"-d {host(a)} {comment(_LAST)} -j KUBE-NODEPORTS" for a in addresses)
        if key == REFUSED:
            text = comment("not taken by any service")
            untranslated = f"{comment('began without these rules')} -m conntrack --ctstatus CONFIRMED -j DROP"
            return tuple(
                f"-d {cidr} {rule}"
                for cidr in self.service_ranges
                for rule in (untranslated, f"{text} -j KUBE-CLUSTER-IPS")
            )
        if key == CLUSTER_IPS:
            return (f"{comment(_NO_SERVICE)} -j DROP",)
        return ()

    def last(self, table: str, chain: str) -> str | None:
        """A text that the rules of :meth:`tail` have, empty without any; None where the order of rules counts."""
        if not PROXY_IPTABLES.is_free((table, chain)):
            return None
        return _LAST_RULES.get((table, chain), "")

    def count(self, name: str) -> str:
        """The match that counts packets in a named counter; empty when the kernel has no named counters."""
        return f" -m nfacct --nfacct-name {name}" if self._counted else ""

    @property
    def loopback(self) -> bool:
        """Whether node ports answer on loopback."""
        return self.family == "ip" and localhost_node_ports(self.facts)

    def _node_port_ranges(self) -> list[str]:
        """Matches of the node port ranges, without loopback unless node ports answer on loopback."""
        networks = [ip_network(text) for text in of_family(self.facts.node_port_ranges, self.family)]
        if self.loopback:
            return [f"-d {network}" if network.prefixlen else "" for network in collapse_addresses(networks)]  # type: ignore[type-var]
        if any(network.prefixlen == 0 for network in networks):
            return [f"! -d {LOOPBACKS[self.family]}"]
        return [f"-d {network}" for network in without_loopback(self.facts.node_port_ranges, self.family)]

    def chains(self) -> dict[ChainKey, Rules]:
        """The constant chains with their rules, without the shared chains."""
        chains: dict[ChainKey, Rules] = {
            ("nat", IPTABLES_MARK): (),
            ("nat", "KUBE-MARK-MASQ"): (f"-j MARK --set-xmark {self.mark}",),
            ("nat", "KUBE-POSTROUTING"): self.masquerade_marked(),
            ("filter", "KUBE-FORWARD"): self._forward(),
            ("filter", "KUBE-REFUSE"): (f"-p tcp {self.refuse('tcp')}", self.refuse("")),
        }
        if not self.liberal and (self.pods or self.pod_interface):
            segment = f"-p tcp {_INVALID} -m tcp --tcp-flags SYN,RST NONE{self.count(INVALID_DROPPED)} -j DROP"
            chains["filter", "KUBE-INVALID"] = tuple(f"{source}{segment}" for source in self.pod_sources())
        if self.loopback:
            from_network = "! -s 127.0.0.0/8 -d 127.0.0.0/8"
            not_reply = "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT"
            text = comment("block incoming localnet connections")
            chains["filter", LOOPBACK] = (f"{from_network} {text} {not_reply} -j DROP",)
        if len(self.pods) > 1:
            chains["nat", "KUBE-MARK-OUTSIDE"] = self.mark_outside_pods()
        return chains

    def _forward(self) -> Rules:
        invalid = () if self.liberal else (f"{_INVALID}{self.count(INVALID_DROPPED)} -j DROP",)
        return (*invalid, *self.forward_translated())

    def jumps(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """The jumps from the kernel's own chains, by table: chain and rule."""
        portals = comment("kubernetes service portals")
        visible = comment("kubernetes externally-visible service portals")
        guard = comment("kubernetes load balancer firewall")
        health = comment("kubernetes health check service ports")
        constant = self.chains()
        first = []
        if ("filter", LOOPBACK) in constant:
            first = [("INPUT", "-j KUBE-LOOPBACK"), ("OUTPUT", "-j KUBE-LOOPBACK")]
        if ("filter", "KUBE-INVALID") in constant:
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
