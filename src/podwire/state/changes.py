"""The difference of two network states, as an ordered list of changes.

The order keeps traffic flowing, and no object refers to a missing one: sysctls of the whole namespace; devices (lower
devices and bridges first); sysctls of devices; addresses; neighbours, forwarding entries, routes (routes to devices
before routes through gateways); rules; then deletions of rules, routes, forwarding entries, neighbours, and at last
devices. A device that must be recreated is deleted right before. A changed route is replaced, never deleted and added,
so no packet finds it missing.

``str()`` of the changes is a shell script.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from podwire.state import grammar
from podwire.state.link import Link
from podwire.state.link_kinds import kind_of
from podwire.state.network import NetworkState, Object, OwnerMark, in_order
from podwire.state.ordered import difference
from podwire.state.route import Address, Fdb, FibRule, Neighbour, Route, Sysctl

Verb = Literal["add", "replace", "set", "delete"]


class Change(NamedTuple):
    """One step: ``set`` adjusts an existing device, ``replace`` replaces the value with the same key.

    ``replace`` of a device changes the options of its kind, without ``set``'s settings.
    """

    verb: Verb
    value: Object

    def __str__(self) -> str:
        return "\n".join(_commands(self))


class ForeignConflict(NamedTuple):
    """A desired object that cannot be created, because an object of another owner has its key; that object is kept."""

    value: Object
    reason: str

    def __str__(self) -> str:
        return f"# {self.value}: {self.reason}"


class Changes(NamedTuple):
    """All steps in their order, and the conflicts with other owners."""

    steps: tuple[Change, ...] = ()
    conflicts: tuple[ForeignConflict, ...] = ()

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in (*self.conflicts, *self.steps))

    def __bool__(self) -> bool:
        return bool(self.steps or self.conflicts)


def diff(present: NetworkState, desired: NetworkState, owner: OwnerMark | None = None) -> Changes:
    """The steps from ``present`` to ``desired``.

    With an owner, ``desired`` is that owner's whole share (stamped with its mark), and objects of other owners in
    ``present`` stay. Without an owner, every object of ``present`` that is not in ``desired`` is deleted, except
    devices without a kind and sysctls.
    """
    owned = [link for link in present.links if owner is None or owner.owns_link(link)]
    links, conflicts = _diff_links(present, desired, owned)
    remade = {step.value.name for step in links if step.verb == "delete" and isinstance(step.value, Link)}
    if not remade:
        present, desired = narrowed(present, desired)
    share = owner.share(present) if owner else present
    deleted = remade | {x.name for x in _unwanted_links(share, desired)}
    added_sysctls = _diff_sysctls(present, desired)
    addresses = _diff_addresses(present, desired, share, deleted, remade)
    entries = [
        *_added(present.neighbours, desired.neighbours, remade),
        *_added(present.fdb, desired.fdb, remade),
        *_devices_first(_added(present.routes, desired.routes, remade, owner)),
    ]
    removed = [
        *_removed(share.rules, desired.rules, ()),
        *_removed(share.routes, desired.routes, deleted),
        *_removed(share.fdb, desired.fdb, deleted),
        *_removed(share.neighbours, desired.neighbours, deleted),
    ]
    steps = [
        *(step for step in added_sysctls if not _of_device(step.value)),
        *links,
        *(step for step in added_sysctls if _of_device(step.value)),
        *addresses,
        *entries,
        *_added(present.rules, desired.rules, ()),
        *removed,
        *(Change("delete", x) for x in _unwanted_links(share, desired)),
    ]
    return Changes(tuple(steps), tuple(conflicts))


def narrowed(before: NetworkState, after: NetworkState) -> tuple[NetworkState, NetworkState]:
    """Both states without the routes, neighbours and forwarding entries whose key has the same objects in both.

    The difference is the same while no device is recreated. Cost: 10 ns for each object that is the same in memory.
    """
    fields_before = {field: getattr(before, field) for field in NetworkState.__struct_fields__}
    fields_after = {field: getattr(after, field) for field in NetworkState.__struct_fields__}
    for field, prefix in _KEY_PREFIXES.items():
        old, new = fields_before[field], fields_after[field]
        if not old or not new:
            continue  # nothing is in both
        gone, added = difference(old, new, prefix)
        prefixes = {prefix(value) for value in (*gone, *added)}
        fields_before[field] = _with_prefix(old, prefixes, prefix)
        fields_after[field] = _with_prefix(new, prefixes, prefix)
    return in_order(fields_before), in_order(fields_after)


_KEY_PREFIXES: dict[str, Callable[[Any], Any]] = {
    "routes": attrgetter("dst"),
    "neighbours": attrgetter("link", "ip"),
    "fdb": attrgetter("link", "mac"),
}
"""The first fields of these objects, by which they are in order; objects with one key have the same."""
_FEW = 64


def _with_prefix(values: tuple[Any, ...], prefixes: set[Any], prefix: Callable[[Any], Any]) -> tuple[Any, ...]:
    if len(prefixes) * _FEW > len(values):
        return tuple(value for value in values if prefix(value) in prefixes)
    same: list[Any] = []
    for prefix_of_value in sorted(prefixes):
        start = bisect_left(values, prefix_of_value, key=prefix)
        same += values[start : bisect_right(values, prefix_of_value, lo=start, key=prefix)]
    return tuple(same)


def _devices_first(steps: Iterable[Change]) -> list[Change]:
    """Steps for routes: those to a device come before those through a gateway, which they may lead to."""
    to_devices: list[Change] = []
    through_gateways: list[Change] = []
    for step in steps:
        (through_gateways if isinstance(step[1], Route) and step[1].via else to_devices).append(step)
    return to_devices + through_gateways


def _of_device(value: Object) -> bool:
    """Whether a sysctl belongs to one device: net/ipv4/conf/DEVICE/..., net/ipv6/neigh/DEVICE/..."""
    components = value.path.split("/") if isinstance(value, Sysctl) else []
    return len(components) > 4 and components[2] in ("conf", "neigh") and components[3] not in ("all", "default")


def _diff_sysctls(present: NetworkState, desired: NetworkState) -> list[Change]:
    values = {x.path: x.value.split() for x in present.sysctls}
    return [Change("replace", x) for x in desired.sysctls if values.get(x.path) != x.value.split()]


# Devices


def _diff_links(
    current_state: NetworkState, desired: NetworkState, owned_links: Iterable[Link]
) -> tuple[list[Change], list[ForeignConflict]]:
    present = {x.name: x for x in current_state.links}
    owned = {x.name for x in owned_links}
    steps: list[Change] = []
    conflicts: list[ForeignConflict] = []
    created: set[str] = set()
    for link in creation_order(desired.links):
        existing = present.get(link.name)
        if link.name in created or (existing is None and not link.kind):
            steps.append(Change("set", link))
        elif existing is None:
            steps.append(Change("add", link))
            created |= {link.peer} if link.kind == "veth" and not link.peer_netns else set()
        elif link.name not in owned and _has_other_options(existing, link):
            conflicts.append(ForeignConflict(link, f"another owner has a device of this name: {existing}"))
        elif must_be_remade(existing, link):
            steps += [Change("delete", existing), Change("add", link)]
            created |= {link.peer} if link.kind == "veth" and not link.peer_netns else set()
        else:
            numbered = replace(link, index=existing.index)
            steps += [Change("replace", numbered)] * _has_other_options(existing, link)
            steps += [Change("set", numbered)] * bool(differences(existing, link))
    return steps, conflicts


def _has_other_options(existing: Link, link: Link) -> bool:
    """Whether a device differs in the options of its kind."""
    return must_be_remade(existing, link) or (bool(link.kind) and existing.attributes != link.attributes)


def _unwanted_links(share: NetworkState, desired: NetworkState) -> list[Link]:
    desired_names = {x.name for x in desired.links}
    desired_names |= {x.peer for x in desired.links if x.kind == "veth" and not x.peer_netns}
    return [x for x in share.links if x.name not in desired_names and x.kind]


def must_be_remade(existing: Link, link: Link) -> bool:
    """Whether a device differs in a setting that is fixed at its creation."""
    if not link.kind:
        return False
    if existing.kind != link.kind:
        return True
    if existing.attributes != link.attributes:
        return not (existing.attributes and link.attributes and existing.attributes.adjusts_to(link.attributes))
    if link.kind == "veth":
        elsewhere = link.peer_netns != existing.peer_netns
        return bool(link.peer) and existing.peer != ("" if elsewhere else link.peer)
    return any(getattr(link, x) and getattr(existing, x) != getattr(link, x) for x in ("device", "mode"))


def differences(existing: Link, link: Link) -> tuple[str, ...]:
    """The adjustable fields of ``link`` that are set and differ."""
    set_fields = [x for x in ("mtu", "mac", "alias", "group") if getattr(link, x)] + ["up"]
    if link.kind or link.master:
        set_fields += ["master", "hairpin", "locked"] if link.master else ["master"]
    return tuple(x for x in set_fields if getattr(existing, x) != getattr(link, x))


def creation_order(links: Sequence[Link]) -> list[Link]:
    """The links in an order in which each one follows its bridge and its lower device."""
    by_name = {x.name: x for x in links}
    ordered: dict[str, Link] = {}

    def place(link: Link, above: tuple[str, ...]) -> None:
        for name in (link.master, link.lower):
            if name in by_name and name not in ordered and name not in above:
                place(by_name[name], (*above, link.name))
        ordered.setdefault(link.name, link)

    for link in links:
        place(link, (link.name,))
    return list(ordered.values())


# Everything else


def _diff_addresses(
    present: NetworkState, desired: NetworkState, share: NetworkState, deleted: set[str], remade: set[str]
) -> Iterator[Change]:
    """Deleted first: deleting an IPv4 address deletes others of its subnet unless promote_secondaries is set."""
    existing_by_key = {x.key: x for x in present.addresses if x.link not in remade}
    desired_by_key = {x.key: x for x in desired.addresses}
    for key, address in existing_by_key.items():
        same = key in desired_by_key and _same_address(address, desired_by_key[key])
        if address.link not in deleted and not same and (key in desired_by_key or address in share.addresses):
            yield Change("delete", address)
    for key, address in desired_by_key.items():
        if key not in existing_by_key or not _same_address(existing_by_key[key], address):
            yield Change("add", address)


def _same_address(existing: Address, address: Address) -> bool:
    """Whether they are equal except for the mark, which old kernels do not store."""
    return replace(existing, proto=0) == replace(address, proto=0)


def _added(
    present: Sequence[Any], desired: Sequence[Any], remade: Iterable[str], owner: OwnerMark | None = None
) -> Iterator[Change]:
    if not remade and present == desired:
        return  # 4 ms for 10,000 routes, instead of 30
    if not present:
        yield from (Change("add", x) for x in desired)
        return
    existing_by_key: dict[Any, list[Any]] = {}
    for x in present:
        existing_by_key.setdefault(x.key, []).append(x)
    for x in desired:
        same_key = existing_by_key.get(x.key, ()) if existing_by_key else ()
        if same_key and any(_same(y, x) for y in same_key) and getattr(x, "link", "") not in remade:
            continue
        owned = not same_key or not owner or any(y.proto == owner.route_protocol for y in same_key)
        yield Change("replace" if same_key and owned else "add", x)


def _same(existing: Any, desired: Any) -> bool:
    """Whether they are equal; a desired route without a device equals a route on any device."""
    if isinstance(desired, Route) and desired.via and not desired.link:
        existing = replace(existing, link="")
    return bool(existing == desired)


def _removed(share: Sequence[Any], desired: Sequence[Any], deleted: Iterable[str]) -> Iterator[Change]:
    if not share or share == desired:
        return
    desired_keys = {x.key for x in desired}
    for x in share:
        if x.key not in desired_keys and getattr(x, "link", "") not in deleted:
            yield Change("delete", x)


# Commands


def _commands(change: Change) -> list[str]:
    value = change.value
    match value:
        case Link():
            return _link_commands(change.verb, value)
        case Address():
            dad = " nodad" if ":" in value.cidr and value.nodad and change.verb == "add" else ""
            return [f"ip address {change.verb} {_without_first(replace(value, nodad=True), 1)}{dad}"]
        case Route():
            family = "-6 " if ":" in value.dst else ""
            return [f"ip {family}route {change.verb} {_without_first(value, 1)}"]
        case Neighbour():
            state = " nud permanent" if value.permanent and not value.proxy and change.verb != "delete" else ""
            return [f"ip neighbour {change.verb} {_without_first(value, 1)}{state}"]
        case Fdb():
            verb = "append" if change.verb == "add" and not value.bridge else change.verb
            table = "static" if value.bridge else "self permanent"  # "master" is a word of the value.
            return [f"bridge fdb {verb} {_without_first(value, 1)} {table}"]
        case FibRule():
            family = "-6 " if value.v6 else ""
            rule = _without_first(value, 1).replace(" -6", "").replace(" mask ", "/")
            return [f"ip {family}rule {'add' if change.verb == 'replace' else change.verb} priority {rule}"]
        case Sysctl():
            return [f"sysctl -w {value.path}={grammar.quote(value.value)}"]


def _without_first(value: Object, skip: int) -> str:
    return str(value).split(" ", skip)[skip]


def _link_commands(verb: Verb, link: Link) -> list[str]:
    if verb == "delete":
        return [f"ip link delete {link.name}"]
    if verb == "replace" and link.attributes is not None:
        options = kind_of(link.kind).render_adjustable(link.attributes)
        return [" ".join(("ip link set dev", link.name, "type", link.kind, *options))]
    commands = []
    if verb == "add":
        arguments = ["ip link add", link.name, "type", link.kind]
        arguments += kind_of(link.kind).render(link.attributes or link)
        commands.append(" ".join(arguments))
    settings = str(replace(link, kind="", attributes=None, index=0)).split(" ", 2)[2]
    return [*commands, f"ip link set {link.name} {settings}"]
