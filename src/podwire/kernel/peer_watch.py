"""Changes of devices in other network namespaces: those of pods, seen from the node.

A socket with ``NETLINK_LISTEN_ALL_NSID`` gets the notifications of all namespaces that have a number in its own
namespace. A namespace has a number as soon as a veth device leads into it. The number comes with each datagram as
ancillary data; datagrams without it are about the socket's own namespace and are left out here.

Cost: a new pod causes some five notifications, of which only index and hardware address are decoded (10 us).
Needs CAP_NET_BROADCAST. Sources: netlink(7), net/netlink/af_netlink.c (``do_one_broadcast``).
"""

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from podwire.errors import ProtocolError
from podwire.kernel import attributes, link_codec, netns
from podwire.kernel.failure import refusal
from podwire.kernel.uapi import (
    IFLA_ADDRESS,
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_LISTEN_ALL_NSID,
    NETLINK_ROUTE,
    RTM_NEWLINK,
    RTNLGRP_LINK,
    SOL_NETLINK,
)

_BUFFER = 1 << 20
_RECEIVE = 1 << 16


class PeerDevice(NamedTuple):
    """A device of another namespace: its interface index there and its hardware address; 0: changes were missed."""

    number: int
    mac: str = ""


class PeerWatch:
    """A subscription to the devices of other namespaces, in one network namespace.

    Raises: KernelError when the process may not subscribe.
    """

    def __init__(self, netns_path: netns.NetnsPath = None) -> None:
        self._socket = netns.run_inside(netns_path, _subscribe)
        self._detach: Callable[[], None] | None = None

    def close(self) -> None:
        """Ends the subscription."""
        if self._detach is not None:
            self._detach()
            self._detach = None
        self._socket.close()

    def attach(self, on_change: Callable[[Sequence[PeerDevice]], None]) -> None:
        """Calls ``on_change`` in the running loop with the changed devices."""
        loop = asyncio.get_running_loop()

        def readable() -> None:
            if devices := self.read():
                on_change(devices)

        loop.add_reader(self._socket, readable)

        def detach() -> None:
            if not loop.is_closed():
                loop.remove_reader(self._socket)

        self._detach = detach

    def read(self) -> list[PeerDevice]:
        """The devices that changed since the last call; empty when none did.

        Raises: KernelError when the socket fails.
        """
        devices: list[PeerDevice] = []
        while True:
            try:
                datagram, ancillary, _, _ = self._socket.recvmsg(_RECEIVE, socket.CMSG_SPACE(struct.calcsize("i")))
            except BlockingIOError:
                return devices
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise refusal("watch", "devices of pods", failure.errno or 0) from failure
                devices.append(PeerDevice(0))
                continue
            if any((level, kind) == (SOL_NETLINK, NETLINK_LISTEN_ALL_NSID) for level, kind, _ in ancillary):
                devices.extend(decode(datagram))


def decode(datagram: bytes) -> list[PeerDevice]:
    """The devices in a notification; one that cannot be decoded counts as missed."""
    devices: list[PeerDevice] = []
    try:
        for kind, _flags, _sequence, payload in attributes.messages(datagram):
            if kind == RTM_NEWLINK:
                address = attributes.parse(payload, link_codec.IFINFOMSG.size).get(IFLA_ADDRESS, b"")
                devices.append(PeerDevice(link_codec.IFINFOMSG.unpack_from(payload)[2], address.hex(":")))
    except (ProtocolError, struct.error):
        devices.append(PeerDevice(0))
    return devices


def _subscribe() -> socket.socket:
    opened = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, NETLINK_ROUTE
    )
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        opened.bind((0, 0))
        opened.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, RTNLGRP_LINK)
        opened.setsockopt(SOL_NETLINK, NETLINK_LISTEN_ALL_NSID, 1)
    except OSError as failure:
        opened.close()
        raise refusal("watch", "devices of pods", failure.errno or 0) from failure
    return opened
