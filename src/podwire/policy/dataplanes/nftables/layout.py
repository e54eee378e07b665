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

A map of ranges never changes: other ranges are another map, and the chain of the profile gets rules that look up there.
A packet keeps to the rules of the moment at which its evaluation began, so it meets the old map or the new one. The
exact addresses of a profile change one by one. So do the single ports of a table, if no packet that was led to the
table is led to another chain after the change (:mod:`podwire.policy.tablechains`). So a packet is decided either by the
state before a change or by the state after it, never by a mixture.

Default deny in doubt: a packet from a pod's device with a source address that does not belong to the pod is dropped. So
is a packet with an address of this node's pods that comes from or goes to a device which is not in the maps. The policy
of base chains is accept, and rules drop, because replacing rules under a policy of drop loses packets in transit.
"""

import hashlib
import re
from collections.abc import Iterable

import msgspec

from podwire.policy.dataplane import FamilyFacts
from podwire.policy.profilenames import ProfileName
from podwire.policy.verdicts import subjects_text
from podwire.state.address import pack_ip
from podwire.state.nft import Chain, Element, Set
from podwire.state.nft_rules import Rule, Verdict
from podwire.state.nft_text import parse_rule

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
            *((pods.with_elements(pods.element(text) for text in self.cluster_ranges),) if self.guarded else ()),
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

    @property
    def bridge_itself(self) -> str:
        """The match of packets that a pod of a bridge sent to itself."""
        return f"{self.family} saddr . {self.family} daddr @self"

    @property
    def guarded(self) -> bool:
        """Whether pods are forbidden to encapsulate."""
        return bool(self.encapsulation_ports)

    def hosts(self, profile: ProfileName) -> Set:
        """The map of a profile's exact addresses; it stays when other ranges make another chain."""
        return Set(name=f"{profile.text}{HOSTS}", key=(self.address,), data=("verdict",))

    def ranges(self, profile: ProfileName, ranges: tuple[tuple[int, int, str], ...]) -> Set:
        """The map of the ranges of a profile; other ranges or chains make another name."""
        declared = Set(
            name=f"{profile.text}-ranges-{digest(_json(ranges))}",
            key=(self.address,),
            data=("verdict",),
            flags=("interval",),
        )
        return declared.with_elements(self.ranged(*entry) for entry in ranges)

    def profile_chain(self, name: str, profile: ProfileName, ranges: str, default: str, comment: str) -> Chain:
        """The chain of a profile; ``ranges`` is its map of ranges, ``default`` the chain for all other peers."""
        known = "" if self.keep else "ct direction reply "
        rules = self.rules(
            f"{known}ct state established accept",
            "ct state invalid counter drop",
            f"{self._peer(profile)} vmap @{self.hosts(profile).name}",
            f"{self._peer(profile)} vmap @{ranges}",
            f"goto {default}",
        )
        return Chain(name=name, comment=comment, rules=rules)

    def part(self, name: str, profile: ProfileName) -> tuple[Set, Chain]:
        """The map and the chain of a part of a profile's ranges; packets from elsewhere return."""
        declared = Set(name=f"{name}-map", key=(self.address,), data=("verdict",), flags=("interval",))
        return declared, Chain(name=name, rules=self.rules(f"{self._peer(profile)} vmap @{declared.name}"))

    def _peer(self, profile: ProfileName) -> str:
        return f"{self.family} {'saddr' if profile.direction == 'Ingress' else 'daddr'}"

    def node_chain(self, name: str, comment: str) -> Chain:
        """The chain for packets from pods of a profile to their own node: only the node's addresses are looked up."""
        rules = self.rules(f"{self.family} daddr @node-addresses goto {name}", "accept")
        return Chain(name=node_name(name), comment=comment, rules=rules)

    def key(self, address: str) -> bytes:
        """The key of an exact address in a profile's map."""
        return pack_ip(address)

    def ranged(self, first: int, last: int, chain: str) -> tuple[bytes, Element]:
        """The map element of a range of addresses, both ends included; a part of ranges is jumped to."""
        size = _BITS[self.family] // 8
        verdict = Verdict("jump" if chain.startswith(PART) else "goto", chain)
        return first.to_bytes(size, "big"), Element(verdict=verdict, end=last.to_bytes(size, "big"))


def leading_to(chain: str) -> Element:
    """The map element that jumps to a chain; ten thousand peers may share one."""
    return Element(verdict=Verdict("goto", chain))


_COMMENT = 127
"""The longest comment that nft accepts, in bytes."""


def comment_text(text: str) -> str:
    """The text, cut to the length that nft accepts as a comment."""
    return text.encode()[:_COMMENT].decode(errors="ignore")


def digest(text: str) -> str:
    """A short hash for the name of a chain."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def profile_name(profile: ProfileName, comment: str = "") -> str:
    """The name of a profile's chain.

    The comment of a chain cannot be changed, so another comment makes another chain.
    """
    word = profile.text.partition("-")[0]
    return f"{word}-{digest(_json((profile, comment)))}"


def is_profile(chain: str) -> bool:
    """Whether a chain of this name is the chain of a profile."""
    return chain.startswith(("in-", "out-"))


def part_name(profile: ProfileName, ranges: tuple[tuple[int, int, str], ...]) -> str:
    """The name of the chain of a part of a profile's ranges, which profiles of the same direction share."""
    return f"{PART}{digest(_json((profile.direction, ranges)))}"


def node_name(name: str) -> str:
    """The name of a profile's chain for its pods' own node."""
    return name.replace("out-", "node-")


def comment_of(subjects: tuple[str, ...]) -> str:
    """The pods that selectors in their JSON form select, as the comment of a chain."""
    return comment_text(subjects_text(subjects))


_HOSTS_OF = re.compile(rf"@((?:in|out)-([0-9a-z]+)){HOSTS}\b")


def profile_of(chain: Chain) -> ProfileName | None:
    """The profile of a chain of the kernel; None: it is not the chain of a profile."""
    for rule in chain.rules:
        match = _HOSTS_OF.search(f"{rule}")
        if match is not None:
            return ProfileName("Ingress" if match[1].startswith("in-") else "Egress", match[2])
    return None
