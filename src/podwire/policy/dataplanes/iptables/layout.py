"""The rules and sets of one family: the fixed ones, and those for profiles, tables of ports and rules (pure).

The cost of a packet between two pods hardly depends on the number of policies::

    set egress, ingress      device and address -> number of the profile; numbers below 4: no policy applies
    PODWIRE-OUT, -IN         replies pass; number -> goto the profile
    PODWIRE-OUT-p, -IN-p     set: peer's address -> number of its table; else networks, else the default
    PODWIRE-TABLES           number -> goto the table
    PODWIRE-PORTS-t          protocol and port -> goto the rule
    PODWIRE-RULE-r           counts; logs; returns or drops

The target SET gives a packet the mark from its set element. SET works only in the table ``mangle``, so all rules are in
that table. It comes before the filter rules of other programs, after destination NAT and before source NAT; packets
that pass continue to those filter rules. The rules clear podwire's bits of the mark at the end. One bit stays from
FORWARD to POSTROUTING; it separates packets that were checked from packets that the node itself sends. The latter are
checked in POSTROUTING, because only there their destination is translated. A packet that lost the bit in between is
checked twice, with the same result.

Packets in the reply direction of a known connection and packets related to a connection pass without a look-up; with
``keep``, both directions pass. Only the comments of the chains of profiles and rules change: another meaning makes
another chain. Default deny in doubt, as in the data plane ``nftables``.

If no element matches the device and address of a packet, the device alone is looked up. A set accepts 64 devices for
one network, so each set ``devices-N`` has 64 devices. Links with the node's own address do not belong to pods:
``uplinks`` have set elements for that, which makes traffic from and to the outside faster.
"""

from collections.abc import Iterable

import msgspec

from podwire.policy.dataplane import FamilyFacts
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.numbers import MarkBits
from podwire.policy.profilenames import ProfileName
from podwire.state.ipset import PLAIN, Family, IpSet, IpSetElement
from podwire.state.iptables import Rules
from podwire.trace.bytecode import same_ends

OPEN = 1
"""The number for pods that no policy selects."""
AWAY = 2
"""The number for links that do not belong to a pod, such as links to other machines."""
SHARED = 4
"""The number for a bridge as a device: a packet to none of its pods is dropped, since the number has no chain."""
FIRST = 5
"""The first number of profiles; packets with a number from 4 on are checked."""
PER_SET = 64
"""How many devices the kernel accepts for one network in a set of networks and devices."""
MAXELEM = 1 << 22
_USUAL_BURST = 5
"""The default burst of xt_limit; iptables-save does not print it."""
_TICKS = 10_000
"""Ticks of xt_limit in a second; the interval of a rate is a whole number of ticks."""

Chains = dict[str, Rules]


class ChainLayout(FamilyFacts, frozen=True, kw_only=True):
    """One family on one node."""

    marks: MarkBits
    uplinks: tuple[str, ...] = ()
    """Devices that carry the node's own addresses."""

    def set_name(self, word: str) -> str:
        """The full name of a set."""
        return names.set_prefix(self.family) + word

    def devices_name(self, number: int) -> str:
        """The name of the set for the device with a number."""
        return self.set_name(f"devices-{number // PER_SET}")

    def declare(self, word: str, kind: str, elements: Iterable[str] = (), *, marks: bool = False) -> IpSet:
        """A declared set with elements that have no marks; ``marks``: whether its elements may have marks."""
        family: Family = "inet6" if self.family == "ip6" else "inet"
        return IpSet(
            name=self.set_name(word),
            kind=kind,
            family=family,
            hashsize=64,
            maxelem=MAXELEM,
            marks=marks,
            elements=dict.fromkeys(elements, PLAIN),
        )

    def sets(self) -> tuple[IpSet, ...]:
        """The sets that always exist; sets that describe the node have their elements."""
        uplinks = {f"{self._anywhere},{name}": self.numbered(AWAY) for name in self.uplinks}
        egress = self.declare("egress", "hash:net,iface", marks=True)
        ingress = self.declare("ingress", "hash:net,iface", marks=True)
        return (
            msgspec.structs.replace(egress, elements=uplinks),
            msgspec.structs.replace(ingress, elements=uplinks),
            self.declare("sources", "hash:ip", marks=True),
            self.declare("to-node", "hash:net,iface"),
            self.declare("own", "hash:net,iface"),
            *self.node_sets(),
        )

    def node_sets(self) -> tuple[IpSet, ...]:
        """The sets of :meth:`sets` that depend only on ranges and addresses."""
        return (
            self.declare("pod-ranges", "hash:net", self.pod_ranges),
            self.declare("node-addresses", "hash:ip", self.node_addresses),
            *((self.declare("cluster-ranges", "hash:net", self.cluster_ranges),) if self.guarded else ()),
        )

    def device_set(self, number: int) -> IpSet:
        """The set for the device with a number."""
        return self.declare(f"devices-{number // PER_SET}", "hash:net,iface", marks=True)

    def of_device(self, device: str) -> str:
        """The set element of a device with any address."""
        return f"{self._anywhere},{device}"

    @property
    def _anywhere(self) -> str:
        return "::/0" if self.family == "ip6" else "0.0.0.0/0"

    def numbered(self, number: int) -> IpSetElement:
        """A set element that gives packets a number."""
        return IpSetElement(mark=self.marks.of(number))

    @property
    def clear(self) -> str:
        """The rule that clears the number of a packet."""
        return self.marks.sets(0)

    @property
    def marked(self) -> str:
        """The match of packets with a number."""
        return f"-m mark ! --mark {self.marks.within(0)}"

    @property
    def bridge_itself(self) -> Rules:
        """The match of what a pod of a bridge sent to itself; the device does not identify a pod of a bridge."""
        return (f'-m bpf --bytecode "{same_ends(self.family)}"',) if self.bridges else ()

    @property
    def guarded(self) -> bool:
        """Whether pods are forbidden to encapsulate."""
        return bool(self.encapsulation_ports)

    def profile(self, chain: str, profile: ProfileName, default: str, comment: str, *, ranged: bool) -> Rules:
        """The chain of a profile; ``default`` is the chain for all other peers, ``comment`` names the pods.

        The first rule names the profile, so that a restarted agent gives the profile the same name.
        """
        hosts, ranges = names.profile_sets(chain, self.family)
        peer = "src" if profile.direction == "Ingress" else "dst"
        goto_table = f"{self.marked} -g {names.TABLES}"
        return (
            f"{names.profile_comment(profile)} {self.clear}",
            maps(hosts, peer),
            goto_table,
            *((maps(ranges, peer), goto_table) if ranged else ()),
            f"{names.comment(comment)} -g {default}",
        )

    def commented(self, rules: Rules, comment: str) -> Rules:
        """The chain of a profile with another comment."""
        *most, last = rules
        return *most, f"{names.comment(comment)} -g {last.rpartition(' -g ')[2]}"

    @property
    def log_limit(self) -> str:
        """The match that limits the rate of log lines."""
        rate, burst = _TICKS // (_TICKS // min(self.log.rate, _TICKS)), min(self.log.burst, _TICKS)
        return f"-m limit --limit {rate}/sec" + (f" --limit-burst {burst}" if burst != _USUAL_BURST else "")

    def log_target(self, prefix: str) -> str:
        """The target that logs packets with a prefix."""
        return f"-j NFLOG --nflog-prefix {prefix} --nflog-group {self.log.group}"


def in_set(name: str, ends: str) -> str:
    """The match of packets whose ends are in a set."""
    return f"-m set --match-set {name} {ends}"


def maps(name: str, ends: str) -> str:
    """The rule that gives packets the mark of their element in a set."""
    return f"-j SET --map-set {name} {ends} --map-mark"
