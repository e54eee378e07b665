"""The constant part: chains that every node has, and the jumps to them (pure).

Chains, comments and order are kube-proxy's, with four differences. Node ports answer on the node's addresses alone,
or in the ranges that are asked for, never on loopback (which would need ``route_localnet``). What is refused is
refused by reset where it is TCP (the kernel holds back ICMP errors, not resets). Where the Service ranges are known,
a packet to one of them that no Service took is not routed on: an address that a Service has refuses (chain
``KUBE-CLUSTER-IPS``), one that none has drops; only such packets walk that chain. And the node itself is refused by
external addresses without endpoints, too.
"""

from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

from podwire.proxy.dataplanes.iptables.names import MARK
from podwire.proxy.servicemap import NodeFacts, of_family
from podwire.proxy.xtables.ownership import ChainKey, comment, host
from podwire.state.iptables import Rules

SERVICES = ("nat", "KUBE-SERVICES")
NODE_PORTS = ("nat", "KUBE-NODEPORTS")
REFUSED = ("filter", "KUBE-SERVICES")
EXTERNAL_REFUSED = ("filter", "KUBE-EXTERNAL-SERVICES")
FIREWALL = ("filter", "KUBE-PROXY-FIREWALL")
HEALTH_PORTS = ("filter", "KUBE-NODEPORTS")
CLUSTER_IPS = ("filter", "KUBE-CLUSTER-IPS")

SHARED = (SERVICES, NODE_PORTS, REFUSED, EXTERNAL_REFUSED, FIREWALL, HEALTH_PORTS, CLUSTER_IPS)
"""Chains to which every Service adds rules of its own. Those rules exclude each other, so their order is free."""

Network = IPv4Network | IPv6Network

_LOOPBACK: dict[str, Network] = {"ip": ip_network("127.0.0.0/8"), "ip6": ip_network("::1/128")}
_NEW = "-m conntrack --ctstate NEW"
_LAST = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"


class Layout:
    """The constant part for one family on one node; ``liberal``: connection tracking accepts what is out of window."""

    def __init__(self, family: str, facts: NodeFacts, *, liberal: bool = False) -> None:
        self.family = family
        self.facts = facts
        self.liberal = liberal
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
                return tuple(f"{where} {comment(_LAST)} {local}" for where in self._node_port_ranges())
            addresses = of_family(self.facts.addresses, self.family)
            return tuple(f"-d {host(a)} {comment(_LAST)} -j KUBE-NODEPORTS" for a in addresses)
        if key == REFUSED:
            text = comment("not taken by any service")
            return tuple(f"-d {cidr} {text} -j KUBE-CLUSTER-IPS" for cidr in self._services)
        if key == CLUSTER_IPS:
            return (f"{comment('addresses of no service')} -j DROP",)
        return ()

    def _node_port_ranges(self) -> list[str]:
        """Matches for the ranges without loopback."""
        loopback = _LOOPBACK[self.family]
        networks = [ip_network(text) for text in of_family(self.facts.node_port_ranges, self.family)]
        if any(network.prefixlen == 0 for network in networks):
            return [f"! -d {loopback}"]
        rest: list[Network] = []
        for network in networks:
            if loopback.subnet_of(network):  # type: ignore[arg-type]
                rest.extend(network.address_exclude(loopback))  # type: ignore[arg-type]
            elif not network.subnet_of(loopback):  # type: ignore[arg-type]
                rest.append(network)
        return [f"-d {network}" for network in collapse_addresses(rest)]  # type: ignore[type-var]

    def chains(self) -> dict[ChainKey, Rules]:
        """The constant chains with their rules, without the shared ones."""
        chains: dict[ChainKey, Rules] = {
            ("nat", MARK): (),
            ("nat", "KUBE-MARK-MASQ"): (f"-j MARK --set-xmark {self.mark}",),
            ("nat", "KUBE-POSTROUTING"): (
                f"-m mark ! --mark {self.mark} -j RETURN",
                f"-j MARK --set-xmark 0x{self.facts.masquerade_mark:x}/0x0",
                f"{comment('kubernetes service traffic requiring SNAT')} -j MASQUERADE --random-fully",
            ),
            ("filter", "KUBE-FORWARD"): self._forward(),
            ("filter", "KUBE-REFUSE"): (f"-p tcp {self.refuse('tcp')}", self.refuse("")),
        }
        if len(self.pods) > 1:
            inside = tuple(f"-s {cidr} -j RETURN" for cidr in self.pods)
            chains["nat", "KUBE-MARK-OUTSIDE"] = (*inside, "-j KUBE-MARK-MASQ")
        return chains

    def _forward(self) -> Rules:
        invalid = () if self.liberal else ("-m conntrack --ctstate INVALID -j DROP",)
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
        return {
            "filter": (
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
