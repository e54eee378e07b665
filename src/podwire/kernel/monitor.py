"""Changes of a namespace as they happen: rtnetlink's multicast groups.

The kernel tells every listener of a group about each change, so a reconciler need not poll: somebody deletes a
device, and it is back before the next packet. A notification says what changed, not what to do: the listener
reads the state again. When more comes than the socket holds, the kernel drops the rest and says so (ENOBUFS): that
is an :class:`Event` of kind ``lost``, upon which everything may have changed.

Of sysctls the kernel tells forwarding, rp_filter and a few more (netconf.h), one message a changed parameter. Those of
a new device come in one message with all of them, which is left out: the device is announced as well.

One's own changes are announced as well; :func:`Monitor.ignore` leaves out those of a socket for routes and
rules, where the kernel names the author (for devices, addresses and neighbours it does not).
"""

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from podwire.errors import ProtocolError
from podwire.kernel import attributes, link_codec, netns, route_codec
from podwire.kernel.attributes import NLMSGHDR
from podwire.kernel.failure import refusal
from podwire.kernel.uapi import (
    FRA_PROTOCOL,
    IFA_PROTO,
    NDA_PROTOCOL,
    NETCONFA_IFINDEX,
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_ROUTE,
    RTA_OIF,
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELNEIGH,
    RTM_DELROUTE,
    RTM_DELRULE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWNETCONF,
    RTM_NEWROUTE,
    RTM_NEWRULE,
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_NETCONF,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV4_RULE,
    RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV6_NETCONF,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_IPV6_RULE,
    RTNLGRP_LINK,
    RTNLGRP_NEIGH,
    SOL_NETLINK,
)

Subject = Literal["link", "address", "route", "neighbour", "rule", "sysctl"]

GROUPS: dict[Subject, tuple[int, ...]] = {
    "link": (RTNLGRP_LINK,),
    "address": (RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR),
    "route": (RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE),
    "neighbour": (RTNLGRP_NEIGH,),
    "rule": (RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE),
    "sysctl": (RTNLGRP_IPV4_NETCONF, RTNLGRP_IPV6_NETCONF),
}

_KINDS: dict[int, tuple[Subject, bool]] = {
    RTM_NEWLINK: ("link", False),
    RTM_DELLINK: ("link", True),
    RTM_NEWADDR: ("address", False),
    RTM_DELADDR: ("address", True),
    RTM_NEWROUTE: ("route", False),
    RTM_DELROUTE: ("route", True),
    RTM_NEWNEIGH: ("neighbour", False),
    RTM_DELNEIGH: ("neighbour", True),
    RTM_NEWRULE: ("rule", False),
    RTM_DELRULE: ("rule", True),
    RTM_NEWNETCONF: ("sysctl", False),
}

_NETCONFMSG_SIZE = 4
"""struct netconfmsg is one byte, padded (NLMSG_ALIGN)."""

_ONE_PARAMETER = 2
"""Attributes of a message about one parameter: the device and the value."""

_SPECIAL = 1 << 31
"""NETCONFA_IFINDEX_ALL and _DEFAULT are negative."""

_BUFFER = 1 << 20
_RECEIVE = 1 << 16


class Event(NamedTuple):
    """One change: what kind of object, whether it went away, its device's number, its protocol (owner mark).

    ``lost`` stands for changes that were missed. ``device`` and ``proto`` are 0 where they do not apply; a sysctl of
    the whole namespace has device 0.
    """

    kind: Subject | Literal["lost"]
    removed: bool = False
    device: int = 0
    proto: int = 0


class Monitor:
    """A subscription in one network namespace. Needs no privileges."""

    def __init__(self, netns_path: Path | str | int | None = None, subjects: Iterable[Subject] = tuple(GROUPS)) -> None:
        groups = [group for subject in subjects for group in GROUPS[subject]]
        self._socket = netns.run_inside(netns_path, lambda: _subscribe(groups))
        self._ignored: set[int] = set()
        self._detach: Callable[[], None] | None = None

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the subscription."""
        if self._detach is not None:
            self._detach()
            self._detach = None
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor that becomes readable with the next change."""
        return self._socket.fileno()

    def ignore(self, port: int) -> None:
        """Leaves out what the socket with this port id (``Netlink.port``) changes, where the kernel says so."""
        self._ignored.add(port)

    def attach(self, on_change: Callable[[Sequence[Event]], None]) -> None:
        """Calls ``on_change`` from the running loop with all changes that have come, whenever some have."""
        loop = asyncio.get_running_loop()

        def readable() -> None:
            events = self.read()
            if events:
                on_change(events)

        loop.add_reader(self._socket, readable)
        self._detach = lambda: _remove_reader(loop, self._socket)

    def read(self) -> list[Event]:
        """All changes that have come since the last call; empty when there are none.

        Raises: KernelError when the socket fails.
        """
        events: list[Event] = []
        while True:
            try:
                datagram = self._socket.recv(_RECEIVE)
            except BlockingIOError:
                return events
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise refusal("watch", "network changes", failure.errno or 0) from failure
                events.append(Event("lost"))
                continue
            (port,) = struct.unpack_from("=I", datagram, NLMSGHDR.size - 4)
            if port in self._ignored:
                continue
            events.extend(decode(datagram))


def decode(datagram: bytes) -> list[Event]:
    """The changes in a notification; what cannot be read counts as lost."""
    found: list[Event] = []
    try:
        for kind, _flags, _sequence, payload in attributes.messages(datagram):
            if kind in _KINDS:
                subject, removed = _KINDS[kind]
                if subject == "sysctl":
                    found += _parameters(payload)
                else:
                    found.append(Event(subject, removed, *_details(subject, payload)))
    except (ProtocolError, struct.error):
        found.append(Event("lost"))
    return found


def _parameters(payload: bytes) -> Iterator[Event]:
    found = attributes.parse(payload, _NETCONFMSG_SIZE)
    if len(found) == _ONE_PARAMETER:
        index = attributes.number(found, NETCONFA_IFINDEX)
        yield Event("sysctl", device=0 if index >= _SPECIAL else index)


def _details(subject: Subject, payload: bytes) -> tuple[int, int]:
    """Device number and protocol of the object."""
    if subject == "link":
        return link_codec.IFINFOMSG.unpack_from(payload)[2], 0
    if subject == "address":
        index = route_codec.IFADDRMSG.unpack_from(payload)[4]
        found = attributes.parse(payload, route_codec.IFADDRMSG.size)
        return index, attributes.number(found, IFA_PROTO)
    if subject == "neighbour":
        index = route_codec.NDMSG.unpack_from(payload)[1]
        found = attributes.parse(payload, route_codec.NDMSG.size)
        return index, attributes.number(found, NDA_PROTOCOL)
    found = attributes.parse(payload, route_codec.RTMSG.size)
    if subject == "rule":
        return 0, attributes.number(found, FRA_PROTOCOL)
    return attributes.number(found, RTA_OIF), route_codec.RTMSG.unpack_from(payload)[5]


def _subscribe(groups: Sequence[int]) -> socket.socket:
    opened = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, NETLINK_ROUTE
    )
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    opened.bind((0, 0))
    for group in groups:
        opened.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    return opened


def _remove_reader(loop: asyncio.AbstractEventLoop, watched: socket.socket) -> None:
    if not loop.is_closed():
        loop.remove_reader(watched)
