"""Carries packets between a TUN device and a UDP socket; every packet of the backend passes here.

Each frame is handled to its end before the next one is read, so a process that is killed loses the one that
it handles; all others wait in the queues of the device and of the socket, which the keeper holds.
"""

import contextlib
import errno
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterable

from podwire.kernel.failure import refusal
from podwire.routing.backends.udp.frames import VNET, Datagrams, Parts, datagrams, frames
from podwire.routing.backends.udp.peers import Endpoint, PeerTable
from podwire.state.udptunnel import PeerChange, UdpPeer

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104  # linux/udp.h
_INT, _UINT16 = struct.Struct("=i"), struct.Struct("=H")
_FRAME_BYTES = VNET.size + 0x10000
_ROUNDS = 32
"""Frames of one direction that are handled before the other direction is looked at."""
_DRAIN_ROUNDS = 64
"""More than the queues of device and socket have."""
_BUFFER_BYTES = 8 << 20
_CONTROL_BYTES = socket.CMSG_SPACE(_INT.size)
_TOO_LARGE = (errno.EINVAL, errno.EMSGSIZE, errno.EIO)
_IP_MTU_DISCOVER, _IPV6_MTU_DISCOVER, _PMTUDISC_DONT = 10, 23, 0  # linux/in.h, linux/in6.h
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h


def open_socket(listen: Endpoint) -> socket.socket:
    """The UDP socket of a tunnel.

    Raises: KernelError when the address is not that of this node or the port is in use.
    """
    v6 = ":" in listen[0]
    sock = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    fragments = (socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER) if v6 else (socket.IPPROTO_IP, _IP_MTU_DISCOVER)
    options = (
        (socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES),
        (socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER_BYTES),
        (*fragments, _PMTUDISC_DONT),
        (SOL_UDP, UDP_GRO, 1),
    )
    for option in options:
        with contextlib.suppress(OSError):  # an older kernel works without it, more slowly
            sock.setsockopt(*option)
    try:
        sock.bind(listen)
    except OSError as failure:
        sock.close()
        raise refusal("listen on", f"udp {listen[0]} port {listen[1]}", failure.errno or 0) from failure
    return sock


class PacketCarrier:
    """The packets of one device."""

    def __init__(self, tun: int, sock: socket.socket) -> None:
        self.counters: Counter[str] = Counter()
        self._tun = tun
        self._sock = sock
        self._peers = PeerTable()
        self._number = 0
        self._frame = bytearray(_FRAME_BYTES)
        self._received = bytearray(_FRAME_BYTES)
        self._frame_view, self._received_view = [memoryview(self._frame)], [memoryview(self._received)]

    def use(self, peers: Iterable[UdpPeer]) -> None:
        """Takes other peers."""
        self._peers = PeerTable(peers)

    def change(self, change: PeerChange) -> None:
        """Removes peers, and adds others."""
        self._peers.change(change.gone, change.new)

    def drain(self) -> None:
        """Carries what waits now in the device and in the socket.

        Raises: OSError when the device is gone.
        """
        for work in (self.send, self.receive):
            for _ in range(_DRAIN_ROUNDS):
                if work():
                    break

    def send(self) -> bool:
        """Sends what waits in the device, a limited number of frames; returns whether that was all.

        Raises: OSError when the device is gone.
        """
        for _ in range(_ROUNDS):
            try:
                size = os.readv(self._tun, self._frame_view)
            except BlockingIOError:
                return True
            frame = self._frame
            packet = memoryview(frame)[VNET.size : size]
            destination = bytes(packet[16:20] if packet[0] >> 4 == 4 else packet[24:40])
            peer = self._peers.owner(destination)
            if peer is None:
                self.counters["dropped: destination of no peer"] += 1
                continue
            self._number += 1
            try:
                for several in datagrams(frame, size, self._number):
                    self._emit(several, peer)
            except ValueError:
                self.counters["dropped: frame of the device not understood"] += 1
            else:
                self.counters["sent frames"] += 1
                self.counters["sent bytes"] += size - VNET.size
        return False

    def _emit(self, several: Datagrams, peer: Endpoint) -> None:
        parts, size = several
        try:
            if size:
                self._sock.sendmsg(parts, ((SOL_UDP, UDP_SEGMENT, _UINT16.pack(size)),), 0, peer)
            else:
                self._sock.sendmsg(parts, (), 0, peer)
        except OSError as failure:
            if size and failure.errno in _TOO_LARGE:
                self._emit_singly(parts, peer)
            else:
                self.counters[f"dropped: not sent, {errno.errorcode.get(failure.errno or 0, 'unknown')}"] += 1

    def _emit_singly(self, parts: Parts, peer: Endpoint) -> None:
        """Sends datagrams one by one: where the path needs fragments, or the kernel cannot cut them."""
        for first in range(0, len(parts), 3):
            self._emit(Datagrams(parts[first : first + 3], 0), peer)

    def receive(self) -> bool:
        """Writes what waits in the socket to the device, a limited number of frames; returns whether that was all."""
        for _ in range(_ROUNDS):
            try:
                size, ancillary, _, sender = self._sock.recvmsg_into(self._received_view, _CONTROL_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                continue  # An ICMP error for a packet that was sent.
            peer = self._peers.endpoints.get(sender[:2])
            if peer is None:
                self.counters["dropped: not from a peer"] += 1
                continue
            step = size
            for _, kind, value in ancillary:
                if kind == UDP_GRO:
                    step = _INT.unpack(value)[0]
            self._unpack(memoryview(self._received)[:size], step, peer)
        return False

    def _unpack(self, data: memoryview, step: int, peer: Endpoint) -> None:
        try:
            for parts in frames(data, step):
                packet = parts[1]
                source = bytes(packet[12:16] if packet[0] >> 4 == 4 else packet[8:24])
                if self._peers.owner(source) is not peer:
                    self.counters["dropped: source of another node"] += 1
                    continue
                written = os.writev(self._tun, parts)
                self.counters["received frames"] += 1
                self.counters["received bytes"] += written - VNET.size
        except ValueError:
            self.counters["dropped: datagram not understood"] += 1
        except OSError as failure:
            self.counters[f"dropped: not written, {errno.errorcode.get(failure.errno or 0, 'unknown')}"] += 1
