"""The difference of two network states, as an ordered list of changes.

The order keeps traffic alive and never points at something that is not there: sysctls of the whole namespace;
devices (lower ones and bridges first); sysctls of devices; addresses; neighbours, forwarding entries, routes (to
devices, then by gateways); rules; then what goes away: rules, routes, forwarding entries, neighbours, and at last
devices. A device that has to be made anew is deleted right before. A route that changes is replaced, never deleted
and added again: no packet meets a moment without it.

``str()`` of the changes is a script for a shell.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from podwire.state import grammar
from podwire.state.link import Link
from podwire.state.link_kinds import kind_of
from podwire.state.network import NetworkState, Object, OwnerMark
from podwire.state.route import Address, Fdb, FibRule, Neighbour, Route, Sysctl

Verb = Literal["add", "replace", "set", "delete"]


class Change(NamedTuple):
    """One step: ``set`` adjusts an existing device, ``replace`` puts a value in the place of one with its key."""

    verb: Verb
    value: Object

    def __str__(self) -> str:
        return "\n".join(_commands(self))


class ForeignConflict(NamedTuple):
    """A wanted object that cannot be made, because an object of another owner has its key; that object is kept."""

    value: Object
    reason: str

    def __str__(self) -> str:
        return f"# {self.value}: {self.reason}"


class Changes(NamedTuple):
    """All steps in the order in which they are to be taken, and what cannot be done."""

    steps: tuple[Change, ...] = ()
    conflicts: tuple[ForeignConflict, ...] = ()

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in (*self.conflicts, *self.steps))

    def __bool__(self) -> bool:
        return bool(self.steps or self.conflicts)


def diff(have: NetworkState, want: NetworkState, owner: OwnerMark | None = None) -> Changes:
    """The steps from ``have`` to ``want``.

    With an owner, ``want`` is that owner's whole share (to be stamped before) and everything foreign in
    ``have`` stays; without, everything in ``have`` that is not in ``want`` goes (devices without a kind and
    sysctls excepted).
    """
    share = owner.share(have) if owner else have
    links, conflicts = _diff_links(have, want, share)
    remade = {step.value.name for step in links if step.verb == "delete" and isinstance(step.value, Link)}
    gone = remade | {x.name for x in _unwanted_links(share, want)}
    added_sysctls = _diff_sysctls(have, want)
    addresses = _diff_addresses(have, want, share, gone, remade)
    entries = [
        *_added(have.neighbours, want.neighbours, remade),
        *_added(have.fdb, want.fdb, remade),
        *sorted(_added(have.routes, want.routes, remade, owner), key=_by_gateway),
    ]
    removed = [
        *_removed(share.rules, want.rules, ()),
        *_removed(share.routes, want.routes, gone),
        *_removed(share.fdb, want.fdb, gone),
        *_removed(share.neighbours, want.neighbours, gone),
    ]
    steps = [
        *(step for step in added_sysctls if not _of_device(step.value)),
        *links,
        *(step for step in added_sysctls if _of_device(step.value)),
        *addresses,
        *entries,
        *_added(have.rules, want.rules, ()),
        *removed,
        *(Change("delete", x) for x in _unwanted_links(share, want)),
    ]
    return Changes(tuple(steps), tuple(conflicts))


def _by_gateway(step: Change) -> bool:
    """Routes straight to a device come before those by way of a gateway that they may lead to."""
    return isinstance(step.value, Route) and bool(step.value.via)


def _of_device(value: Object) -> bool:
    """Whether a sysctl is that of one device: net/ipv4/conf/DEVICE/..., net/ipv6/neigh/DEVICE/..."""
    words = value.path.split("/") if isinstance(value, Sysctl) else []
    return len(words) > 4 and words[2] in ("conf", "neigh") and words[3] not in ("all", "default")


def _diff_sysctls(have: NetworkState, want: NetworkState) -> list[Change]:
    values = {x.path: x.value.split() for x in have.sysctls}
    return [Change("replace", x) for x in want.sysctls if values.get(x.path) != x.value.split()]


# Devices


def _diff_links(
    have: NetworkState, want: NetworkState, share: NetworkState
) -> tuple[list[Change], list[ForeignConflict]]:
    present = {x.name: x for x in have.links}
    owned = {x.name for x in share.links}
    steps: list[Change] = []
    conflicts: list[ForeignConflict] = []
    made: set[str] = set()
    for link in creation_order(want.links):
        there = present.get(link.name)
        if link.name in made or (there is None and not link.kind):
            steps.append(Change("set", link))
        elif there is None:
            steps.append(Change("add", link))
            made |= {link.peer} if link.kind == "veth" and not link.peer_netns else set()
        elif must_be_remade(there, link):
            if link.name not in owned:
                conflicts.append(ForeignConflict(link, f"another owner has a device of this name: {there}"))
                continue
            steps += [Change("delete", there), Change("add", link)]
            made |= {link.peer} if link.kind == "veth" and not link.peer_netns else set()
        elif differences(there, link):
            steps.append(Change("set", replace(link, index=there.index)))
    return steps, conflicts


def _unwanted_links(share: NetworkState, want: NetworkState) -> list[Link]:
    wanted = {x.name for x in want.links}
    wanted |= {x.peer for x in want.links if x.kind == "veth" and not x.peer_netns}
    return [x for x in share.links if x.name not in wanted and x.kind]


def must_be_remade(there: Link, link: Link) -> bool:
    """Whether a device differs in something that is fixed when it is made."""
    if not link.kind:
        return False
    if there.kind != link.kind or there.attributes != link.attributes:
        return True
    if link.kind == "veth":
        elsewhere = link.peer_netns != there.peer_netns
        return bool(link.peer) and there.peer != ("" if elsewhere else link.peer)
    return any(getattr(link, x) and getattr(there, x) != getattr(link, x) for x in ("device", "mode"))


def differences(there: Link, link: Link) -> tuple[str, ...]:
    """The adjustable fields of ``link`` that were asked for and are different."""
    asked = [x for x in ("mtu", "mac", "alias", "group") if getattr(link, x)] + ["up"]
    if link.kind or link.master:
        asked += ["master", "hairpin"] if link.master else ["master"]
    return tuple(x for x in asked if getattr(there, x) != getattr(link, x))


def creation_order(links: Sequence[Link]) -> list[Link]:
    """The links so that each comes after its bridge and its lower device."""
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
    have: NetworkState, want: NetworkState, share: NetworkState, gone: set[str], remade: set[str]
) -> Iterator[Change]:
    """Deleted first: an IPv4 address takes the others of its subnet with it unless promote_secondaries is set."""
    there = {x.key: x for x in have.addresses if x.link not in remade}
    wanted = {x.key: x for x in want.addresses}
    for key, address in there.items():
        same = key in wanted and _same_address(address, wanted[key])
        if address.link not in gone and not same and (key in wanted or address in share.addresses):
            yield Change("delete", address)
    for key, address in wanted.items():
        if key not in there or not _same_address(there[key], address):
            yield Change("add", address)


def _same_address(there: Address, address: Address) -> bool:
    """Whether they are equal but for the mark, which old kernels do not keep."""
    return replace(there, proto=0) == replace(address, proto=0)


def _added(
    have: Sequence[Any], want: Sequence[Any], remade: Iterable[str], owner: OwnerMark | None = None
) -> Iterator[Change]:
    there: dict[Any, list[Any]] = {}
    for x in have:
        there.setdefault(x.key, []).append(x)
    for x in want:
        held = there.get(x.key, [])
        if any(_same(y, x) for y in held) and getattr(x, "link", "") not in remade:
            continue
        ours = not owner or any(y.proto == owner.route_protocol for y in held)
        yield Change("replace" if held and ours else "add", x)


def _same(there: Any, wanted: Any) -> bool:
    """Whether the two are equal; a wanted route without a device equals one on the device that the kernel chose."""
    if isinstance(wanted, Route) and wanted.via and not wanted.link:
        there = replace(there, link="")
    return bool(there == wanted)


def _removed(share: Sequence[Any], want: Sequence[Any], gone: Iterable[str]) -> Iterator[Change]:
    wanted = {x.key for x in want}
    for x in share:
        if x.key not in wanted and getattr(x, "link", "") not in gone:
            yield Change("delete", x)


# Commands


def _commands(change: Change) -> list[str]:
    value = change.value
    match value:
        case Link():
            return _link_commands(change.verb, value)
        case Address():
            dad = " nodad" if ":" in value.cidr and value.nodad and change.verb == "add" else ""
            return [f"ip address {change.verb} {_words(replace(value, nodad=True), 1)}{dad}"]
        case Route():
            family = "-6 " if ":" in value.dst else ""
            return [f"ip {family}route {change.verb} {_words(value, 1)}"]
        case Neighbour():
            state = " nud permanent" if value.permanent and not value.proxy and change.verb != "delete" else ""
            return [f"ip neighbour {change.verb} {_words(value, 1)}{state}"]
        case Fdb():
            verb = "append" if change.verb == "add" else change.verb
            return [f"bridge fdb {verb} {_words(value, 1)} self permanent"]
        case FibRule():
            family = "-6 " if value.v6 else ""
            rule = _words(value, 1).replace(" -6", "").replace(" mask ", "/")
            return [f"ip {family}rule {'add' if change.verb == 'replace' else change.verb} priority {rule}"]
        case Sysctl():
            return [f"sysctl -w {value.path}={grammar.quote(value.value)}"]


def _words(value: Object, skip: int) -> str:
    return str(value).split(" ", skip)[skip]


def _link_commands(verb: Verb, link: Link) -> list[str]:
    if verb == "delete":
        return [f"ip link delete {link.name}"]
    commands = []
    if verb == "add":
        words = ["ip link add", link.name, "type", link.kind]
        words += kind_of(link.kind).render(link.attributes or link)
        commands.append(" ".join(words))
    settings = str(replace(link, kind="", attributes=None, index=0)).split(" ", 2)[2]
    return [*commands, f"ip link set {link.name} {settings}"]
