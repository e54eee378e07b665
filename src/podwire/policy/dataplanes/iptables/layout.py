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
``keep``, both directions pass. Chains for a profile or a rule never change: another meaning makes another chain.
Default deny in doubt, as in the data plane ``nftables``.

If no element matches the device and address of a packet, the device alone is looked up. A set accepts 64 devices for
one network, so each set ``devices-N`` has 64 devices. Links with the node's own address do not belong to pods:
``uplinks`` have set elements for that, which makes traffic from and to the outside faster.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from podwire.policy.dataplane import FamilyFacts
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.numbers import MarkBits
from podwire.policy.ports import PROTOCOLS, PortRuling, PortTable, Ruling
from podwire.policy.profile import ProfileKey
from podwire.policy.verdicts import BORROWED, NOBODY, TUNNEL, UNKNOWN, RuleIdentity, rule_identity, subjects_text
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
_FEW = 8
"""Up to this number, ranges of ports are compared one after the other."""
_PORTS_IN_A_MATCH = 15
_USUAL_BURST = 5
"""The default burst of xt_limit; iptables-save does not print it."""
_TICKS = 10_000
"""Ticks of xt_limit in a second; the interval of a rate is a whole number of ticks."""
_ENCAPSULATED = "policy.encapsulation: drop"

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
            *((self.declare("cluster-ranges", "hash:net", self.cluster_ranges),) if self._guarded else ()),
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
        devices = tuple(self.set_name(f"devices-{number}") for number in range(device_sets))
        chains = {
            names.FORWARD: self._forward(),
            names.INPUT: self._input(),
            names.SENT: self._sent(devices),
            names.UNMARK: (self._clear,),
            names.STRANGER: (
                *self._drops((_in(name, "src,src") for name in devices), BORROWED),
                *self._drops((_in(self.set_name("pod-ranges"), "src"),), UNKNOWN),
            ),
            names.INTRUDER: (
                *self._drops((f"{self._no_link_local}{_in(name, 'src,src')}" for name in devices), BORROWED),
            ),
            names.NOBODY: (
                *(_maps(name, "dst,dst") for name in devices),
                f"{self._marked} -j RETURN",
                f"-j {names.NOWHERE}",
            ),
            names.NOWHERE: (*self._drops((_in(self.set_name("pod-ranges"), "dst"),), NOBODY),),
        }
        return chains | (self._encapsulation(devices) if self._guarded else {})

    @property
    def _clear(self) -> str:
        return self.marks.sets(0)

    @property
    def _marked(self) -> str:
        return f"-m mark ! --mark {self.marks.within(0)}"

    @property
    def _unmarked(self) -> str:
        return f"-m mark --mark {self.marks.within(0)}"

    def _away(self, direction: str) -> str:
        """The match of packets with an address of this node's pods on a link that does not belong to a pod."""
        return f"-m mark --mark {self.marks.within(AWAY)} {_in(self.set_name('pod-ranges'), direction)}"

    @property
    def _to_check(self) -> str:
        """The match of packets that the chain of a profile or of a bridge has to check."""
        return f"-m mark ! --mark {self.marks.within(0, 2)}"

    def _drops(self, matches: Iterable[str], prefix: str, comment: str = "") -> Iterator[str]:
        """The rules that log and drop matching packets independently of policies."""
        for match in matches:
            if self.log.group and self.log.drops:
                yield f"{match} {self._limit} {self._log_target(prefix)}"
            yield f"{match}{comment} -j DROP"

    @property
    def _checked_number(self) -> int:
        """The number of checked packets between FORWARD and POSTROUTING: only the highest bit."""
        return (self.marks.last + 1) >> 1

    def _forward(self) -> Rules:
        return (
            *self._neighbours(),
            self._clear,
            _maps(self.set_name("egress"), "src,src"),
            f"{self._unmarked} -j {names.STRANGER}",
            f"{self._away('src')} -j {names.STRANGER}",
            f"{self._to_check} -j {names.OUT}",
            self._clear,
            _maps(self.set_name("ingress"), "dst,dst"),
            f"{self._unmarked} -j {names.NOBODY}",
            f"{self._away('dst')} -j {names.NOWHERE}",
            *self._to_encapsulation(f"-m mark --mark {self.marks.either(AWAY)} "),
            f"{self._to_check} -j {names.IN}",
            self.marks.sets(self._checked_number),
        )

    @property
    def _itself(self) -> Rules:
        """The match of what a pod of a bridge sent to itself; the device does not identify a pod of a bridge."""
        return (f'-m bpf --bytecode "{same_ends(self.family)}"',) if self.bridges else ()

    def _neighbours(self) -> Iterator[str]:
        """The rules that accept neighbour discovery between pods of one bridge; ARP does not pass these chains."""
        if self.family == "ip6":
            for bridge in self.bridges:
                for kind in (135, 136):
                    yield f"-o {bridge} -p ipv6-icmp -m icmp6 --icmpv6-type {kind} -j RETURN"

    def _input(self) -> Rules:
        to_node = _in(self.set_name("to-node"), "src,src")
        return (
            *self._to_encapsulation(),
            self._clear,
            _maps(self.set_name("egress"), "src,src"),
            f"{self._unmarked} -j {names.INTRUDER}",
            f"{to_node} {_in(self.set_name('node-addresses'), 'dst')} -j {names.OUT}",
            self._clear,
        )

    def _sent(self, devices: tuple[str, ...]) -> Rules:
        seen, _ = self.marks.of(self._checked_number)
        link_local = (
            ("-s fe80::/10 -j RETURN", "-s ::/128 -j RETURN") if self.family == "ip6" else ("-s 0.0.0.0/32 -j RETURN",)
        )
        return (
            f"-m mark --mark 0x{seen:x}/0x{seen:x} -g {names.UNMARK}",
            *self._neighbours(),
            *link_local,
            "-m addrtype --src-type LOCAL -j RETURN",
            f"{_in(self.set_name('own'), 'src,dst')} -j RETURN",
            *(f"{match} -j RETURN" for match in self._itself),
            self._clear,
            _maps(self.set_name("sources"), "src"),
            f"{self._to_check} -j {names.OUT}",
            self._clear,
            *(_maps(name, "dst,dst") for name in devices),
            _maps(self.set_name("ingress"), "dst,dst"),
            f"{self._to_check} -j {names.IN}",
            self._clear,
        )

    @property
    def _no_link_local(self) -> str:
        """The match that exempts link-local sources: they stay on the pod's link, as neighbour discovery does."""
        return "! -s fe80::/10 " if self.family == "ip6" else ""

    @property
    def _guarded(self) -> bool:
        """Whether pods are forbidden to encapsulate."""
        return bool(self.encapsulation_ports)

    def _to_encapsulation(self, match: str = "") -> Rules:
        """The jump to the check of tunnels, for packets whose destination is no pod of this node."""
        return (f"! -p tcp {match}-j {names.ENCAPSULATION}",) if self._guarded else ()

    def _encapsulation(self, devices: tuple[str, ...]) -> Chains:
        """The chains that drop packets from pods to tunnels of nodes, as in the data plane ``nftables``."""
        ports = sorted(set(self.encapsulation_ports))
        groups = (ports[at : at + _PORTS_IN_A_MATCH] for at in range(0, len(ports), _PORTS_IN_A_MATCH))
        goto_drop = f"-g {names.ENCAPSULATED}"
        pods = self.set_name("cluster-ranges")
        senders = (
            *(_in(name, "src,src") for name in devices),
            *(f"-i {name}" for name in self.bridges),
            _in(pods, "src"),
        )
        return {
            names.ENCAPSULATION: (
                *(f"-p udp -m multiport --dports {','.join(map(str, group))} {goto_drop}" for group in groups),
                *(f"-p {number} {goto_drop}" for number in (4, 41, 47)),
            ),
            names.ENCAPSULATED: (
                f"{_in(pods, 'dst')} -m addrtype ! --dst-type LOCAL -j RETURN",
                "-m conntrack --ctstate ESTABLISHED --ctdir REPLY -j RETURN",
                *self._drops(senders, TUNNEL, f" {names.comment(_ENCAPSULATED)}"),
            ),
        }

    def root(self) -> Rules:
        """The first rules of the chains OUT and IN, before their branches to profiles."""
        known = "-m conntrack --ctstate ESTABLISHED" + ("" if self.keep else " --ctdir REPLY")
        return f"{known} -j RETURN", "-m conntrack --ctstate INVALID -j DROP"

    def profile(self, chain: str, key: ProfileKey, default: str, *, ranged: bool) -> Rules:
        """The chain of a profile; ``default`` is the chain for all other peers."""
        hosts, ranges = names.profile_sets(chain, self.family)
        peer = "src" if key.direction == "Ingress" else "dst"
        goto_table = f"{self._marked} -g {names.TABLES}"
        comment = names.comment(subjects_text(key.subjects))
        return (
            self._clear,
            _maps(hosts, peer),
            goto_table,
            *((_maps(ranges, peer), goto_table) if ranged else ()),
            f"{comment} -g {default}",
        )

    def ports(self, chain: str, table: PortTable, key: ProfileKey) -> Chains:
        """The chains of a table of ports; many ranges of one protocol become a search tree, like numbers."""
        chains: Chains = {}
        rules = []
        for protocol in PROTOCOLS:
            entries = table.of_protocol(protocol)
            protocol_name = protocol.lower()
            if len(entries) > 1:
                below = f"{chain}-{protocol_name[0]}"
                self._ranges(below, entries, key, chains)
                rules.append(f"-p {protocol_name} -g {below}")
            elif entries[0].ruling != table.other:
                rules.append(f"-p {protocol_name} -g {_rule_chain(key, entries[0].ruling)}")
        chains[chain] = (*rules, f"-g {_rule_chain(key, table.other)}")
        return chains

    def _ranges(self, chain: str, entries: Sequence[PortRuling], key: ProfileKey, chains: Chains) -> None:
        protocol_name = entries[0].protocol.lower()
        if len(entries) <= _FEW:
            targets = [(entry, _rule_chain(key, entry.ruling)) for entry in entries]
        else:
            size = -(-len(entries) // _FEW)
            targets = []
            for at in range(0, len(entries), size):
                part = entries[at : at + size]
                below = f"{chain[: chain.rindex('-') + 2]}{len(chains)}"
                chains[below] = ()
                self._ranges(below, part, key, chains)
                targets.append((PortRuling(part[0].protocol, part[0].first, part[-1].last, part[0].ruling), below))
        *most, (_, last) = targets
        rules = (f"-p {protocol_name} -m {protocol_name} --dport {_port(entry)} -g {target}" for entry, target in most)
        chains[chain] = (*rules, f"-g {last}")

    def rule(self, hit: RuleIdentity, prefix: str) -> Rules:
        """The chain of one rule, or of a denial because no rule allows; ``prefix`` is the prefix of its log lines.

        Two kinds of packets pass although no rule allows them: errors that belong to a connection, and packets that
        return to their sender through a Service. The rules for them stand just before the drop.
        """
        verdict = "RETURN" if hit.ruling.accept else "DROP"
        verdict_rule = f"{names.comment(hit.text)} -j {verdict}"
        exempt: Rules = (
            "-m conntrack --ctstate RELATED -j RETURN",
            f"-m conntrack --ctstate DNAT {_in(self.set_name('own'), 'src,dst')} -j RETURN",
            *(f"-m conntrack --ctstate DNAT {match} -j RETURN" for match in self._itself),
        )
        exempt = exempt if hit.ruling.audit or not hit.ruling.accept else ()
        return (*exempt, *(self._logs(hit, prefix) if hit.logged(self.log) else ()), verdict_rule)

    def _logs(self, hit: RuleIdentity, prefix: str) -> Rules:
        """The log rules: for denials each packet within the rate limit; for accepted packets the first of a connection.

        Packets that pass only because the policy is in audit are also logged later, at most once a second.
        """
        target = self._log_target(prefix)
        if not hit.ruling.accept:
            return (f"{self._limit} {target}",)
        later = f"-m conntrack ! --ctstate NEW -m limit --limit 1/sec {target}"
        return (f"-m conntrack --ctstate NEW {self._limit} {target}", *((later,) if hit.ruling.audit else ()))

    @property
    def _limit(self) -> str:
        rate, burst = _TICKS // (_TICKS // min(self.log.rate, _TICKS)), min(self.log.burst, _TICKS)
        return f"-m limit --limit {rate}/sec" + (f" --limit-burst {burst}" if burst != _USUAL_BURST else "")

    def _log_target(self, prefix: str) -> str:
        return f"-j NFLOG --nflog-prefix {prefix} --nflog-group {self.log.group}"


def _rule_chain(key: ProfileKey, ruling: Ruling) -> str:
    return names.rule_chain(rule_identity(key, ruling))


def _in(name: str, ways: str) -> str:
    return f"-m set --match-set {name} {ways}"


def _maps(name: str, ways: str) -> str:
    return f"-j SET --map-set {name} {ways} --map-mark"


def _port(entry: PortRuling) -> str:
    return str(entry.first) if entry.first == entry.last else f"{entry.first}:{entry.last}"
