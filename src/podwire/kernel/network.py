"""Reads, adds and reconciles the network state of one namespace.

:func:`apply` takes the whole share of one owner: dump, diff, one batch per kind of step. A second call changes nothing,
or restores objects that another program removed. Steps that change or delete devices or remove addresses have side
effects in the kernel: a device that goes down loses its routes and neighbours, and an address takes along the routes
that prefer it.
After such a round the state is read and compared again, at most twice.

Cost (2 cores, Linux 6.18, bench/netlink.py): 1,000 vxlan peers, which are 3,000 objects, 45 ms the first time and
10-18 ms when nothing differs; one further peer by :func:`add` 0.5-1 ms. A failure affects
one object; the others are applied.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, NamedTuple

from msgspec.structs import replace

from podwire.errors import KernelError, KernelExists, KernelNotFound
from podwire.kernel import link_codec, neighbour_lists, route_codec, route_lists, rule_codec, sysctl, tun
from podwire.kernel.attributes import Run
from podwire.kernel.failure import refusal
from podwire.kernel.link_kinds import codec_of
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.netns import open_netns
from podwire.kernel.uapi import (
    AF_INET,
    AF_INET6,
    NLM_F_APPEND,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REPLACE,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELNEIGH,
    RTM_DELROUTE,
    RTM_DELRULE,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETNEIGH,
    RTM_GETROUTE,
    RTM_GETRULE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    RTM_NEWRULE,
    RTM_SETLINK,
)
from podwire.state.changes import Change, Changes, diff, narrowed
from podwire.state.link import Link
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.route import ZERO_MAC, Address, Fdb, FibRule, Neighbour, Route, Sysctl

_ROUNDS = 3

DELETE_GROUP = 0x706F6477
"""The group of devices that are deleted together ("podw"); no device stays in it."""


class Report(NamedTuple):
    """The applied changes in their order, and the errors of the refused ones."""

    applied: tuple[Change, ...] = ()
    failed: tuple[KernelError, ...] = ()

    def check(self) -> "Report":
        """Returns this report when nothing failed.

        Raises: the first failure, with the further failures as notes.
        """
        if not self.failed:
            return self
        first, *further = self.failed
        for failure in further:
            first.add_note(str(failure))
        raise first


class _Devices(NamedTuple):
    """The devices of a namespace, and their interface indexes by name and back."""

    links: tuple[Link, ...]
    indexes: dict[str, int]
    names: dict[int, str]


# Reading


def read(netlink: Netlink, owner: OwnerMark | None = None, sysctls: tuple[str, ...] = ()) -> NetworkState:
    """The state of the socket's namespace; with an owner only its routes, but all other objects.

    Objects that the kernel makes by itself are left out: local routes, connected routes, learned neighbours. Only the
    sysctls with these paths are read.

    Raises: KernelError.
    """
    return _read(netlink, _read_devices(netlink), owner, sysctls)


def read_paths(netlink: Netlink) -> NetworkState:
    """Devices, addresses, routes and rules alone, which show by which device packets leave.

    The kernel keeps the neighbours of all namespaces in one table and walks through all of it for each list.

    Raises: KernelError.
    """
    devices = _read_devices(netlink)
    addresses, routes = _read_addresses(netlink, devices), _read_routes(netlink, devices, 0)
    return NetworkState(links=devices.links, addresses=addresses, routes=routes, rules=_read_rules(netlink))


def read_underlay(netlink: Netlink, passed_over: Collection[int] = ()) -> NetworkState:
    """Devices, addresses, and the routes of the main table whose protocol is none of ``passed_over``.

    The other routes are not decoded.

    Raises: KernelError.
    """
    devices = _read_devices(netlink)
    payloads: list[bytes] = []
    for family in (AF_INET, AF_INET6):
        message = Message(RTM_GETROUTE, 0, route_codec.encode_route_dump(family), "list", "routes")
        payloads += netlink.dump(message, lambda payload: route_codec.is_path(payload, passed_over))
    routes = _known(route_lists.decode_routes(payloads, devices.names))
    return NetworkState(links=devices.links, addresses=_read_addresses(netlink, devices), routes=routes)


def _read(netlink: Netlink, devices: _Devices, owner: OwnerMark | None, sysctls: tuple[str, ...]) -> NetworkState:
    proto = owner.route_protocol if owner else 0
    names = devices.names
    neighbours = [*_dump_neighbours(netlink, names, proxy=False), *_dump_neighbours(netlink, names, proxy=True)]
    return NetworkState(
        links=devices.links,
        addresses=_read_addresses(netlink, devices),
        routes=_read_routes(netlink, devices, proto),
        neighbours=_known(neighbours),
        fdb=_known(_dump_fdb(netlink, devices)),
        rules=_read_rules(netlink),
        sysctls=sysctl.snapshot(sysctls, netlink.netns) if sysctls else (),
    )


def _read_addresses(netlink: Netlink, devices: _Devices) -> tuple[Address, ...]:
    payloads = _dump(netlink, RTM_GETADDR, route_codec.encode_address_dump(), "addresses")
    return _known(route_codec.decode_address(payload, devices.names) for payload in payloads)


def _read_routes(netlink: Netlink, devices: _Devices, proto: int) -> tuple[Route, ...]:
    dumped: list[Run] = []
    for family in (AF_INET, AF_INET6):
        body = route_codec.encode_route_dump(family, proto=proto)
        dumped += netlink.dump_runs(Message(RTM_GETROUTE, 0, body, "list", "routes"))
    return _known(route_lists.decode_runs(dumped, devices.names))


def read_destinations(netlink: Netlink, proto: int) -> frozenset[str]:
    """The destinations of the routes of one protocol, without those that podwire cannot represent.

    Raises: KernelError.
    """
    return frozenset(route.dst for route in _read_routes(netlink, _read_devices(netlink), proto))


def _read_rules(netlink: Netlink) -> tuple[FibRule, ...]:
    payloads: list[bytes] = []
    for family in (AF_INET, AF_INET6):
        payloads += _dump(netlink, RTM_GETRULE, rule_codec.encode_rule_dump(family), "rules")
    return _known(map(rule_codec.decode_rule, payloads))


def _known(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([value for value in values if value is not None])


def _dump(netlink: Netlink, kind: int, body: bytes, subject: str) -> list[bytes]:
    return netlink.dump(Message(kind, 0, body, "list", subject))


def _dump_neighbours(netlink: Netlink, names: Mapping[int, str], *, proxy: bool) -> Iterator[Neighbour | None]:
    body = route_codec.encode_neighbour_dump(proxy=proxy)
    return neighbour_lists.decode_neighbours(_dump(netlink, RTM_GETNEIGH, body, "neighbours"), names)


def _dump_fdb(netlink: Netlink, devices: _Devices) -> Iterator[Fdb | None]:
    """The forwarding entries of tunnel devices, and of bridges for locked ports; other devices learn their entries."""
    for link in devices.links:
        forwards = codec_of(link.kind).forwards
        if forwards or link.locked:
            body = route_codec.encode_fdb_dump(link.index)
            payloads = _dump(netlink, RTM_GETNEIGH, body, f"forwarding entries of {link.name}")
            for entry in neighbour_lists.decode_fdb(payloads, devices.names):
                yield entry if entry is None or entry.bridge or forwards else None


def read_links(netlink: Netlink) -> tuple[Link, ...]:
    """The devices alone.

    Raises: KernelError.
    """
    return _read_devices(netlink).links


def read_link(netlink: Netlink, name: str) -> Link:
    """One device by name; its master, peer and lower device are not resolved.

    Raises: KernelNotFound, KernelError.
    """
    return read_raw_link(netlink, name).link


def read_raw_link(netlink: Netlink, name: str) -> link_codec.ReadLink:
    """One device with its relations as interface indexes and its operstate.

    Raises: KernelNotFound, KernelError.
    """
    body = link_codec.encode_get(name)
    return link_codec.decode(netlink.get(Message(RTM_GETLINK, 0, body, "read", f"link {name}"))[1])


def _read_devices(netlink: Netlink) -> _Devices:
    devices = [link_codec.decode(payload) for payload in _dump(netlink, RTM_GETLINK, link_codec.encode_dump(), "links")]
    names = {entry.link.index: entry.link.name for entry in devices}
    links = tuple(_resolve(entry, names) for entry in devices)
    return _Devices(links, {name: index for index, name in names.items()}, names)


def _resolve(entry: link_codec.ReadLink, names: Mapping[int, str]) -> Link:
    link = entry.link
    if entry.master:
        link = replace(link, master=names.get(entry.master, ""))
    lower = names.get(entry.lower, "") if entry.lower and not entry.lower_elsewhere else ""
    if not lower:
        return link
    return replace(link, peer=lower) if link.kind == "veth" else link.over(lower)


# Writing


def apply(netlink: Netlink, desired: NetworkState, owner: OwnerMark, held: Collection[tuple[Any, ...]] = ()) -> Report:
    """Makes the namespace hold exactly ``desired`` under the owner's mark.

    Objects of ``desired`` without a mark get the owner's. Objects of other owners are not changed; when one is in the
    way, the report has a KernelExists. A failure affects one object; the others are applied. ``held`` are the keys of
    routes that the owner had in the kernel before: where another program has replaced one, the owner takes it back.

    Raises: KernelError when the state cannot be read.
    """
    desired = owner.stamp(desired)
    applied: list[Change] = []
    failed: tuple[KernelError, ...] = ()
    paths = tuple(x.path for x in desired.sysctls)
    for _round in range(_ROUNDS):
        devices = _read_devices(netlink)
        changes = diff(_read(netlink, devices, owner, paths), desired, owner)
        report = _execute(netlink, changes, devices.indexes, held)
        applied += report.applied
        failed = report.failed
        if not any(_has_side_effects(change) for change in report.applied):
            break
    return Report(tuple(applied), failed)


def follow(netlink: Netlink, before: NetworkState, desired: NetworkState, owner: OwnerMark) -> Report:
    """Takes the steps from ``before``, the owner's state in the kernel, to ``desired``, without reading the kernel.

    The cost depends on the difference; :func:`apply` reads everything. After a failure :func:`apply` restores the
    state.

    Raises: KernelError when the devices cannot be read.
    """
    before, desired = narrowed(before, desired)
    changes = diff(owner.stamp(before), owner.stamp(desired), owner)
    return _execute(netlink, changes, _read_devices(netlink).indexes)


def plan(netlink: Netlink, desired: NetworkState, owner: OwnerMark) -> Changes:
    """The changes that :func:`apply` would make.

    Raises: KernelError when the state cannot be read.
    """
    paths = tuple(x.path for x in desired.sysctls)
    return diff(read(netlink, owner, paths), owner.stamp(desired), owner)


def remove(netlink: Netlink, owner: OwnerMark) -> Report:
    """Deletes all objects that carry the owner's mark."""
    return apply(netlink, NetworkState(), owner)


def add(netlink: Netlink, state: NetworkState) -> Report:
    """Adds the objects of ``state`` to the namespace without reading it.

    Existing addresses, neighbours and forwarding entries are replaced; existing links, routes and rules are failures.
    """
    return _execute(netlink, diff(NetworkState(), state), _read_devices(netlink).indexes)


def replace_routes(netlink: Netlink, routes: Iterable[Route]) -> Report:
    """Adds routes, each in place of the route of any owner to the same destination, without a moment with neither."""
    steps = tuple(Change("replace", route) for route in routes)
    return _execute(netlink, Changes(steps), _read_devices(netlink).indexes)


_ADDRESSED_KINDS = ("sit",)
"""Kinds of devices to which the kernel itself gives addresses when they are new (net/ipv6/addrconf.c)."""


def _has_side_effects(change: Change) -> bool:
    """Whether a step may change other objects of the owner; a new device does so only with addresses of its own."""
    value = change.value
    if type(value) is Link:
        return change.verb != "add" or value.kind in _ADDRESSED_KINDS
    return type(value) is Address and change.verb == "delete"


def _execute(
    netlink: Netlink, changes: Changes, indexes: dict[str, int], held: Collection[tuple[Any, ...]] = ()
) -> Report:
    run = _Run(netlink)
    run.failed += (
        KernelExists("add", str(conflict.value), errno.EEXIST, conflict.reason) for conflict in changes.conflicts
    )
    for step in changes.steps:
        try:
            if type(step[1]) in _TYPES:
                run.waiting.append((step, _message(step, indexes, held)))
            else:
                run.take(step, indexes)
        except KernelError as failure:
            run.failed.append(failure)
    deletions = list(takewhile(lambda waiting: _deletes_link(waiting[0]), reversed(run.waiting)))
    if len(deletions) > 1:
        run.waiting[-len(deletions) :] = _delete_together(run.waiting[-len(deletions) :])
    run.flush()
    return Report(tuple(run.applied), tuple(run.failed))


class _Run:
    """The steps that are done, and those that wait for the next batch with their messages."""

    def __init__(self, netlink: Netlink) -> None:
        self.applied: list[Change] = []
        self.failed: list[KernelError] = []
        self.waiting: list[tuple[Change, Message]] = []
        self._netlink = netlink

    def take(self, step: Change, indexes: dict[str, int]) -> None:
        """Takes a step that concerns a device or a sysctl.

        Raises: KernelError.
        """
        verb, value = step
        if isinstance(value, Link) and verb != "add":
            self.waiting += ((step, message) for message in _link_messages(verb, value, indexes))
            return
        self.flush()
        if isinstance(value, Link):
            _make_link(self._netlink, value, indexes)
        elif isinstance(value, Sysctl):
            sysctl.write(value.path, value.value, self._netlink.netns)
        self.applied.append(step)

    def flush(self) -> None:
        """Sends the messages that wait."""
        applied, waiting = self.applied, self.waiting
        failures = self._netlink.batch([message for _, message in waiting])
        self.failed += (x for at, x in failures.items() if not _is_already_deleted(waiting[at][0], x))
        before = applied[-1] if applied else None
        for at, (step, _) in enumerate(waiting):  # the messages of one step follow each other
            if step is not before and at not in failures:
                applied.append(step)
                before = step
        waiting.clear()


def _deletes_link(step: Change) -> bool:
    return step.verb == "delete" and isinstance(step.value, Link)


def _delete_together(waiting: list[tuple[Change, Message]]) -> list[tuple[Change, Message]]:
    """Deletes several devices as one group; one by one, the kernel takes 16-22 ms for each device."""
    moved = [
        (step, Message(RTM_SETLINK, 0, link_codec.encode_group(step.value.index, DELETE_GROUP), "delete", step.value))
        for step, _ in waiting
        if isinstance(step.value, Link)
    ]
    everything = Message(RTM_DELLINK, 0, link_codec.encode_delete_group(DELETE_GROUP), "delete", "group of links")
    return [*moved, (waiting[-1][0], everything)]


def _is_already_deleted(step: Change, failure: KernelError) -> bool:
    """Whether the failure means that an object to delete does not exist."""
    return step.verb == "delete" and isinstance(failure, KernelNotFound)


def _make_link(netlink: Netlink, link: Link, indexes: dict[str, int]) -> None:
    """Creates a device and learns its interface index, which later steps need."""
    operation, subject = "add", str(link)
    with contextlib.ExitStack() as stack:
        descriptor = -1
        if link.peer_netns:
            descriptor = open_netns(link.peer_netns)
            stack.callback(os.close, descriptor)
        if link.kind == "tun":
            tun.create_persistent(link.name, netlink.netns, mode=link.mode or "tun")
        else:
            with _unknown_device_errors(operation, subject):
                body = link_codec.encode_add(link, indexes, descriptor)
            flags = NLM_F_CREATE | NLM_F_EXCL
            netlink.request(Message(RTM_NEWLINK, flags, body, operation, link))
    indexes[link.name] = read_link(netlink, link.name).index
    if link.kind == "veth" and link.peer and not link.peer_netns:
        indexes[link.peer] = read_link(netlink, link.peer).index
    if link.alias or link.hairpin or link.locked or link.kind == "tun":
        for failure in netlink.batch(_set_messages(link, indexes)).values():
            raise failure


@contextlib.contextmanager
def _unknown_device_errors(operation: str, subject: object) -> Iterator[None]:
    """Turns an encoder's KeyError for an unknown device into the error that the kernel would give."""
    try:
        yield
    except KeyError as missing:
        raise refusal(operation, str(subject), errno.ENODEV, f"no device {missing.args[0]}") from missing
    except ValueError as wrong:
        raise refusal(operation, str(subject), errno.EINVAL, str(wrong)) from wrong


def _set_messages(link: Link, indexes: Mapping[str, int]) -> list[Message]:
    with _unknown_device_errors("set", str(link)):
        index = indexes[link.name]
        messages = [Message(RTM_SETLINK, 0, link_codec.encode_set(link, index, indexes), "set", link)]
        if link.master:
            messages.append(Message(RTM_SETLINK, 0, link_codec.encode_set_port(link, index), "set port", link))
        return messages


_TYPES: dict[type, tuple[Callable[[Any, Mapping[str, int]], bytes], int, int]] = {
    Address: (route_codec.encode_address, RTM_NEWADDR, RTM_DELADDR),
    Route: (route_codec.encode_route, RTM_NEWROUTE, RTM_DELROUTE),
    Neighbour: (route_codec.encode_neighbour, RTM_NEWNEIGH, RTM_DELNEIGH),
    Fdb: (route_codec.encode_fdb, RTM_NEWNEIGH, RTM_DELNEIGH),
    FibRule: (lambda rule, _indexes: rule_codec.encode_rule(rule), RTM_NEWRULE, RTM_DELRULE),
}
"""By type of object: the encoder of the message, and the messages that add and delete the object."""


def _link_messages(verb: str, link: Link, indexes: Mapping[str, int]) -> list[Message]:
    """The requests that change or delete a device, in order."""
    if verb == "replace":
        with _unknown_device_errors("change", str(link)):
            body = link_codec.encode_change(link, indexes[link.name], indexes)
        return [Message(RTM_NEWLINK, 0, body, "change", link)]
    if verb != "delete":
        return _set_messages(link, indexes)
    return [Message(RTM_DELLINK, 0, link_codec.header(link.index or indexes.get(link.name, 0)), "delete", link)]


def _message(step: Change, indexes: Mapping[str, int], held: Collection[tuple[Any, ...]]) -> Message:
    """The request of one step.

    Raises: KernelNotFound when a device that the object names does not exist.
    """
    verb, value = step
    encoder, new, delete = _TYPES[type(value)]
    try:
        body = encoder(value, indexes)
    except (KeyError, ValueError):
        with _unknown_device_errors(verb, value):
            raise
    if verb == "delete":
        return Message(delete, 0, body, "delete", value)
    return Message(new, NLM_F_CREATE | _new_flags(step, held), body, verb, value)


def _new_flags(step: Change, held: Collection[tuple[Any, ...]]) -> int:
    """Flags of a creation: a new route must not replace another owner's; replacing a route must leave no gap."""
    verb, value = step
    if type(value) is Route:
        exclusive = verb == "add" and not (held and value.key in held)
        return NLM_F_EXCL if exclusive else NLM_F_REPLACE
    if type(value) is FibRule and verb == "add":
        return NLM_F_EXCL
    return NLM_F_APPEND if type(value) is Fdb and value.mac == ZERO_MAC else NLM_F_REPLACE


def encode(value: Address | Route | Neighbour | Fdb | FibRule, indexes: Mapping[str, int]) -> bytes:
    """The body of the message that adds or deletes the object.

    Raises: KeyError with the name of a device that is not in ``indexes``.
    """
    return _TYPES[type(value)][0](value, indexes)
