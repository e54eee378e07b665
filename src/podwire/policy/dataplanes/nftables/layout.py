"""The table of one family: its fixed chains and sets, and the chains for profiles, tables of ports and rules (pure).

The cost of a packet between two pods does not depend on the number of policies::

    egress                  device and address -> goto <profile>; without policies: accept
    ingress                 device -> goto <profile>; without policies: accept
    in-<p>, out-<p>         peer's address -> goto <ports>;   first exact addresses, then ranges, then the default
    ranges-<r>              peer's address -> goto <ports>;   a part of many ranges; the map of a profile jumps there
    ports-<t>               protocol and port -> goto <rule>
    rule-<r>                count; log; accept or drop

Egress and ingress are two base chains, ingress after egress, so a packet that egress accepts still passes ingress. Both
are at the forward hook: there the destination is already translated and the source is not yet, as users of Kubernetes
expect. Packets that the node itself sends do not pass the forward hook, so a node always reaches its own pods. Packets
from pods to their own node are looked up in ``to-node``. A pod is not in ``to-node`` if its NetworkPolicies do not
apply to its own node and no cluster policy selects it.

Packets in the reply direction of a known connection and packets related to a connection pass without a look-up. Each
packet in the original direction is looked up, so a connection that a changed policy denies ends with its next packet.
With ``keep``, both directions of a known connection pass.

Packets that pods encapsulate themselves (VXLAN, Geneve, IP in IP, GRE) may go only to pods. The chain ``encapsulation``
checks packets to the node and packets that leave the node; packets that are forwarded to a pod of the node never reach
that chain.

In a profile, accepted packets take the shortest path. Two kinds of packets pass although no rule allows them: errors
that belong to a connection, and packets that return to their sender through a Service. The rules for them stand just
before the drop.

Pods of other CNI plugins may be ports of a bridge (``bridges``). There the device does not identify the pod; its
address does, through the map ``bridged``. :mod:`podwire.policy.bridges` enforces which port may use an address.
Neighbour discovery passes.

The rules and ranges of a profile's chain never change: other rules or ranges make another chain, and one map element
moves a device from the old chain to the new one. Both chains share the map of exact addresses, which change one by one.
So do the single ports of a table, if no packet that was led to the table is led elsewhere after the change
(:mod:`podwire.policy.tablechains`). So a packet is decided either by the state before a change or by the state after
it, never by a mixture.

Default deny in doubt: a packet from a pod's device with a source address that does not belong to the pod is dropped. So
is a packet with an address of this node's pods that comes from or goes to a device which is not in the maps. The policy
of base chains is accept, and rules drop, because replacing rules under a policy of drop loses packets in transit.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from podwire.policy.dataplane import FamilyFacts
from podwire.policy.ports import PROTOCOLS, PortRuling, PortTable, Ruling, SinglePorts
from podwire.policy.profile import ProfileKey
from podwire.policy.verdicts import BORROWED, NOBODY, TUNNEL, UNKNOWN, RuleIdentity, rule_identity, subjects_text
from podwire.state.address import pack_ip
from podwire.state.nft import Chain, Element, Set
from podwire.state.nft_rules import Rule, Verdict
from podwire.state.nft_text import parse_rule
from podwire.state.nft_types import pack

TABLE = "podwire-policy"
RULE, PORTS = "rule-", "ports-"
"""The prefixes of the names of the chains of rules and of tables of ports."""
PART, HOSTS = "ranges-", "-hosts"
"""The prefix of the names of chains of ranges, and the end of the names of the maps of exact addresses."""
SHARED = "egress-sources"
"""The only set of pods whose keys have no device."""
PRIORITY = -5
"""The priority of egress; ingress has one more. After destination NAT (-100), before usual filter chains (0)."""

_ADDRESS = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}
_BITS = {"ip": 32, "ip6": 128}


class TableLayout(FamilyFacts, frozen=True, kw_only=True):
    """One family on one node."""

    @property
    def address(self) -> str:
        """The nftables data type of addresses in this family."""
        return _ADDRESS[self.family]

    def rules(self, *texts: str) -> tuple[Rule, ...]:
        """Rules from text."""
        return tuple(parse_rule(text) for text in texts)

    def sets(self) -> tuple[Set, ...]:
        """The sets that always exist; sets that describe the node have their elements."""
        device_sets = (declared.with_elements(self._of_bridges(declared)) for declared in self._device_sets())
        return *device_sets, *self.node_sets()

    def node_sets(self) -> tuple[Set, ...]:
        """The sets of :meth:`sets` that depend only on ranges and addresses."""
        ranges = Set(name="pod-ranges", key=(self.address,), flags=("interval",))
        addresses = Set(name="node-addresses", key=(self.address,))
        pods = Set(name="cluster-ranges", key=(self.address,), flags=("interval",))
        return (
            ranges.with_elements(ranges.element(text) for text in self.pod_ranges),
            addresses.with_elements(addresses.element(text) for text in self.node_addresses),
            *((pods.with_elements(pods.element(text) for text in self.cluster_ranges),) if self._guarded else ()),
        )

    def _device_sets(self) -> tuple[Set, ...]:
        """The sets of pods' devices."""
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
        """The sets of pods that share a device."""
        if not self.bridges:
            return ()
        itself = (self.address, self.address)
        return Set(name="bridged", key=(self.address,), data=("verdict",)), Set(name="self", key=itself)

    def _of_bridges(self, declared: Set) -> Iterable[tuple[bytes, Element]]:
        """The elements of the bridges in a set; they do not depend on the pods of a bridge."""
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
        """The rules that log and drop matching packets independently of policies."""
        drop = f"{match} counter drop{comment}"
        if not (self.log.group and self.log.drops):
            return (drop,)
        limit = f"limit rate {self.log.rate}/second burst {self.log.burst} packets"
        return f'{match} {limit} log prefix "{prefix}" group {self.log.group}', drop

    @property
    def _to_bridged(self) -> tuple[str, ...]:
        """Rules for packets to a bridge; a packet to none of its pods is dropped, since it would reach all of them."""
        return f"{self.family} daddr vmap @bridged", "counter drop"

    @property
    def _itself(self) -> str:
        """The match of packets that a pod of a bridge sent to itself."""
        return f"{self.family} saddr . {self.family} daddr @self"

    @property
    def _neighbours(self) -> tuple[str, ...]:
        """The rules that accept neighbour discovery between pods of one bridge; ARP does not pass this hook."""
        accept = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept"
        return tuple(f'oifname "{bridge}" {accept}' for bridge in self.bridges if self.family == "ip6")

    @property
    def _guarded(self) -> bool:
        """Whether pods are forbidden to encapsulate."""
        return bool(self.encapsulation_ports)

    @property
    def _to_encapsulation(self) -> tuple[str, ...]:
        return ("meta l4proto != tcp jump encapsulation",) if self._guarded else ()

    def _encapsulation(self) -> tuple[Chain, ...]:
        """The chains that drop packets from pods to tunnels: a node unpacks them and no policy sees the inner packet.

        Most datagrams go to a port outside the range from the first to the last tunnel port; comparing the range costs
        less than a set look-up. Packets to addresses of pods are left to the policies. Packets to the node itself have
        a local destination, even where the address is in a range of pods.
        """
        ports = sorted(set(self.encapsulation_ports))
        span = f"{ports[0]}-{ports[-1]}" if len(ports) > 1 else str(ports[0])
        destination = f"{self.family} daddr @cluster-ranges fib daddr type != local"
        look = self.rules(
            f"udp dport != {span} return",
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
        """The match that exempts link-local sources: they stay on the pod's link, as neighbour discovery does."""
        return " ip6 saddr != fe80::/10" if self.family == "ip6" else ""

    @property
    def _some_source(self) -> str:
        """The match of packets with a source; the kernel reports multicast listeners of a new link without one."""
        return f"{self.family} saddr != {'::' if self.family == 'ip6' else '0.0.0.0'}"

    def _base(self, name: str, hook: str, priority: int, *texts: str) -> Chain:
        return Chain(name=name, type="filter", hook=hook, priority=priority, rules=self.rules(*texts))

    def placed(self, device: str, addresses: tuple[str, ...], chains: "Chains") -> dict[str, dict[bytes, Element]]:
        """The elements for a pod's device, by the name of the set."""
        name, own = device_key(device), self._own(addresses)
        return {
            **self.leading(device, addresses, chains, "Ingress"),
            **self.leading(device, addresses, chains, "Egress"),
            **(
                {"self": {source + destination: Element() for source in own for destination in own}}
                if device in self.bridges
                else {"pod-devices": {name: Element()}, "own": {name + address: Element() for address in own}}
            ),
        }

    def leading(
        self, device: str, addresses: tuple[str, ...], chains: "Chains", direction: str
    ) -> dict[str, dict[bytes, Element]]:
        """Those elements of :meth:`placed` that lead to the chains of one direction."""
        name, own = device_key(device), self._own(addresses)
        if direction == "Ingress":
            element = _leads(chains.ingress)
            return {"bridged": dict.fromkeys(own, element)} if device in self.bridges else {"ingress": {name: element}}
        sources, egress = [name + address for address in own], _leads(chains.egress)
        return {
            "egress": dict.fromkeys(sources, egress),
            SHARED: dict.fromkeys(own, egress),
            "to-node": dict.fromkeys(sources, _leads(chains.to_node)),
        }

    def _own(self, addresses: Iterable[str]) -> list[bytes]:
        """The addresses of this family, as keys."""
        return [self.key(address) for address in addresses if (":" in address) == (self.family == "ip6")]

    def hosts(self, key: ProfileKey) -> Set:
        """The map of a profile's exact addresses; it stays when other ranges make another chain."""
        return Set(name=f"{_word(key)}-{_short(_json(key))}{HOSTS}", key=(self.address,), data=("verdict",))

    def ranges(self, name: str) -> Set:
        """The map of the ranges of a profile's chain."""
        return Set(name=f"{name}-ranges", key=(self.address,), data=("verdict",), flags=("interval",))

    def profile_chain(self, name: str, key: ProfileKey, default: str) -> Chain:
        """The chain of a profile; ``default`` is the chain for all other peers."""
        known = "" if self.keep else "ct direction reply "
        rules = self.rules(
            f"{known}ct state established accept",
            "ct state invalid counter drop",
            f"{self._peer(key)} vmap @{self.hosts(key).name}",
            f"{self._peer(key)} vmap @{name}-ranges",
            f"goto {default}",
        )
        return Chain(name=name, comment=comment(key), rules=rules)

    def part(self, name: str, key: ProfileKey) -> tuple[Set, Chain]:
        """The map and the chain of a part of a profile's ranges; packets from elsewhere return."""
        declared = Set(name=f"{name}-map", key=(self.address,), data=("verdict",), flags=("interval",))
        return declared, Chain(name=name, rules=self.rules(f"{self._peer(key)} vmap @{declared.name}"))

    def _peer(self, key: ProfileKey) -> str:
        return f"{self.family} {'saddr' if key.direction == 'Ingress' else 'daddr'}"

    @property
    def _to_itself(self) -> tuple[str, ...]:
        """The rules that accept what a pod sends to itself through a Service: policies do not apply to that."""
        bridged = (f"ct status dnat {self._itself} accept",) if self.bridges else ()
        return f"ct status dnat oifname . {self.family} saddr @own accept", *bridged

    def node_chain(self, name: str, key: ProfileKey) -> Chain:
        """The chain for packets from pods of a profile to their own node: only the node's addresses are looked up."""
        rules = self.rules(f"{self.family} daddr @node-addresses goto {name}", "accept")
        return Chain(name=node_name(name), comment=comment(key), rules=rules)

    def key(self, address: str) -> bytes:
        """The key of an exact address in a profile's map."""
        return pack_ip(address)

    def ranged(self, first: int, last: int, chain: str) -> tuple[bytes, Element]:
        """The map element of a range of addresses, both ends included; a part of ranges is jumped to."""
        size = _BITS[self.family] // 8
        verdict = Verdict("jump" if chain.startswith(PART) else "goto", chain)
        return first.to_bytes(size, "big"), Element(verdict=verdict, end=last.to_bytes(size, "big"))

    def ports_sets(self, name: str, table: PortTable, key: ProfileKey) -> tuple[Set, ...]:
        """The maps of a table of ports, one for each protocol whose ports have different rulings.

        A map of single ports can be changed while packets use it. The kernel finds no interval while another one with
        the same first port takes its place, so a map of ranges is never changed.
        """
        sets = []
        for protocol in PROTOCOLS:
            entries = table.of_protocol(protocol)
            if len(entries) > 1:
                singles = table.single_ports(protocol)
                flags = ("interval",) if singles is None else ()
                declared = Set(name=map_name(name, protocol), key=("inet_service",), data=("verdict",), flags=flags)
                if singles is None:
                    sets.append(declared.with_elements(_ports_element(entry, key) for entry in entries))
                else:
                    elements = (port_element(port, ruling, key) for port, ruling in singles.ports.items())
                    sets.append(declared.with_elements(elements))
        return tuple(sets)

    def ports_chain(self, name: str, table: PortTable, key: ProfileKey) -> Chain:
        """The chain of a table of ports."""
        return Chain(name=name, rules=self.rules(*ports_texts(name, table, key)))

    def rule_chain(self, hit: RuleIdentity) -> Chain:
        """The chain of one rule, or of a denial because no rule allows."""
        name, verdict = rule_name(hit), "accept" if hit.ruling.accept else "drop"
        exempt = ("ct state related accept", *self._to_itself)
        exempt = exempt if hit.ruling.audit or not hit.ruling.accept else ()
        texts = (*exempt, *(self._logs(hit, name) if hit.logged(self.log) else ()), f"counter {verdict}")
        return Chain(name=name, comment=_cut(hit.text), rules=self.rules(*texts))

    def _logs(self, hit: RuleIdentity, name: str) -> tuple[str, ...]:
        """The log rules: for denials each packet within the rate limit; for accepted packets the first of a connection.

        Packets that pass only because the policy is in audit are also logged later, at most once a second.
        """
        limit = f"limit rate {self.log.rate}/second burst {self.log.burst} packets"
        log = f'log prefix "{name}" group {self.log.group}'
        if not hit.ruling.accept:
            return (f"{limit} {log}",)
        later = f"ct state != new limit rate 1/second {log}"
        return (f"ct state new {limit} {log}", *((later,) if hit.ruling.audit else ()))


class Chains(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The chains that the elements of a pod's device jump to; empty: no policy applies."""

    ingress: str
    egress: str
    to_node: str


def _leads(chain: str) -> Element:
    return leading_to(chain) if chain else Element(verdict=Verdict("accept"))


@lru_cache(maxsize=1 << 12)
def device_key(device: str) -> bytes:
    """The key of a device in a set."""
    return pack(("ifname",), (device,))


def leading_to(chain: str) -> Element:
    """The map element that jumps to a chain; ten thousand peers may share one."""
    return Element(verdict=Verdict("goto", chain))


SinglePortsByProtocol = Mapping[str, SinglePorts | None]
"""The single ports of each protocol; None: a map of ranges, or no map."""


def single_ports(table: PortTable) -> SinglePortsByProtocol:
    """The single ports of a table."""
    return {protocol: table.single_ports(protocol) for protocol in PROTOCOLS}


def ports_texts(
    name: str, table: PortTable, key: ProfileKey, singles: SinglePortsByProtocol | None = None
) -> tuple[str, ...]:
    """The rules of the chain of a table of ports; ``singles`` are those of the table, if they are known."""
    singles = singles or single_ports(table)

    def chain_of(ruling: Ruling) -> str:
        return rule_name(rule_identity(key, ruling))

    texts = []
    for protocol in PROTOCOLS:
        entries, word = table.of_protocol(protocol), protocol.lower()
        rest: Ruling | None = entries[0].ruling
        if len(entries) > 1:
            texts.append(f"{word} dport vmap @{map_name(name, protocol)}")
            own = singles[protocol]
            rest = own.rest if own is not None else None
        if rest is not None and rest != table.other:
            texts.append(f"meta l4proto {word} goto {chain_of(rest)}")
    return *texts, f"goto {chain_of(table.other)}"


def map_name(name: str, protocol: str) -> str:
    """The name of the map of a table's ports of one protocol."""
    return f"{name}-{protocol.lower()}"


def port_element(port: int, ruling: Ruling, key: ProfileKey) -> tuple[bytes, Element]:
    """The element of a single port."""
    return port.to_bytes(2, "big"), Element(verdict=Verdict("goto", rule_name(rule_identity(key, ruling))))


def _ports_element(entry: PortRuling, key: ProfileKey) -> tuple[bytes, Element]:
    """The element of a range of ports."""
    first, element = port_element(entry.first, entry.ruling, key)
    return first, msgspec.structs.replace(element, end=entry.last.to_bytes(2, "big"))


_COMMENT = 127
"""The longest comment that nft accepts, in bytes."""


def _cut(text: str) -> str:
    return text.encode()[:_COMMENT].decode(errors="ignore")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _word(key: ProfileKey) -> str:
    return "in" if key.direction == "Ingress" else "out"


def profile_name(key: ProfileKey, default: str, ranges: tuple[tuple[int, int, str], ...]) -> str:
    """The name of a profile's chain, given the chains for all other peers and for ranges of addresses."""
    return f"{_word(key)}-{_short(_json((key, default, ranges)))}"


def part_name(key: ProfileKey, ranges: tuple[tuple[int, int, str], ...]) -> str:
    """The name of the chain of a part of a profile's ranges, which profiles of the same direction share."""
    return f"{PART}{_short(_json((key.direction, ranges)))}"


def node_name(name: str) -> str:
    """The name of a profile's chain for its pods' own node."""
    return name.replace("out-", "node-")


def comment(key: ProfileKey) -> str:
    """The pods of a profile, as text for the chain's comment."""
    return _cut(subjects_text(key.subjects))


def ports_name(table: PortTable, key: ProfileKey, attempt: int = 0) -> str:
    """The name of a new chain of a table of ports; another attempt gives another name."""
    return f"{PORTS}{_short(msgspec.json.encode((key, table, attempt)).decode())}"


@lru_cache(maxsize=1 << 14)
def rule_name(hit: RuleIdentity) -> str:
    """The name of the chain of a rule."""
    return f"{RULE}{_short(msgspec.json.encode(hit).decode())}"
