"""The rules and sets of one family: what is always there, and what profiles, tables of ports and rules become (pure).

A packet between two pods costs about the same however many policies there are::

    set egress, ingress      device and address -> number of the profile; small ones: policies have no say
    PODWIRE-OUT, -IN         replies pass; number -> goto the profile
    PODWIRE-OUT-p, -IN-p     set: peer's address -> number of its table; else networks, else everybody's
    PODWIRE-TABLES           number -> goto the table
    PODWIRE-PORTS-t          protocol and port -> goto the rule
    PODWIRE-RULE-r           counts; logs; returns or drops

The target SET gives a packet the mark that a set has for it, in the table ``mangle`` alone; so all is there, before the
filter rules of others (behind the translation of destinations, before that of sources), and what passes goes on through
them. Our bits of the mark are taken off at the end. One of them stays from FORWARD to POSTROUTING, which tells what was
judged from what the node itself sends: that is judged there, because only there its destination is translated. A packet
that lost the bit on the way is judged twice, alike.

Only the reply direction of a known connection, and what is related to one, passes unseen, or both directions of one
with ``keep``. Chains that mean a profile, a table or a rule never change: where the meaning differs it is another
chain. Closed when in doubt, as in the data plane ``nftables``.

A packet that no element of a device and address matches is asked for its device alone. A set takes 64 devices for one
network, so each set ``devices-N`` has 64 of them. Links that carry the node's own address are no pods': ``uplinks``
have elements that say so, for the speed of what comes from outside and goes there.
"""

from collections.abc import Iterable, Iterator

import msgspec

from podwire.policy.dataplane import FamilyFacts
from podwire.policy.dataplanes.iptables import names
from podwire.policy.dataplanes.iptables.numbers import Marks
from podwire.policy.ports import PROTOCOLS, Entry, PortTable
from podwire.policy.profile import ProfileKey
from podwire.policy.verdicts import BORROWED, NOBODY, TUNNEL, UNKNOWN, DenyingPolicies, RuleHit
from podwire.state.ipset import PLAIN, Element, Family, IpSet
from podwire.state.iptables import Rules
from podwire.trace.bytecode import same_ends

OPEN = 1
"""The number of pods that no policy selects."""
AWAY = 2
"""The number of what is no pod's: links to other machines."""
SHARED = 4
"""The number of a bridge as a device: what goes to none of its pods is dropped, for nothing stands for it."""
FIRST = 5
"""Of profiles; all numbers from 4 on are judged."""
PER_SET = 64
"""Devices that the kernel takes for one network in a set of networks and devices."""
MAXELEM = 1 << 22
_FEW = 8
"""Ranges of ports that are compared one after the other."""
_PORTS_IN_A_MATCH = 15
_USUAL_BURST = 5
"""Of xt_limit; iptables-save leaves it out."""
_TICKS = 10_000
"""Of xt_limit in a second; a rate is a whole number of them."""
_ENCAPSULATED = "policy.encapsulation: drop"

Chains = dict[str, Rules]


class ChainLayout(FamilyFacts, frozen=True, kw_only=True):
    """One family on one node."""

    marks: Marks
    uplinks: tuple[str, ...] = ()
    """Devices that carry the node's own addresses."""

    def set_name(self, word: str) -> str:
        """The name of a set."""
        return names.set_prefix(self.family) + word

    def devices_name(self, number: int) -> str:
        """The set that the device of a number is in."""
        return self.set_name(f"devices-{number // PER_SET}")

    def declare(self, word: str, kind: str, elements: Iterable[str] = (), *, marks: bool = False) -> IpSet:
        """A set; without marks its elements are plain."""
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
        """The sets that are always there; those about the node with their elements."""
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
        """What of :meth:`sets` depends on ranges and addresses alone."""
        return (
            self.declare("pod-ranges", "hash:net", self.pod_ranges),
            self.declare("node-addresses", "hash:ip", self.node_addresses),
            *((self.declare("cluster-ranges", "hash:net", self.cluster_ranges),) if self._guarded else ()),
        )

    def device_set(self, number: int) -> IpSet:
        """The set that the device of a number is in."""
        return self.declare(f"devices-{number // PER_SET}", "hash:net,iface", marks=True)

    def of_device(self, device: str) -> str:
        """The element of a device alone."""
        return f"{self._anywhere},{device}"

    @property
    def _anywhere(self) -> str:
        return "::/0" if self.family == "ip6" else "0.0.0.0/0"

    def numbered(self, number: int) -> Element:
        """An element that gives packets a number."""
        return Element(mark=self.marks.of(number))

    def jumps(self) -> tuple[tuple[str, str], ...]:
        """(chain, rule) for the kernel's own chains."""
        text = names.comment("podwire: NetworkPolicy")
        return (
            ("FORWARD", f"{text} -j {names.FORWARD}"),
            ("INPUT", f"{text} -j {names.INPUT}"),
            ("POSTROUTING", f"{text} -j {names.SENT}"),
        )

    def chains(self, device_sets: int) -> Chains:
        """The chains that are always there, with so many sets of devices."""
        devices = tuple(self.set_name(f"devices-{number}") for number in range(device_sets))
        found = {
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
        return found | (self._encapsulation(devices) if self._guarded else {})

    @property
    def _clear(self) -> str:
        return self.marks.sets(0)

    @property
    def _marked(self) -> str:
        return f"-m mark ! --mark {self.marks.within(0)}"

    @property
    def _unmarked(self) -> str:
        return f"-m mark --mark {self.marks.within(0)}"

    def _away(self, way: str) -> str:
        """The match of packets with an address of this node's pods on a link that is no pod's."""
        return f"-m mark --mark {self.marks.within(AWAY)} {_in(self.set_name('pod-ranges'), way)}"

    @property
    def _judged(self) -> str:
        """The match of packets that a profile, or a bridge, is to judge."""
        return f"-m mark ! --mark {self.marks.within(0, 2)}"

    def _drops(self, matches: Iterable[str], prefix: str, comment: str = "") -> Iterator[str]:
        """Drops what matches, whatever policies say, and tells of it."""
        for match in matches:
            if self.log.group and self.log.drops:
                yield f"{match} {self._limit} {self._tell(prefix)}"
            yield f"{match}{comment} -j DROP"

    @property
    def _seen(self) -> int:
        """The number that packets have between FORWARD and POSTROUTING: the highest bit alone."""
        return (self.marks.last + 1) >> 1

    def _forward(self) -> Rules:
        return (
            *self._neighbours(),
            self._clear,
            _maps(self.set_name("egress"), "src,src"),
            f"{self._unmarked} -j {names.STRANGER}",
            f"{self._away('src')} -j {names.STRANGER}",
            f"{self._judged} -j {names.OUT}",
            self._clear,
            _maps(self.set_name("ingress"), "dst,dst"),
            f"{self._unmarked} -j {names.NOBODY}",
            f"{self._away('dst')} -j {names.NOWHERE}",
            *self._to_encapsulation(f"-m mark --mark {self.marks.either(AWAY)} "),
            f"{self._judged} -j {names.IN}",
            self.marks.sets(self._seen),
        )

    @property
    def _itself(self) -> Rules:
        """The match of what a pod of a bridge sent to itself: its device does not tell it from others there."""
        return (f'-m bpf --bytecode "{same_ends(self.family)}"',) if self.bridges else ()

    def _neighbours(self) -> Iterator[str]:
        """How pods of one bridge find each other; ARP is not seen here."""
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
        seen, _ = self.marks.of(self._seen)
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
            f"{self._judged} -j {names.OUT}",
            self._clear,
            *(_maps(name, "dst,dst") for name in devices),
            _maps(self.set_name("ingress"), "dst,dst"),
            f"{self._judged} -j {names.IN}",
            self._clear,
        )

    @property
    def _no_link_local(self) -> str:
        """What has a link-local source stays on the pod's link: neighbour discovery, for one."""
        return "! -s fe80::/10 " if self.family == "ip6" else ""

    @property
    def _guarded(self) -> bool:
        """Whether pods may not encapsulate."""
        return bool(self.encapsulation_ports)

    def _to_encapsulation(self, match: str = "") -> Rules:
        """What is no pod's of this node may be a tunnel's."""
        return (f"! -p tcp {match}-j {names.ENCAPSULATION}",) if self._guarded else ()

    def _encapsulation(self, devices: tuple[str, ...]) -> Chains:
        """As in the data plane ``nftables``: what a node may unpack goes to pods alone."""
        ports = sorted(set(self.encapsulation_ports))
        parts = (ports[at : at + _PORTS_IN_A_MATCH] for at in range(0, len(ports), _PORTS_IN_A_MATCH))
        goes = f"-g {names.ENCAPSULATED}"
        pods = self.set_name("cluster-ranges")
        senders = (
            *(_in(name, "src,src") for name in devices),
            *(f"-i {name}" for name in self.bridges),
            _in(pods, "src"),
        )
        return {
            names.ENCAPSULATION: (
                *(f"-p udp -m multiport --dports {','.join(map(str, some))} {goes}" for some in parts),
                *(f"-p {number} {goes}" for number in (4, 41, 47)),
            ),
            names.ENCAPSULATED: (
                f"{_in(pods, 'dst')} -m addrtype ! --dst-type LOCAL -j RETURN",
                "-m conntrack --ctstate ESTABLISHED --ctdir REPLY -j RETURN",
                *self._drops(senders, TUNNEL, f" {names.comment(_ENCAPSULATED)}"),
            ),
        }

    def root(self) -> Rules:
        """What stands before the branches of a chain that leads to profiles."""
        known = "-m conntrack --ctstate ESTABLISHED" + ("" if self.keep else " --ctdir REPLY")
        return f"{known} -j RETURN", "-m conntrack --ctstate INVALID -j DROP"

    def profile(self, chain: str, key: ProfileKey, default: str, *, ranged: bool) -> Rules:
        """The chain of a profile; ``default`` is the chain for everybody else."""
        hosts, ranges = names.profile_sets(chain, self.family)
        peer = "src" if key.direction == "Ingress" else "dst"
        found = f"{self._marked} -g {names.TABLES}"
        audited = (f"{name} (audit)" for name in key.audited)
        said = names.comment(", ".join((*key.cluster_policies, *key.policies, *audited)))
        return (
            self._clear,
            _maps(hosts, peer),
            found,
            *((_maps(ranges, peer), found) if ranged else ()),
            f"{said} -g {default}",
        )

    def ports(self, chain: str, table: PortTable, denying: DenyingPolicies) -> Chains:
        """The chains of a table of ports; where one protocol has many ranges, they are halved like numbers."""
        made: Chains = {}
        rules = []
        for protocol in PROTOCOLS:
            entries = [entry for entry in table.entries if entry.protocol == protocol]
            word = protocol.lower()
            if len(entries) > 1:
                below = f"{chain}-{word[0]}"
                self._ranges(below, entries, denying, made)
                rules.append(f"-p {word} -g {below}")
            elif entries[0].ruling != table.other:
                rules.append(f"-p {word} -g {names.rule_chain(denying.hit(entries[0].ruling))}")
        made[chain] = (*rules, f"-g {names.rule_chain(denying.hit(table.other))}")
        return made

    def _ranges(self, chain: str, entries: list[Entry], denying: DenyingPolicies, made: Chains) -> None:
        word = entries[0].protocol.lower()
        if len(entries) <= _FEW:
            parts = [(entry, names.rule_chain(denying.hit(entry.ruling))) for entry in entries]
        else:
            size = -(-len(entries) // _FEW)
            parts = []
            for at in range(0, len(entries), size):
                some = entries[at : at + size]
                below = f"{chain[: chain.rindex('-') + 2]}{len(made)}"
                made[below] = ()
                self._ranges(below, some, denying, made)
                parts.append((Entry(some[0].protocol, some[0].first, some[-1].last, some[0].ruling), below))
        *most, (_, last) = parts
        rules = (f"-p {word} -m {word} --dport {_port(entry)} -g {target}" for entry, target in most)
        made[chain] = (*rules, f"-g {last}")

    def rule(self, hit: RuleHit, prefix: str) -> Rules:
        """The chain of one rule, or of a denial because no rule allows; ``prefix`` is what the log says of it.

        Errors that belong to a connection, and what comes back to its sender through a Service, pass though no rule
        allows it; that is looked for where it would be dropped.
        """
        verdict = "RETURN" if hit.ruling.accept else "DROP"
        said = f"{names.comment(hit.text)} -j {verdict}"
        spared: Rules = (
            "-m conntrack --ctstate RELATED -j RETURN",
            f"-m conntrack --ctstate DNAT {_in(self.set_name('own'), 'src,dst')} -j RETURN",
            *(f"-m conntrack --ctstate DNAT {match} -j RETURN" for match in self._itself),
        )
        spared = spared if hit.ruling.audit or not hit.ruling.accept else ()
        return (*spared, *(self._logs(hit, prefix) if hit.logged(self.log) else ()), said)

    def _logs(self, hit: RuleHit, prefix: str) -> Rules:
        """Of what passes, the first packets of connections; of what only audit lets pass, now and then a later one."""
        tell = self._tell(prefix)
        if not hit.ruling.accept:
            return (f"{self._limit} {tell}",)
        later = f"-m conntrack ! --ctstate NEW -m limit --limit 1/sec {tell}"
        return (f"-m conntrack --ctstate NEW {self._limit} {tell}", *((later,) if hit.ruling.audit else ()))

    @property
    def _limit(self) -> str:
        rate, burst = _TICKS // (_TICKS // min(self.log.rate, _TICKS)), min(self.log.burst, _TICKS)
        return f"-m limit --limit {rate}/sec" + (f" --limit-burst {burst}" if burst != _USUAL_BURST else "")

    def _tell(self, prefix: str) -> str:
        return f"-j NFLOG --nflog-prefix {prefix} --nflog-group {self.log.group}"


def _in(name: str, ways: str) -> str:
    return f"-m set --match-set {name} {ways}"


def _maps(name: str, ways: str) -> str:
    return f"-j SET --map-set {name} {ways} --map-mark"


def _port(entry: Entry) -> str:
    return str(entry.first) if entry.first == entry.last else f"{entry.first}:{entry.last}"
