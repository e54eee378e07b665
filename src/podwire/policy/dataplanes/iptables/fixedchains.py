"""The fixed chains of one family: the way of a packet to the chain of its profile, and the check of tunnels (pure).

:mod:`.layout` describes all chains. These chains depend on the node alone, not on policies.
"""

from collections.abc import Iterable, Iterator

from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.layout import AWAY, ChainLayout, Chains, in_set, maps
from podwire.policy.verdicts import BORROWED, NOBODY, TUNNEL, UNKNOWN
from podwire.state.iptables import Rules

_PORTS_IN_A_MATCH = 15
_ENCAPSULATED = "policy.encapsulation: drop"


class FixedChains:
    """The chains of one family that always exist."""

    def __init__(self, layout: ChainLayout) -> None:
        self._layout = layout

    def jumps(self) -> tuple[tuple[str, str], ...]:
        """The jumps from the kernel's built-in chains: pairs of chain and rule."""
        text = names.comment("podwire: NetworkPolicy")
        return (
            ("FORWARD", f"{text} -j {names.FORWARD}"),
            ("INPUT", f"{text} -j {names.INPUT}"),
            ("POSTROUTING", f"{text} -j {names.SENT}"),
        )

    def chains(self, device_sets: int) -> Chains:
        """The chains that always exist; ``device_sets`` is the number of sets of devices."""
        devices = tuple(self._layout.set_name(f"devices-{number}") for number in range(device_sets))
        chains = {
            names.FORWARD: self._forward(),
            names.INPUT: self._input(),
            names.SENT: self._sent(devices),
            names.UNMARK: (self._layout.clear,),
            names.STRANGER: (
                *self._drops((in_set(name, "src,src") for name in devices), BORROWED),
                *self._drops((in_set(self._layout.set_name("pod-ranges"), "src"),), UNKNOWN),
            ),
            names.INTRUDER: (
                *self._drops((f"{self._no_link_local}{in_set(name, 'src,src')}" for name in devices), BORROWED),
            ),
            names.NOBODY: (
                *(maps(name, "dst,dst") for name in devices),
                f"{self._layout.marked} -j RETURN",
                f"-j {names.NOWHERE}",
            ),
            names.NOWHERE: (*self._drops((in_set(self._layout.set_name("pod-ranges"), "dst"),), NOBODY),),
        }
        return chains | (self._encapsulation(devices) if self._layout.guarded else {})

    @property
    def _unmarked(self) -> str:
        return f"-m mark --mark {self._layout.marks.within(0)}"

    def _away(self, direction: str) -> str:
        """The match of packets with an address of this node's pods on a link that does not belong to a pod."""
        return (
            f"-m mark --mark {self._layout.marks.within(AWAY)} {in_set(self._layout.set_name('pod-ranges'), direction)}"
        )

    @property
    def _to_check(self) -> str:
        """The match of packets that the chain of a profile or of a bridge has to check."""
        return f"-m mark ! --mark {self._layout.marks.within(0, 2)}"

    def _drops(self, matches: Iterable[str], prefix: str, comment: str = "") -> Iterator[str]:
        """The rules that log and drop matching packets independently of policies."""
        for match in matches:
            if self._layout.log.group and self._layout.log.drops:
                yield f"{match} {self._layout.log_limit} {self._layout.log_target(prefix)}"
            yield f"{match}{comment} -j DROP"

    @property
    def _checked_number(self) -> int:
        """The number of checked packets between FORWARD and POSTROUTING: only the highest bit."""
        return (self._layout.marks.last + 1) >> 1

    def _forward(self) -> Rules:
        return (
            *self._neighbours(),
            self._layout.clear,
            maps(self._layout.set_name("egress"), "src,src"),
            f"{self._unmarked} -j {names.STRANGER}",
            f"{self._away('src')} -j {names.STRANGER}",
            f"{self._to_check} -j {names.OUT}",
            self._layout.clear,
            maps(self._layout.set_name("ingress"), "dst,dst"),
            f"{self._unmarked} -j {names.NOBODY}",
            f"{self._away('dst')} -j {names.NOWHERE}",
            *self._to_encapsulation(f"-m mark --mark {self._layout.marks.either(AWAY)} "),
            f"{self._to_check} -j {names.IN}",
            self._layout.marks.sets(self._checked_number),
        )

    def _neighbours(self) -> Iterator[str]:
        """The rules that accept neighbour discovery between pods of one bridge; ARP does not pass these chains."""
        if self._layout.family == "ip6":
            for bridge in self._layout.bridges:
                for kind in (135, 136):
                    yield f"-o {bridge} -p ipv6-icmp -m icmp6 --icmpv6-type {kind} -j RETURN"

    def _input(self) -> Rules:
        to_node = in_set(self._layout.set_name("to-node"), "src,src")
        return (
            *self._to_encapsulation(),
            self._layout.clear,
            maps(self._layout.set_name("egress"), "src,src"),
            f"{self._unmarked} -j {names.INTRUDER}",
            f"{to_node} {in_set(self._layout.set_name('node-addresses'), 'dst')} -j {names.OUT}",
            self._layout.clear,
        )

    def _sent(self, devices: tuple[str, ...]) -> Rules:
        checked_mark, _ = self._layout.marks.of(self._checked_number)
        link_local = (
            ("-s fe80::/10 -j RETURN", "-s ::/128 -j RETURN")
            if self._layout.family == "ip6"
            else ("-s 0.0.0.0/32 -j RETURN",)
        )
        return (
            f"-m mark --mark 0x{checked_mark:x}/0x{checked_mark:x} -g {names.UNMARK}",
            *self._neighbours(),
            *link_local,
            "-m addrtype --src-type LOCAL -j RETURN",
            f"{in_set(self._layout.set_name('own'), 'src,dst')} -j RETURN",
            *(f"{match} -j RETURN" for match in self._layout.bridge_itself),
            self._layout.clear,
            maps(self._layout.set_name("sources"), "src"),
            f"{self._to_check} -j {names.OUT}",
            self._layout.clear,
            *(maps(name, "dst,dst") for name in devices),
            maps(self._layout.set_name("ingress"), "dst,dst"),
            f"{self._to_check} -j {names.IN}",
            self._layout.clear,
        )

    @property
    def _no_link_local(self) -> str:
        """The match that exempts link-local sources: they stay on the pod's link, as neighbour discovery does."""
        return "! -s fe80::/10 " if self._layout.family == "ip6" else ""

    def _to_encapsulation(self, match: str = "") -> Rules:
        """The jump to the check of tunnels, for packets whose destination is no pod of this node."""
        return (f"! -p tcp {match}-j {names.ENCAPSULATION}",) if self._layout.guarded else ()

    def _encapsulation(self, devices: tuple[str, ...]) -> Chains:
        """The chains that drop packets from pods to tunnels of nodes, as in the data plane ``nftables``."""
        ports = sorted(set(self._layout.encapsulation_ports))
        groups = (ports[at : at + _PORTS_IN_A_MATCH] for at in range(0, len(ports), _PORTS_IN_A_MATCH))
        goto_drop = f"-g {names.ENCAPSULATED}"
        pods = self._layout.set_name("cluster-ranges")
        senders = (
            *(in_set(name, "src,src") for name in devices),
            *(f"-i {name}" for name in self._layout.bridges),
            in_set(pods, "src"),
        )
        return {
            names.ENCAPSULATION: (
                *(f"-p udp -m multiport --dports {','.join(map(str, group))} {goto_drop}" for group in groups),
                *(f"-p {number} {goto_drop}" for number in (4, 41, 47)),
            ),
            names.ENCAPSULATED: (
                f"{in_set(pods, 'dst')} -m addrtype ! --dst-type LOCAL -j RETURN",
                "-m conntrack --ctstate ESTABLISHED --ctdir REPLY -j RETURN",
                *self._drops(senders, TUNNEL, f" {names.comment(_ENCAPSULATED)}"),
            ),
        }

    def root(self) -> Rules:
        """The first rules of the chains OUT and IN, before their branches to profiles."""
        known = "-m conntrack --ctstate ESTABLISHED" + ("" if self._layout.keep else " --ctdir REPLY")
        return f"{known} -j RETURN", "-m conntrack --ctstate INVALID -j DROP"
