"""The table of one family: what is always there, and what profiles, tables of ports and rules become (pure).

A packet between two pods costs the same however many policies there are::

    egress                  device and address -> goto <profile>; without policies: accept
    ingress                 device -> goto <profile>; without policies: accept
    in-<p>, out-<p>         peer's address -> goto <ports>;   first exact addresses, then ranges, then everybody else
    ports-<t>               protocol and port -> goto <rule>
    rule-<r>                count; log; accept or drop

Egress and ingress are base chains of their own, one behind the other, so that what one accepts the other still sees.
They stand in the forward hook: the destination is translated by then and the source is not yet, as Kubernetes' users
expect. What a node sends itself does not pass there, so a pod's own node always reaches it. What pods send to their own
node is looked up in ``to-node``; a pod whose NetworkPolicies have no say in that, and that no cluster policy selects,
is not in it.

Only the reply direction of a known connection, and what is related to one, passes unseen: the original direction is
looked up packet by packet, so a connection that a changed policy forbids ends with its next packet. With ``keep`` both
directions of a known connection pass.

What pods encapsulate themselves (VXLAN, Geneve, IP in IP, GRE) passes to pods alone. It is looked for in what goes to
the node, and in what leaves it: what is forwarded to a pod of the node does not come so far.

In a profile the accepted go the shortest way. What is let through though no rule allows it (errors that belong to a
connection, what comes back to its sender through a Service) is looked for where it would be dropped.

Pods of other CNI plugins may be ports of a bridge (``bridges``). There the device says nothing of the pod: its address
does, by ``bridged``; see :mod:`podwire.policy.bridges` for who may use an address there. Neighbour discovery passes.

A profile's chain never changes its rules, nor its ranges: where these differ it is another chain, and what leads a
device to the one or to the other is one element. Its exact addresses do change, each by itself. So a packet is judged
by what was before a change or by what is after it, never by a mixture.

Closed when in doubt: what comes from a pod's device with an address that is not the pod's is dropped, and so is an
address of this node's pods that comes from or goes to a device which is not in the maps. Base chains accept by policy
and drop by rule, since replacing rules under a dropping policy loses packets on the way.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from podwire.policy.dataplane import FamilyFacts
from podwire.policy.ports import PROTOCOLS, Entry, PortTable
from podwire.policy.profile import ProfileKey
from podwire.policy.verdicts import BORROWED, NOBODY, TUNNEL, UNKNOWN, DenyingPolicies, RuleHit
from podwire.state.address import pack_ip
from podwire.state.nft import Chain, Element, Set
from podwire.state.nft_rules import Rule, Verdict
from podwire.state.nft_text import parse_rule

TABLE = "podwire-policy"
RULE = "rule-"
"""How the names of the chains of rules begin."""
SHARED = "egress-sources"
"""The one set of pods whose keys say nothing of a device."""
PRIORITY = -5
"""Of egress; ingress is one later. Before the filter hook of others, behind all translation of destinations."""

_ADDRESS = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}
_BITS = {"ip": 32, "ip6": 128}


class TableLayout(FamilyFacts, frozen=True, kw_only=True):
    """One family on one node."""

    @property
    def address(self) -> str:
        """The type of addresses."""
        return _ADDRESS[self.family]

    def rules(self, *texts: str) -> tuple[Rule, ...]:
        """Rules from text."""
        return tuple(parse_rule(text) for text in texts)

    def sets(self) -> tuple[Set, ...]:
        """The sets that are always there; those about the node with their elements."""
        return *(each.with_elements(self._of_bridges(each)) for each in self._device_sets()), *self.node_sets()

    def node_sets(self) -> tuple[Set, ...]:
        """What of :meth:`sets` depends on ranges and addresses alone."""
        ranges = Set(name="pod-ranges", key=(self.address,), flags=("interval",))
        addresses = Set(name="node-addresses", key=(self.address,))
        pods = Set(name="cluster-ranges", key=(self.address,), flags=("interval",))
        return (
            ranges.with_elements(ranges.element(text) for text in self.pod_ranges),
            addresses.with_elements(addresses.element(text) for text in self.node_addresses),
            *((pods.with_elements(pods.element(text) for text in self.cluster_ranges),) if self._guarded else ()),
        )

    def _device_sets(self) -> tuple[Set, ...]:
        """Those that pods' devices are in."""
        source = ("ifname", self.address)
        return (
            Set(name="egress", key=source, data=("verdict",)),
            Set(name=SHARED, key=(self.address,), data=("verdict",)),
            Set(name="to-node", key=source, data=("verdict",)),
            Set(name="ingress", key=("ifname",), data=("verdict",)),
            Set(name="pod-devices", key=("ifname",)),
            Set(name="own", key=source),
            *self._bridge_sets(),
        )

    def _bridge_sets(self) -> tuple[Set, ...]:
        """Those of pods that share a device."""
        if not self.bridges:
            return ()
        itself = (self.address, self.address)
        return Set(name="bridged", key=(self.address,), data=("verdict",)), Set(name="self", key=itself)

    def _of_bridges(self, declared: Set) -> Iterable[tuple[bytes, Element]]:
        """What a bridge has in a set, whichever pods it has."""
        match declared.name:
            case "ingress":
                return [declared.element(bridge, "goto on-bridge") for bridge in self.bridges]
            case "pod-devices":
                return [declared.element(bridge) for bridge in self.bridges]
        return ()

    def chains(self) -> tuple[Chain, ...]:
        """The base chains."""
        source = f"iifname . {self.family} saddr"
        itself = (
            f"oifname . {self.family} saddr @own accept",
            *((f"{self._itself} accept",) if self.bridges else ()),
        )
        return (
            self._base(
                "forward-egress",
                "forward",
                PRIORITY,
                *self._neighbours,
                f"{source} vmap @egress",
                *self._dropped("iifname @pod-devices", BORROWED),
                *self._dropped(f"{self.family} saddr @pod-ranges", UNKNOWN),
            ),
            self._base(
                "forward-ingress",
                "forward",
                PRIORITY + 1,
                *self._neighbours,
                "oifname vmap @ingress",
                *self._dropped(f"{self.family} daddr @pod-ranges", NOBODY),
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
            self._base("output-egress", "output", PRIORITY, *itself, f"{self.family} saddr vmap @{SHARED}"),
            self._base(
                "output-ingress",
                "output",
                PRIORITY + 1,
                *itself,
                f"oifname @pod-devices {self._some_source} fib saddr type != local oifname vmap @ingress",
            ),
            *(self._encapsulation() if self._guarded else ()),
            *((Chain(name="on-bridge", rules=self.rules(*self._to_bridged)),) if self.bridges else ()),
        )

    def _dropped(self, match: str, prefix: str, comment: str = "") -> tuple[str, ...]:
        """Drops what matches, whatever policies say, and tells of it."""
        drop = f"{match} counter drop{comment}"
        if not (self.log.group and self.log.drops):
            return (drop,)
        limit = f"limit rate {self.log.rate}/second burst {self.log.burst} packets"
        return f'{match} {limit} log prefix "{prefix}" group {self.log.group}', drop

    @property
    def _to_bridged(self) -> tuple[str, ...]:
        """What goes to a bridge and to none of its pods would reach them all."""
        return f"{self.family} daddr vmap @bridged", "counter drop"

    @property
    def _itself(self) -> str:
        """A pod of a bridge and what it sent to itself."""
        return f"{self.family} saddr . {self.family} daddr @self"

    @property
    def _neighbours(self) -> tuple[str, ...]:
        """How pods of one bridge find each other; ARP is not seen here."""
        asked = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept"
        return tuple(f'oifname "{bridge}" {asked}' for bridge in self.bridges if self.family == "ip6")

    @property
    def _guarded(self) -> bool:
        """Whether pods may not encapsulate."""
        return bool(self.encapsulation_ports)

    @property
    def _to_encapsulation(self) -> tuple[str, ...]:
        return ("meta l4proto != tcp jump encapsulation",) if self._guarded else ()

    def _encapsulation(self) -> tuple[Chain, ...]:
        """A node unpacks what comes to its tunnels, whoever sent it, and no policy sees what was inside.

        Most datagrams go to none of the ports between the first and the last, which costs less to see than a set.
        To the address of a pod, pods may send what they like: their policies say whether. What the node itself takes
        has a local destination, even where that lies in the ranges of pods.
        """
        ports = sorted(set(self.encapsulation_ports))
        elsewhere = f"{ports[0]}-{ports[-1]}" if len(ports) > 1 else str(ports[0])
        destination = f"{self.family} daddr @cluster-ranges fib daddr type != local"
        look = self.rules(
            f"udp dport != {elsewhere} return",
            f"udp dport {{ {', '.join(map(str, ports))} }} goto encapsulated",
            "meta l4proto { 4, 41, gre } goto encapsulated",
        )
        senders = (
            "iifname @pod-devices",
            *(f'iifname "{bridge}"' for bridge in self.bridges),
            f"{self.family} saddr @cluster-ranges",
        )
        judge = self.rules(
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
        """What has a link-local source stays on the pod's link: neighbour discovery, for one."""
        return " ip6 saddr != fe80::/10" if self.family == "ip6" else ""

    @property
    def _some_source(self) -> str:
        """Without a source the node's kernel sends itself, which listeners of multicast it has on a new link."""
        return f"{self.family} saddr != {'::' if self.family == 'ip6' else '0.0.0.0'}"

    def _base(self, name: str, hook: str, priority: int, *texts: str) -> Chain:
        return Chain(name=name, type="filter", hook=hook, priority=priority, rules=self.rules(*texts))

    def placed(self, device: str, addresses: tuple[str, ...], chains: "Chains") -> dict[str, dict[bytes, Element]]:
        """What belongs to a pod's device, by the name of the set."""
        sets = {each.name: each for each in self._device_sets()}
        own = [address for address in addresses if (":" in address) == (self.family == "ip6")]
        sources = [f"{device} . {address}" for address in own]
        if device in self.bridges:
            return self._sending(sets, sources, own, chains) | {
                "bridged": dict(sets["bridged"].element(address, _leads(chains.ingress)) for address in own),
                "self": dict(sets["self"].element(f"{one} . {other}") for one in own for other in own),
            }
        return self._sending(sets, sources, own, chains) | {
            "pod-devices": dict((sets["pod-devices"].element(device),)),
            "own": dict(sets["own"].element(source) for source in sources),
            "ingress": dict((sets["ingress"].element(device, _leads(chains.ingress)),)),
        }

    def _sending(
        self, sets: dict[str, Set], sources: list[str], own: list[str], chains: "Chains"
    ) -> dict[str, dict[bytes, Element]]:
        return {
            "egress": dict(sets["egress"].element(source, _leads(chains.egress)) for source in sources),
            SHARED: dict(sets[SHARED].element(address, _leads(chains.egress)) for address in own),
            "to-node": dict(sets["to-node"].element(source, _leads(chains.to_node)) for source in sources),
        }

    def profile_sets(self, name: str) -> tuple[Set, Set]:
        """The maps of a profile: exact addresses, ranges."""
        data = ("verdict",)
        return (
            Set(name=f"{name}-hosts", key=(self.address,), data=data),
            Set(name=f"{name}-ranges", key=(self.address,), data=data, flags=("interval",)),
        )

    def profile_chain(self, name: str, key: ProfileKey, default: str) -> Chain:
        """The chain of a profile; ``default`` is the chain for everybody else."""
        peer = f"{self.family} {'saddr' if key.direction == 'Ingress' else 'daddr'}"
        known = "" if self.keep else "ct direction reply "
        rules = self.rules(
            f"{known}ct state established accept",
            "ct state invalid counter drop",
            f"{peer} vmap @{name}-hosts",
            f"{peer} vmap @{name}-ranges",
            f"goto {default}",
        )
        return Chain(name=name, comment=comment(key), rules=rules)

    @property
    def _to_itself(self) -> tuple[str, ...]:
        """What a pod sends to a Service and gets back itself, which neither direction has a say in."""
        bridged = (f"ct status dnat {self._itself} accept",) if self.bridges else ()
        return f"ct status dnat oifname . {self.family} saddr @own accept", *bridged

    def node_chain(self, name: str, key: ProfileKey) -> Chain:
        """The chain for what pods of a profile send to their own node: only its own addresses are looked up."""
        rules = self.rules(f"{self.family} daddr @node-addresses goto {name}", "accept")
        return Chain(name=node_name(name), comment=comment(key), rules=rules)

    def key(self, address: str) -> bytes:
        """The key of an exact address in a profile's map."""
        return pack_ip(address)

    def ranged(self, declared: Set, first: int, last: int, chain: str) -> tuple[bytes, Element]:
        """The element of a range of addresses."""
        size = _BITS[self.family] // 8
        start, element = declared.element("::" if self.family == "ip6" else "0.0.0.0", f"goto {chain}")
        start = first.to_bytes(size, "big")
        return start, msgspec.structs.replace(element, end=last.to_bytes(size, "big"))

    def ports_sets(self, name: str, table: PortTable, denying: DenyingPolicies) -> tuple[Set, ...]:
        """The maps of a table of ports, one for each protocol whose ports differ."""
        found = []
        for protocol in PROTOCOLS:
            entries = [entry for entry in table.entries if entry.protocol == protocol]
            if len(entries) > 1:
                declared = Set(
                    name=f"{name}-{protocol.lower()}", key=("inet_service",), data=("verdict",), flags=("interval",)
                )
                chains = {ruling: rule_name(denying.hit(ruling)) for ruling in {entry.ruling for entry in entries}}
                elements = (_ports_element(entry, chains[entry.ruling]) for entry in entries)
                found.append(declared.with_elements(elements))
        return tuple(found)

    def ports_chain(self, name: str, table: PortTable, denying: DenyingPolicies) -> Chain:
        """The chain of a table of ports."""
        texts = []
        for protocol in PROTOCOLS:
            entries = [entry for entry in table.entries if entry.protocol == protocol]
            word = protocol.lower()
            if len(entries) > 1:
                texts.append(f"{word} dport vmap @{name}-{word}")
            elif entries[0].ruling != table.other:
                texts.append(f"meta l4proto {word} goto {rule_name(denying.hit(entries[0].ruling))}")
        texts.append(f"goto {rule_name(denying.hit(table.other))}")
        return Chain(name=name, rules=self.rules(*texts))

    def rule_chain(self, hit: RuleHit) -> Chain:
        """The chain of one rule, or of a denial because no rule allows."""
        name, verdict = rule_name(hit), "accept" if hit.ruling.accept else "drop"
        spared = ("ct state related accept", *self._to_itself)
        spared = spared if hit.ruling.audit or not hit.ruling.accept else ()
        texts = (*spared, *(self._logs(hit, name) if hit.logged(self.log) else ()), f"counter {verdict}")
        return Chain(name=name, comment=hit.text[:_COMMENT], rules=self.rules(*texts))

    def _logs(self, hit: RuleHit, name: str) -> tuple[str, ...]:
        """Of what passes, the first packets of connections; of what only audit lets pass, now and then a later one."""
        limit = f"limit rate {self.log.rate}/second burst {self.log.burst} packets"
        tell = f'log prefix "{name}" group {self.log.group}'
        if not hit.ruling.accept:
            return (f"{limit} {tell}",)
        later = f"ct state != new limit rate 1/second {tell}"
        return (f"ct state new {limit} {tell}", *((later,) if hit.ruling.audit else ()))


class Chains(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Where a pod's device leads; empty: policies have no say."""

    ingress: str
    egress: str
    to_node: str


def _leads(chain: str) -> str:
    return f"goto {chain}" if chain else "accept"


def leading_to(chain: str) -> Element:
    """The element of whatever leads to a chain; ten thousand peers may share one."""
    return Element(verdict=Verdict("goto", chain))


def _ports_element(entry: Entry, chain: str) -> tuple[bytes, Element]:
    """The element of a range of ports."""
    first, last = (port.to_bytes(2, "big") for port in (entry.first, entry.last))
    return first, Element(verdict=Verdict("goto", chain), end=last)


_COMMENT = 127
"""Bytes that nft takes as a comment."""


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def profile_name(key: ProfileKey, default: str, ranges: tuple[tuple[int, int, str], ...]) -> str:
    """The chain of a profile, given the chains for everybody else and for ranges of addresses."""
    word = "in" if key.direction == "Ingress" else "out"
    return f"{word}-{_short(msgspec.json.encode((key, default, ranges)).decode())}"


def node_name(name: str) -> str:
    """The chain of a profile for its pods' own node."""
    return name.replace("out-", "node-")


def comment(key: ProfileKey) -> str:
    """What a profile is made of."""
    audited = (f"{name} (audit)" for name in key.audited)
    return ", ".join((*key.cluster_policies, *key.policies, *audited))[:_COMMENT]


def ports_name(table: PortTable, denying: DenyingPolicies) -> str:
    """The chain of a table of ports."""
    return f"ports-{_short(msgspec.json.encode((denying.of(table), table)).decode())}"


def rule_name(hit: RuleHit) -> str:
    """The chain of a rule."""
    return f"{RULE}{_short(msgspec.json.encode(hit).decode())}"
