"""Changes of a namespace, by rtnetlink's multicast groups.

The kernel notifies every listener of a group of each change, so a reconciler need not poll: a deleted device is
restored before the next packet. A notification names the changed object; the listener reads the state again. When more
notifications arrive than the socket can hold, the kernel drops the rest and reports ENOBUFS. That becomes an
:class:`Event` of kind ``lost``: any object may have changed.

For sysctls the kernel reports forwarding, rp_filter and a few more (netconf.h), one message per changed parameter. A
new device causes one message with all of its parameters, which is ignored because the device is reported too.

Changes by this process are reported as well; :func:`Monitor.ignore` leaves out those of a socket for routes and rules,
whose notifications name the author (those of devices, addresses and neighbours do not).
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
    NDA_MASTER,
    NDA_PROTOCOL,
    NETCONFA_IFINDEX,
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_ROUTE,
    RT_TABLE_MAIN,
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
    """One change: kind of object, whether it was removed, interface index, protocol (owner mark), destination.

    ``lost`` stands for missed changes. ``device`` and ``proto`` are 0 where they do not apply; a sysctl of the whole
    namespace has device 0. ``dst`` is the prefix of a route of the main table as in ``state.route.Route``: a replaced
    route is reported with the protocol of the new route alone. ``bridge`` is the interface index of the bridge that a
    forwarding entry belongs to, 0 for other objects.
    """

    kind: Subject | Literal["lost"]
    removed: bool = False
    device: int = 0
    proto: int = 0
    dst: str = ""
    bridge: int = 0


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
        """Ignores changes by the socket with this port id (``Netlink.port``), where notifications name the author."""
        self._ignored.add(port)

    def attach(self, on_change: Callable[[Sequence[Event]], None]) -> None:
        """Calls ``on_change`` in the running loop with the changes, as soon as some have arrived."""
        loop = asyncio.get_running_loop()

        def readable() -> None:
            events = self.read()
            if events:
                on_change(events)

        loop.add_reader(self._socket, readable)
        self._detach = lambda: _remove_reader(loop, self._socket)

    def read(self) -> list[Event]:
        """All changes since the last call; empty when there are none.

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
    """The changes in a notification; one that cannot be decoded counts as lost."""
    events: list[Event] = []
    try:
        for kind, _flags, _sequence, payload in attributes.messages(datagram):
            if kind in _KINDS:
                subject, removed = _KINDS[kind]
                if subject == "sysctl":
                    events += _parameters(payload)
                else:
                    events.append(Event(subject, removed, *_details(subject, payload)))
    except (ProtocolError, struct.error):
        events.append(Event("lost"))
    return events


def _parameters(payload: bytes) -> Iterator[Event]:
    values = attributes.parse(payload, _NETCONFMSG_SIZE)
    if len(values) == _ONE_PARAMETER:
        index = attributes.number(values, NETCONFA_IFINDEX)
        yield Event("sysctl", device=0 if index >= _SPECIAL else index)


def _details(subject: Subject, payload: bytes) -> tuple[int, int, str, int]:
    """Device number, protocol, destination and bridge of the object."""
    if subject == "link":
        return link_codec.IFINFOMSG.unpack_from(payload)[2], 0, "", 0
    if subject == "address":
        index = route_codec.IFADDRMSG.unpack_from(payload)[4]
        values = attributes.parse(payload, route_codec.IFADDRMSG.size)
        return index, attributes.number(values, IFA_PROTO), "", 0
    if subject == "neighbour":
        index = route_codec.NDMSG.unpack_from(payload)[1]
        values = attributes.parse(payload, route_codec.NDMSG.size)
        return index, attributes.number(values, NDA_PROTOCOL), "", attributes.number(values, NDA_MASTER)
    values = attributes.parse(payload, route_codec.RTMSG.size)
    if subject == "rule":
        return 0, attributes.number(values, FRA_PROTOCOL), "", 0
    fields = route_codec.RTMSG.unpack_from(payload)
    dst = route_codec.destination(fields[0], fields[1], values) if fields[4] == RT_TABLE_MAIN else ""
    return attributes.number(values, RTA_OIF), fields[5], dst, 0


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
