"""Matches and rules that the modes ``iptables`` and ``ipvs`` have in common, for one family on one node (pure)."""

from ipaddress import ip_network

from podwire.proxy.servicemap import NodeFacts, of_family
from podwire.proxy.xtables.matches import comment
from podwire.state.iptables import Rules


class XtablesLayout:
    """The facts of one family on one node as parts of iptables rules."""

    def __init__(self, family: str, facts: NodeFacts) -> None:
        self.family = family
        self.facts = facts
        self.pods = tuple(str(ip_network(cidr)) for cidr in of_family(facts.pod_cidrs, family))
        device = facts.pod_interface.replace("*", "+")
        self.pod_interface = f"-i {device} " if device else ""
        self.mark = f"0x{facts.masquerade_mark:x}/0x{facts.masquerade_mark:x}"
        """The bit that asks for masquerade, as value and mask."""
        self.service_ranges = tuple(str(ip_network(cidr)) for cidr in of_family(facts.service_cidrs, family))

    def pod_sources(self) -> tuple[str, ...]:
        """Matches of packets from pods, one rule each; empty when pods are not distinguished from other sources."""
        return (self.pod_interface,) if self.pod_interface else tuple(f"-s {cidr} " for cidr in self.pods)

    def mark_outside_pods(self) -> Rules:
        """A chain that marks packets from sources outside the pod ranges for masquerade."""
        return (*(f"-s {cidr} -j RETURN" for cidr in self.pods), "-j KUBE-MARK-MASQ")

    def masquerade_marked(self) -> Rules:
        """The rules of ``KUBE-POSTROUTING`` that masquerade marked packets and remove the mark."""
        return (
            f"-m mark ! --mark {self.mark} -j RETURN",
            f"-j MARK --set-xmark 0x{self.facts.masquerade_mark:x}/0x0",
            f"{comment('kubernetes service traffic requiring SNAT')} -j MASQUERADE --random-fully",
        )

    def forward_translated(self) -> Rules:
        """The rules of ``KUBE-FORWARD`` that accept translated packets and replies."""
        return (
            f"{comment('kubernetes forwarding rules')} -m mark --mark {self.mark} -j ACCEPT",
            f"{comment('kubernetes forwarding conntrack rule')} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        )
