"""hostPort: the table that sends ports of the node to pods.

Two maps per family, one for ports on a particular node address and one for ports on any; each hostPort is one map
element, so the number of rules is fixed. When a pod connects to its own hostPort, its source address is translated,
because the reply would otherwise not pass the node: a set holds the address pairs for this. Source of the design:
kindnet's portmap; cost 0.3 ms per change.

Connections of the node to its address 127.0.0.1 are sent to pods, too, with the node's address as source. The devices
of pods with hostPorts have ``route_localnet`` for the replies, and the chain ``guard`` drops packets to or from
127.0.0.0/8 that arrive by them (CVE-2020-8558). Linux has no such setting for ::1.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from msgspec.structs import replace

from podwire.cni.ipam.ledger import Attachment
from podwire.cni.spec import INVALID_CONFIG, PortMapping
from podwire.errors import CniError
from podwire.state.nft import Chain, Element, Set, Table
from podwire.state.nft_diff import AddElements, DeleteElements, Operation, Transaction
from podwire.state.nft_rules import Concat, Field, LiteralValue, Mapped, Masquerade, Match, Nat, Rule, SetRef, Verdict
from podwire.state.nft_types import unpack

TABLE = "podwire-hostport"
_FAMILIES = {4: ("ip", "ipv4_addr"), 6: ("ip6", "ipv6_addr")}
_PROTOCOLS = ("tcp", "udp", "sctp")
_PRIORITY_RAW, _PRIORITY_DSTNAT, _PRIORITY_SRCNAT = -300, -100, 100
_LOOPBACK, _LOOPBACK6 = "127.0.0.0/8", "::1"


def check(mapping: PortMapping) -> None:
    """Checks a mapping.

    Raises: CniError 7 that names the invalid field.
    """
    for name, port in (("hostPort", mapping.host_port), ("containerPort", mapping.container_port)):
        if not 1 <= port <= 65535:
            raise CniError(INVALID_CONFIG, f"portMappings: {name} {port} is not in 1..65535")
    if mapping.protocol.lower() not in _PROTOCOLS:
        raise CniError(INVALID_CONFIG, f"portMappings: protocol {mapping.protocol!r} is none of tcp, udp, sctp")
    try:
        if mapping.host_ip:
            ip_address(mapping.host_ip)
    except ValueError as problem:
        raise CniError(INVALID_CONFIG, f"portMappings: hostIP {mapping.host_ip!r} is not an address") from problem


def checked(mappings: Iterable[PortMapping]) -> tuple[PortMapping, ...]:
    """The mappings of one pod, without those that repeat another.

    Raises: CniError 7 that names an invalid field, or the hostPort that leads to two ports of the pod.
    """
    accepted: dict[tuple[str, int, str], PortMapping] = {}
    for mapping in mappings:
        check(mapping)
        claim = _claim(mapping)
        for other_claim, other in accepted.items():
            if _overlap(claim, other_claim) and mapping.container_port != other.container_port:
                targets = f"{other.container_port} and {mapping.container_port}"
                message = f"portMappings: hostPort {mapping.host_port} ({claim[0]}) leads to two ports of the pod"
                raise CniError(INVALID_CONFIG, message, f"containerPort {targets}")
        accepted.setdefault(claim, mapping)
    return tuple(accepted.values())


def holder_of(mappings: Iterable[PortMapping], attachments: Iterable[Attachment]) -> str:
    """Names the attachment that already holds one of the ports; empty when all ports are free."""
    claims = {_claim(mapping): mapping for mapping in mappings}
    if not claims:
        return ""
    numbers = {mapping.host_port for mapping in claims.values()}
    for attachment in attachments:
        for mapping in attachment.ports:
            if mapping.host_port not in numbers:
                continue
            for claim, request in claims.items():
                protocol = claim[0]
                if _overlap(claim, _claim(mapping)):
                    holder = f"{attachment.namespace}/{attachment.pod} ({attachment.key})"
                    return f"{protocol} port {request.host_port} is used by {holder}"
    return ""


def _overlap(claim: tuple[str, int, str], second: tuple[str, int, str]) -> bool:
    """Whether a packet may belong to two claims."""
    return claim[:2] == second[:2] and (not claim[2] or not second[2] or claim[2] == second[2])


def on_loopback(mappings: Iterable[PortMapping]) -> bool:
    """Whether a mapping is reached on the node's address 127.0.0.1."""
    hosts = (_claim(mapping)[2] for mapping in mappings)
    return any(not host or ip_address(host) in ip_network(_LOOPBACK) for host in hosts)


def covers(mapping: PortMapping, protocol: str, port: int, address: str) -> bool:
    """Whether packets of a protocol to an address and port of the node belong to a mapping."""
    return _overlap(_claim(mapping), (protocol, port, address))


def held_in(table: Table) -> dict[str, tuple[PortMapping, ...]]:
    """The hostPorts in a table, by the address of the pod that each of them leads to."""
    mappings: dict[str, dict[PortMapping, None]] = {}
    names = [f"{kind}{version}" for version in _FAMILIES for kind in ("any", "bound")]
    for entries in sorted((item for item in table.sets if item.name in names), key=lambda item: names.index(item.name)):
        for key, element in entries.elements.items():
            *host, protocol, port = unpack(entries.key, key)
            address, target = unpack(entries.data, element.data)
            mapping = PortMapping(
                host_port=int(port), container_port=int(target), protocol=protocol, host_ip="".join(host)
            )
            mappings.setdefault(address, {})[mapping] = None
    return {address: tuple(held) for address, held in mappings.items()}


def _claim(mapping: PortMapping) -> tuple[str, int, str]:
    anywhere = mapping.host_ip in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
    return (mapping.protocol.lower(), mapping.host_port, "" if anywhere else str(ip_address(mapping.host_ip)))


def plan(attachments: Iterable[Attachment]) -> Table | None:
    """The table for all pods with hostPorts; None when there is none."""
    return PortPlanner().plan(attachments)[0]


_Entries = dict[str, dict[bytes, Element]]
"""The elements of a pod by the name of the set."""


class _PodEntries(NamedTuple):
    """A pod with its elements and the IP versions of its addresses."""

    attachment: Attachment
    entries: _Entries
    versions: frozenset[int]


class PortPlanner:
    """Plans the table again and again: what stays is not computed again. Costs 0.1 us for each pod that stays."""

    def __init__(self) -> None:
        self._known: dict[int, _PodEntries] = {}
        """The pods of the last table with their entries, by the identity of the attachment, which they keep alive."""
        self._holders: Counter[tuple[str, bytes]] = Counter()
        """How many pods of the last table have an element, by the names of sets and the keys of elements."""
        self._versions: Counter[int] = Counter()
        """How many pods of the last table have addresses of an IP version."""
        self._table: Table | None = None

    def plan(self, attachments: Iterable[Attachment]) -> tuple[Table | None, Transaction | None]:
        """The table for all pods with hostPorts, and its difference from the last one.

        The table is None when no pod has a hostPort, the difference when the whole table differs.
        """
        present = {id(attachment): attachment for attachment in attachments if attachment.ports}
        gone = [self._known.pop(key) for key in self._known.keys() - present.keys()]
        fresh = present.keys() - self._known.keys()
        added = [
            _pod_entries(present[key]) for key in (fresh if len(fresh) == 1 else filter(fresh.__contains__, present))
        ]
        self._known.update((id(pod.attachment), pod) for pod in added)
        for pods, step in ((added, 1), (gone, -1)):
            for pod in pods:
                for name in _keys((pod.entries,)):
                    self._holders[name] += step
                for version in pod.versions:
                    self._versions[version] += step
        versions = tuple(sorted(version for version, number in self._versions.items() if number))
        last, change = self._table, None
        if not versions:
            self._table = None
            self._holders.clear()
        elif last is None or len(last.sets) != len(_frame(versions)[1]):
            self._table = _whole(versions, [pod.entries for pod in self._known.values()])
        else:
            new, lost = [pod.entries for pod in added], [pod.entries for pod in gone]
            shared = [pod.entries for pod in self._known.values()] if self._are_shared(lost) else []
            self._table, change = _changed(last, new, lost, shared)
        return self._table, change

    def _are_shared(self, gone: Iterable[_Entries]) -> bool:
        """Whether a pod that stays has an element of those that are gone; elements that nobody has are forgotten."""
        shared = False
        for name in _keys(gone):
            if self._holders[name] > 0:
                shared = True
            else:
                del self._holders[name]
        return shared


def _pod_entries(attachment: Attachment) -> _PodEntries:
    return _PodEntries(attachment, _entries_of(attachment), frozenset(ip.version for ip in attachment.ips))


def _keys(pods: Iterable[_Entries]) -> Iterator[tuple[str, bytes]]:
    """The name of the set and the key of each element."""
    return ((name, key) for entries in pods for name, elements in entries.items() for key in elements)


def _whole(versions: tuple[int, ...], pods: Iterable[_Entries]) -> Table:
    elements: _Entries = {}
    for entries in pods:
        for name, own in entries.items():
            elements.setdefault(name, {}).update(own)
    chains, declared = _frame(versions)
    sets = tuple(replace(item, elements=elements.get(item.name, {})) for item in declared)
    return Table(family="inet", name=TABLE, comment="podwire cni", chains=chains, sets=sets)


def _changed(
    table: Table, added: Sequence[_Entries], gone: Sequence[_Entries], remaining: Sequence[_Entries]
) -> tuple[Table, Transaction]:
    """A table with the entries of other pods, and the operations for it.

    Elements of the pods that are gone stay where they are in ``remaining``, the entries of other pods.
    """
    deletions: list[Operation] = []
    additions: list[Operation] = []
    sets = []
    for item in table.sets:
        lost = {key: element for entries in gone for key, element in entries.get(item.name, {}).items()}
        if lost:
            for entries in remaining:
                for key, element in entries.get(item.name, {}).items():
                    if lost.get(key) == element:
                        del lost[key]  # It belongs to another pod, too.
        new = {key: element for entries in added for key, element in entries.get(item.name, {}).items()}
        new = {key: element for key, element in new.items() if key in lost or key not in item.elements}
        if lost:
            deletions.append(DeleteElements(item.without_elements(), lost))
        if new:
            additions.append(AddElements(item.without_elements(), new))
        if lost or new:
            elements = (
                {key: element for key, element in item.elements.items() if key not in lost} if lost else item.elements
            )
            item = replace(item, elements={**elements, **new})
        sets.append(item)
    return replace(table, sets=tuple(sets)), Transaction(table.family, table.name, (*deletions, *additions))


def _entries_of(attachment: Attachment) -> _Entries:
    """The elements of one pod."""
    elements: _Entries = {}

    def add(to: Set, key: str, value: str = "", comment: str = "") -> None:
        elements.setdefault(to.name, {}).update((to.element(key, value, comment),))

    comment = f"{attachment.namespace}/{attachment.pod}"[:100]
    if on_loopback(attachment.ports):
        add(_DEVICES, attachment.device)
    for ip, text in zip(attachment.ips, attachment.addresses, strict=True):
        bound, anywhere, own = _sets(ip.version)
        add(own, f"{text} . {text}")
        for mapping in attachment.ports:
            protocol, port, host = _claim(mapping)
            value = f"{text} . {mapping.container_port}"
            if not host:
                add(anywhere, f"{protocol} . {port}", value, comment)
            elif ip_address(host).version == ip.version:
                add(bound, f"{host} . {protocol} . {port}", value, comment)
    return elements


_DEVICES = Set(name="devices", key=("ifname",))
"""The devices of pods with a hostPort that is reached on 127.0.0.1."""


@lru_cache(2)
def _sets(version: int) -> tuple[Set, Set, Set]:
    """The sets of a family: ports of one address of the node, ports of all of them, addresses of the pods."""
    _, kind = _FAMILIES[version]
    target = (kind, "inet_service")
    bound = Set(name=f"bound{version}", key=(kind, "inet_proto", "inet_service"), data=target)
    anywhere = Set(name=f"any{version}", key=("inet_proto", "inet_service"), data=target)
    return bound, anywhere, Set(name=f"own{version}", key=(kind, kind))


@lru_cache(4)
def _frame(versions: tuple[int, ...]) -> tuple[tuple[Chain, ...], tuple[Set, ...]]:
    """The chains and the declarations of the sets for pods of these IP versions."""
    sets: list[Set] = [_DEVICES]
    translate: list[Rule] = []
    masquerade: list[Rule] = [_from_loopback(_DEVICES.name)]
    for version in versions:
        sets += _sets(version)
        rules_of_family, hairpin_rule = _rules(version)
        translate += rules_of_family
        masquerade.append(hairpin_rule)
    rules, behind = tuple(translate), tuple(masquerade)
    chains = (
        Chain(name="guard", type="filter", hook="prerouting", priority=_PRIORITY_RAW, rules=_guard(_DEVICES.name)),
        Chain(name="prerouting", type="nat", hook="prerouting", priority=_PRIORITY_DSTNAT, rules=rules),
        Chain(name="output", type="nat", hook="output", priority=_PRIORITY_DSTNAT, rules=rules),
        Chain(name="postrouting", type="nat", hook="postrouting", priority=_PRIORITY_SRCNAT, rules=behind),
    )
    return chains, tuple(sets)


def _guard(devices: str) -> tuple[Rule, ...]:
    """Packets that arrive by the devices of pods neither come from the node's loopback network nor go there."""
    arrived = Match(Field("iifname"), SetRef(devices))
    fields = (Field("ip daddr"), Field("ip saddr"))
    return tuple(Rule((arrived, Match(field, LiteralValue(_LOOPBACK)), Verdict("drop"))) for field in fields)


def _from_loopback(devices: str) -> Rule:
    sent = (Match(Field("oifname"), SetRef(devices)), Match(Field("ip saddr"), LiteralValue(_LOOPBACK)))
    return Rule((*sent, Masquerade()), "the node to a hostPort on its loopback address")


def _rules(version: int) -> tuple[list[Rule], Rule]:
    """The rules of a family: those that lead ports to pods, and the one for a pod's own ports."""
    nft, _ = _FAMILIES[version]
    bound, anywhere, own = _sets(version)
    destination, protocol_field, port_field = Field(f"{nft} daddr"), Field("meta l4proto"), Field("th dport")
    local = Match(Field("fib daddr type"), LiteralValue("local"))
    translate = [
        Rule((Nat("dnat", nft, Mapped(Concat((destination, protocol_field, port_field)), bound.name), ports=True),)),
        Rule(
            (
                Match(Field("meta nfproto"), LiteralValue("ipv4"))
                if version == 4
                else Match(destination, LiteralValue(_LOOPBACK6), "!="),
                local,
                Nat("dnat", nft, Mapped(Concat((protocol_field, port_field)), anywhere.name), ports=True),
            )
        ),
    ]
    back = Rule(
        (Match(Concat((Field(f"{nft} saddr"), destination)), SetRef(own.name)), Masquerade()),
        "a pod to its own port on the node",
    )
    return translate, back
