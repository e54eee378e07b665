"""The differences between a kernel's state and the desired state, as lines with a sign.

A line with ``+`` is an object that the next run of a reconciler would add, a line with ``-`` an object that it would
delete. A changed object has one line of each sign, with only the fields that differ. Not compared: objects with another
mark than the share's, elements that packets add to dynamic sets, and counters. The lines are in the order of the kinds:
objects of ip(8) first, then the tables.
"""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from podwire.state import changes
from podwire.state.bpf import BpfFolder
from podwire.state.changes import Change
from podwire.state.ipset import IpSet
from podwire.state.iptables import Ruleset
from podwire.state.ipvs import VirtualServer
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import Chain, Set, Table
from podwire.state.nft_diff import element_changes
from podwire.state.offload import Offload
from podwire.state.ovs import OvsSwitch
from podwire.state.udptunnel import UdpTunnel
from podwire.state.wireguard import WireGuard

Sign = Literal["+", "-"]


class Difference(NamedTuple):
    """One line: its location (``routing: table inet podwire-masquerade, set pods``), sign and text."""

    where: str
    sign: Sign
    text: str


def render(differences: Iterable[Difference]) -> Iterator[str]:
    """The lines as a unified diff, with a header before the lines of each location."""
    last = ""
    for difference in differences:
        if difference.where != last:
            last = difference.where
            yield f"@@ {last} @@"
        yield f"{difference.sign}{difference.text}"


def compare_network(title: str, present: NetworkState, desired: NetworkState, owner: OwnerMark) -> Iterator[Difference]:
    """The differences of objects of ip(8) that carry the owner's mark."""
    plan = changes.diff(present, owner.stamp(desired), owner)
    for conflict in plan.conflicts:
        yield Difference(title, "+", f"{conflict.value}  # {conflict.reason}")
    objects = _by_key(present, owner)
    for step in plan.steps:
        yield from (Difference(title, sign, text) for sign, text in _step(step, objects))


def _by_key(present: NetworkState, owner: OwnerMark) -> dict[Any, Any]:
    """The objects of the kernel by type and key; of two with the same key the object of the owner."""
    objects: dict[Any, Any] = {}
    for value in present.objects():
        key = _key(value)
        if key not in objects or getattr(value, "proto", 0) == owner.route_protocol:
            objects[key] = value
    return objects


def _key(value: Any) -> Any:
    return (type(value), value.name if isinstance(value, Link) else value.key)


def _step(step: Change, objects: dict[Any, Any]) -> Iterator[tuple[Sign, str]]:
    existing = objects.get(_key(step.value))
    if step.verb == "delete":
        yield "-", str(step.value)
        return
    if existing is not None and step.verb == "set" and isinstance(step.value, Link):
        desired = replace(step.value, index=0)
        fields = changes.differences(existing, desired)
        yield "-", str(replace(desired, **{field: getattr(existing, field) for field in fields}))
        yield "+", str(desired)
        return
    if existing is not None and step.verb == "replace":
        yield "-", str(existing)
    yield "+", str(step.value)


def compare_table(title: str, present: Table | None, desired: Table) -> Iterator[Difference]:
    """The differences of one table."""
    location = f"{title}: table {desired.family} {desired.name}"
    if present is None:
        yield from (Difference(location, "+", line) for line in desired.lines())
        return
    if present.comment != desired.comment:
        yield from _replaced(location, [f'comment "{present.comment}"'], [f'comment "{desired.comment}"'])
    old_sets, new_sets = ({declared.name: declared for declared in table.sets} for table in (present, desired))
    for name in sorted(old_sets.keys() | new_sets.keys()):
        yield from _compare_set(location, old_sets.get(name), new_sets.get(name))
    old_chains, new_chains = ({chain.name: chain for chain in table.chains} for table in (present, desired))
    for name in sorted(old_chains.keys() | new_chains.keys()):
        yield from _compare_chain(location, old_chains.get(name), new_chains.get(name))


def compare_ruleset(title: str, present: Ruleset, desired: Ruleset) -> Iterator[Difference]:
    """The differences of one table of iptables, including the order of rules."""
    location = f"{title}: {desired.title}"
    yield from _replaced(location, sorted(_jumps(present)), sorted(_jumps(desired)))
    for chain in sorted(present.chains.keys() | desired.chains.keys()):
        old, new = (_chain_of(table, chain) for table in (present, desired))
        yield from _replaced(f"{location}, chain {chain}", old, new)


def compare_ipset(title: str, present: IpSet | None, desired: IpSet) -> Iterator[Difference]:
    """The differences of one set; the remaining time of elements is not compared."""
    location = f"{title}: set {desired.name}"
    if present is None or present.declaration != desired.declaration:
        yield from _replaced(location, [present.created()] if present else [], [desired.created()])
    elements = present.elements if present is not None and present.declaration == desired.declaration else {}
    for key in sorted(elements.keys() | desired.elements.keys()):
        if key not in desired.elements and present is not None:
            yield Difference(location, "-", present.added(key))
        elif key not in elements:
            yield Difference(location, "+", desired.added(key))
        elif present is not None and elements[key].mark != desired.elements[key].mark:
            yield Difference(location, "-", present.added(key))
            yield Difference(location, "+", desired.added(key))


def compare_servers(
    title: str, present: Iterable[VirtualServer], desired: Iterable[VirtualServer]
) -> Iterator[Difference]:
    """The differences of virtual servers; an unwanted real server of weight 0 drains and is not a difference."""
    present_servers, desired_servers = ({server.key: server for server in servers} for servers in (present, desired))
    for key in sorted(present_servers.keys() | desired_servers.keys()):
        old, new = present_servers.get(key), desired_servers.get(key)
        endpoints = {destination.endpoint for destination in new.destinations} if new is not None else set()
        if old is not None:
            compared = tuple(
                destination
                for destination in old.destinations
                if destination.weight or destination.endpoint in endpoints
            )
            if new is None and old.destinations and not compared:
                continue
            old = replace(old, destinations=compared)
        before, after = (list(server.lines()) if server is not None else [] for server in (old, new))
        yield from _replaced(f"{title}: ipvs", before, after)


def compare_wireguard(title: str, present: Iterable[WireGuard], desired: Iterable[WireGuard]) -> Iterator[Difference]:
    """The differences of WireGuard devices and their peers."""
    held = {device.device: device for device in present}
    for device in desired:
        old = held.get(device.device)
        before = list(old.lines()) if old is not None else []
        yield from _replaced(f"{title}: wireguard {device.device}", before, list(device.lines()))


def compare_udp(title: str, present: Iterable[UdpTunnel], desired: Iterable[UdpTunnel]) -> Iterator[Difference]:
    """The differences of tunnels of the routing backend udp and their peers."""
    held = {device.device: device for device in present}
    for tunnel in desired:
        old = held.get(tunnel.device)
        before = list(old.lines()) if old is not None else []
        yield from _replaced(f"{title}: udp {tunnel.device}", before, list(tunnel.lines()))


def compare_offloads(title: str, present: Iterable[Offload], desired: Iterable[Offload]) -> Iterator[Difference]:
    """The differences of the checksum offload of devices."""
    held = {old.device: old for old in present}
    for offload in desired:
        old = held.get(offload.device)
        yield from _replaced(title, list(old.lines()) if old is not None else [], list(offload.lines()))


def compare_ovs(title: str, present: Iterable[OvsSwitch], desired: Iterable[OvsSwitch]) -> Iterator[Difference]:
    """The differences of the bridges, ports, flows and tunnel routes of Open vSwitch."""
    held = {switch.control: switch for switch in present}
    for switch in desired:
        old = held.get(switch.control)
        before = list(old.lines()) if old is not None else []
        yield from _replaced(f"{title}: ovs", before, list(switch.lines()))


def compare_bpf(title: str, present: Iterable[BpfFolder], desired: Iterable[BpfFolder]) -> Iterator[Difference]:
    """The differences of BPF programs, maps and attachments."""
    held = {folder.folder: folder for folder in present}
    for folder in desired:
        old = held.get(folder.folder)
        before = list(old.lines()) if old is not None else []
        yield from _replaced(f"{title}: bpf {folder.folder}", before, list(folder.lines()))


def _chain_of(ruleset: Ruleset, chain: str) -> list[str]:
    if chain not in ruleset.chains:
        return []
    return [f":{chain}", *(f"-A {chain} {rule}" for rule in ruleset.chains[chain])]


def _jumps(ruleset: Ruleset) -> Iterator[str]:
    return (f"-A {chain} {rule}" for chain, rule in ruleset.jumps)


def surplus_table(title: str, present: Table) -> Iterator[Difference]:
    """The differences for a table that should not exist."""
    location = f"{title}: table {present.family} {present.name}"
    yield from (Difference(location, "-", line) for line in present.canonical().lines())


def _compare_set(location: str, old: Set | None, new: Set | None) -> Iterator[Difference]:
    either = new or old
    assert either is not None, "one of the two exists"
    location = f"{location}, {'map' if either.data else 'set'} {either.name}"
    if old is None or new is None:
        lines = [line.strip() for line in either.lines()]
        yield from _replaced(location, lines if old else [], lines if new else [])
        return
    before, after = ([line.strip() for line in x.without_elements().lines()] for x in (old, new))
    if before != after:
        yield from _replaced(location, before, after)
    removed, added = element_changes(old, new)
    deleted, added_elements = removed.elements if removed else {}, added.elements if added else {}
    for key in sorted(deleted.keys() | added_elements.keys()):
        if key in deleted:
            yield Difference(location, "-", old.element_text(key, deleted[key]))
        if key in added_elements:
            yield Difference(location, "+", new.element_text(key, added_elements[key]))


def _compare_chain(location: str, old: Chain | None, new: Chain | None) -> Iterator[Difference]:
    either = new or old
    assert either is not None, "one of the two exists"
    yield from _replaced(f"{location}, chain {either.name}", _chain_lines(old), _chain_lines(new))


def _chain_lines(chain: Chain | None) -> list[str]:
    if chain is None:
        return []
    canonical = replace(chain, rules=tuple(rule.without_counts for rule in chain.rules))
    return [line.strip() for line in canonical.lines()]


def _replaced(location: str, old: list[str], new: list[str]) -> Iterator[Difference]:
    for verb, low, high, first, last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if verb != "equal":
            yield from (Difference(location, "-", line) for line in old[low:high])
            yield from (Difference(location, "+", line) for line in new[first:last])
