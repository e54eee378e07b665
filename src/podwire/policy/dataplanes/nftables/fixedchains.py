"""The fixed chains of the table of one family: base chains, and the checks of tunnels and bridges (pure).

:mod:`.layout` describes the table. These chains depend on the node alone, not on policies.
"""

from podwire.policy.dataplanes.nftables.layout import PRIORITY, SHARED, TableLayout
from podwire.policy.verdicts import BORROWED, NOBODY, TUNNEL, UNKNOWN
from podwire.state.nft import Chain


class FixedChains:
    """The chains of a table that always exist."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout

    def chains(self) -> tuple[Chain, ...]:
        """The base chains."""
        source = f"iifname . {self._layout.family} saddr"
        itself = (
            f"oifname . {self._layout.family} saddr @own accept",
            *((f"{self._layout.bridge_itself} accept",) if self._layout.bridges else ()),
        )
        return (
            self._base(
                "forward-egress",
                "forward",
                PRIORITY,
                *self._neighbours,
                f"{source} vmap @egress",
                *self._dropped("iifname @pod-devices", BORROWED),
                *self._dropped(f"{self._layout.family} saddr @pod-ranges", UNKNOWN),
            ),
            self._base(
                "forward-ingress",
                "forward",
                PRIORITY + 1,
                *self._neighbours,
                "oifname vmap @ingress",
                *self._dropped(f"{self._layout.family} daddr @pod-ranges", NOBODY),
                *self._to_encapsulation,
            ),
            self._base(
                "input",
                "input",
                PRIORITY,
                *self._to_encapsulation,
                f"{source} vmap @to-node",
                *self._dropped(f"iifname @pod-devices{self._no_link_local}", BORROWED),
            ),
            self._base("output-egress", "output", PRIORITY, *itself, f"{self._layout.family} saddr vmap @{SHARED}"),
            self._base(
                "output-ingress",
                "output",
                PRIORITY + 1,
                *itself,
                f"oifname @pod-devices {self._some_source} fib saddr type != local oifname vmap @ingress",
            ),
            *(self._encapsulation() if self._layout.guarded else ()),
            *((Chain(name="on-bridge", rules=self._layout.rules(*self._to_bridged)),) if self._layout.bridges else ()),
        )

    def _dropped(self, match: str, prefix: str, comment: str = "") -> tuple[str, ...]:
        """The rules that log and drop matching packets independently of policies."""
        drop = f"{match} counter drop{comment}"
        if not (self._layout.log.group and self._layout.log.drops):
            return (drop,)
        limit = f"limit rate {self._layout.log.rate}/second burst {self._layout.log.burst} packets"
        return f'{match} {limit} log prefix "{prefix}" group {self._layout.log.group}', drop

    @property
    def _to_bridged(self) -> tuple[str, ...]:
        """Rules for packets to a bridge; a packet to none of its pods is dropped, since it would reach all of them."""
        return f"{self._layout.family} daddr vmap @bridged", "counter drop"

    @property
    def _neighbours(self) -> tuple[str, ...]:
        """The rules that accept neighbour discovery between pods of one bridge; ARP does not pass this hook."""
        accept = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept"
        return tuple(f'oifname "{bridge}" {accept}' for bridge in self._layout.bridges if self._layout.family == "ip6")

    @property
    def _to_encapsulation(self) -> tuple[str, ...]:
        return ("meta l4proto != tcp jump encapsulation",) if self._layout.guarded else ()

    def _encapsulation(self) -> tuple[Chain, ...]:
        """The chains that drop packets from pods to tunnels: a node unpacks them and no policy sees the inner packet.

        Most datagrams go to a port outside the range from the first to the last tunnel port; comparing the range costs
        less than a set look-up. Packets to addresses of pods are left to the policies. Packets to the node itself have
        a local destination, even where the address is in a range of pods.
        """
        ports = sorted(set(self._layout.encapsulation_ports))
        span = f"{ports[0]}-{ports[-1]}" if len(ports) > 1 else str(ports[0])
        destination = f"{self._layout.family} daddr @cluster-ranges fib daddr type != local"
        look = self._layout.rules(
            f"udp dport != {span} return",
            f"udp dport {{ {', '.join(map(str, ports))} }} goto encapsulated",
            "meta l4proto { 4, 41, gre } goto encapsulated",
        )
        senders = (
            "iifname @pod-devices",
            *(f'iifname "{bridge}"' for bridge in self._layout.bridges),
            f"{self._layout.family} saddr @cluster-ranges",
        )
        judge = self._layout.rules(
            f"{destination} return",
            "ct direction reply ct state established return",
            *(
                text
                for sender in senders
                for text in self._dropped(sender, TUNNEL, ' comment "policy.encapsulation: drop"')
            ),
        )
        return Chain(name="encapsulation", rules=look), Chain(name="encapsulated", rules=judge)

    @property
    def _no_link_local(self) -> str:
        """The match that exempts link-local sources: they stay on the pod's link, as neighbour discovery does."""
        return " ip6 saddr != fe80::/10" if self._layout.family == "ip6" else ""

    @property
    def _some_source(self) -> str:
        """The match of packets with a source; the kernel reports multicast listeners of a new link without one."""
        return f"{self._layout.family} saddr != {'::' if self._layout.family == 'ip6' else '0.0.0.0'}"

    def _base(self, name: str, hook: str, priority: int, *texts: str) -> Chain:
        return Chain(name=name, type="filter", hook=hook, priority=priority, rules=self._layout.rules(*texts))
