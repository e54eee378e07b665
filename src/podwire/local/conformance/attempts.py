"""Tries the connections between the pods of a step, all at the same time.

For TCP a socket connects. For UDP the target sends the datagram back. For SCTP this module writes the first two packets
of an association (:mod:`packets`), because the kernel may have no SCTP. The sockets of both ends are opened inside the
pods' own namespaces, so the pods need no servers. An allowed packet arrives within a few milliseconds. A check counts
as silent :data:`QUIET_S` after the last packet, or after :data:`PATIENCE_S` while an allowed check has no result. A
refusal (RST, ICMP) and silence are different outcomes.

Cost: about 1,000 checks in 0.4 s; one socket for each TCP or UDP check, none for an SCTP check.
"""

import contextlib
import errno
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from podwire.errors import ClusterError
from podwire.kernel import netns
from podwire.local.conformance import packets
from podwire.local.conformance.packets import PacketFlow
from podwire.local.conformance.verdicts import ANSWERED, ARRIVED, NOTHING, REFUSED
from podwire.runtime.limits import raise_open_files

QUIET_S = 0.2
PATIENCE_S = 2.0
AGAIN_S = 0.3
"""Seconds until an allowed UDP or SCTP packet without an answer is sent again; TCP retransmits by itself."""
_AT_ONCE = 1500
_FIRST_PORT, _PORTS = 20_000, 40_000
"""Source ports of SCTP; a port is used again only after all others."""
_TAGS = 2**32 - 1
"""How many different tags SCTP has; 0 is none (RFC 4960, 3.3.2)."""
_IP_PKTINFO = 8
"""linux/in.h"""
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_ICMP = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}
_TCP_HEADER, _SYN, _SYN_ACK = 20, 0x02, 0x12
_HELLO = b"podwire conformance"
_BACKLOG = 1024
PacketHandler = Callable[[bytes, Any, socket.socket], None]
"""Handles a packet from a raw socket: its data behind the IP header, the sender's address, the socket."""


class Trial(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One connection to try, from one namespace to another; addresses as the kernel prints them."""

    source: Path
    source_address: str
    target: Path
    address: str
    protocol: str
    port: int
    allowed: bool

    @property
    def family(self) -> int:
        """4 or 6."""
        return 6 if ":" in self.address else 4

    def flow(self, source_port: int) -> PacketFlow:
        """The flow that its packets belong to."""
        return PacketFlow(self.protocol, self.source_address, source_port, self.address, self.port)


class Trials:
    """Tries attempts. An SCTP source port is not used again soon, because connection tracking remembers it."""

    def __init__(self) -> None:
        self._turn = 0

    def run(self, attempts: Sequence[Trial]) -> list[str]:
        """Returns the outcome of each attempt: ``ANSWERED``, ``ARRIVED``, ``REFUSED`` or ``NOTHING``. Blocks.

        Raises: ClusterError when another process uses a port; KernelError when a namespace does not exist.
        """
        raise_open_files()
        outcomes: list[str] = []
        for start in range(0, len(attempts), _AT_ONCE):
            chunk = attempts[start : start + _AT_ONCE]
            with contextlib.closing(_TrialBatch(chunk, self._turn)) as batch:
                outcomes += batch.run()
            self._turn += len(chunk)
        return outcomes


class _TrialSockets:
    """The sockets of a batch, in the namespaces of its ends, and the selector that calls their handlers."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.raw: dict[tuple[Path, int, int], socket.socket] = {}
        """The raw sockets by namespace, family and protocol."""
        self._open: list[socket.socket] = []

    def close(self) -> None:
        """Closes all sockets; open TCP connections are reset, so none stays in TIME-WAIT."""
        self.selector.close()
        for sock in self._open:
            if sock.type == socket.SOCK_STREAM:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()

    def open(self, family: int, protocol: str) -> socket.socket:
        """A TCP or UDP socket in the current namespace."""
        kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
        sock = socket.socket(_FAMILIES[family], kind)
        sock.setblocking(False)
        self._open.append(sock)
        return sock

    def open_raw(self, namespace: Path, family: int, protocol: int, take: PacketHandler) -> None:
        """Opens a raw socket in the current namespace, once for each protocol; ``take`` gets its packets."""
        key = (namespace, family, protocol)
        if key in self.raw:
            return
        sock = self.raw[key] = socket.socket(_FAMILIES[family], socket.SOCK_RAW, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.setblocking(False)
        self._open.append(sock)

        def ready(opened: socket.socket) -> None:
            for data, sender in _all_of(opened):
                take(packets.without_header(data, family), sender, opened)

        self.selector.register(sock, selectors.EVENT_READ, ready)

    def listen(self, address: str, protocol: str, port: int, echo: Callable[[socket.socket], None]) -> None:
        """Opens a TCP or UDP socket of a target; ``echo`` answers datagrams."""
        sock = self.open(6 if ":" in address else 4, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError as failure:
            raise ClusterError(f"cannot listen on {address} {protocol}/{port}: {failure.strerror}") from failure
        if protocol == "TCP":
            sock.listen(_BACKLOG)  # no accept() needed: the kernel completes the handshake
        else:
            self.selector.register(sock, selectors.EVENT_READ, echo)


class _TrialBatch:
    """At most ``_AT_ONCE`` attempts that run at the same time, and their outcomes."""

    def __init__(self, attempts: Sequence[Trial], turn: int) -> None:
        self._attempts = attempts
        self._turn = turn
        self._sockets = _TrialSockets()
        self.close = self._sockets.close
        self._clients: dict[int, socket.socket] = {}
        self._by_flow: dict[PacketFlow, int] = {}
        self._by_source: dict[tuple[str, str, int, int], int] = {}
        self._pending = {number for number, attempt in enumerate(attempts) if attempt.allowed}
        self._answered: set[int] = set()
        self._arrived: set[int] = set()
        self._refused: set[int] = set()
        self._last = 0.0

    def run(self) -> list[str]:
        """Tries all attempts and returns their outcomes."""
        self._listen()
        self._prepare()
        for number in range(len(self._attempts)):
            self._send(number)
        self._watch()
        return [self._outcome(number) for number in range(len(self._attempts))]

    def _outcome(self, number: int) -> str:
        if number in self._answered:
            return ANSWERED
        if number in self._refused:
            return REFUSED
        return ARRIVED if number in self._arrived else NOTHING

    def _listen(self) -> None:
        """Opens the sockets of the targets."""
        sockets: dict[Path, set[tuple[str, str, int]]] = {}
        for attempt in self._attempts:
            sockets.setdefault(attempt.target, set()).add((attempt.address, attempt.protocol, attempt.port))
        for namespace, ends in sockets.items():
            with netns.inside(namespace):
                for address, protocol, port in ends:
                    family = 6 if ":" in address else 4
                    if protocol == "SCTP":
                        self._sockets.open_raw(namespace, family, packets.SCTP, self._take_sctp)
                        continue
                    self._sockets.listen(address, protocol, port, self._echo)
                    if protocol == "TCP":
                        self._sockets.open_raw(namespace, family, socket.IPPROTO_TCP, self._take_tcp)

    def _prepare(self) -> None:
        """Opens the sockets of the sources."""
        by_namespace: dict[Path, list[int]] = {}
        for number, attempt in enumerate(self._attempts):
            by_namespace.setdefault(attempt.source, []).append(number)
        for namespace, numbers in by_namespace.items():
            with netns.inside(namespace):
                for number in numbers:
                    self._open_client(namespace, number)

    def _open_client(self, namespace: Path, number: int) -> None:
        attempt = self._attempts[number]
        self._sockets.open_raw(namespace, attempt.family, _ICMP[attempt.family], self._take_icmp)
        if attempt.protocol == "SCTP":
            self._sockets.open_raw(namespace, attempt.family, packets.SCTP, self._take_sctp)
            port = self._sctp_port(number)
        else:
            sock = self._clients[number] = self._sockets.open(attempt.family, attempt.protocol)
            sock.bind((attempt.source_address, 0))
            port = sock.getsockname()[1]
        self._by_flow[attempt.flow(port)] = number
        self._by_source[attempt.protocol, attempt.source_address, port, attempt.port] = number

    def _sctp_port(self, number: int) -> int:
        return _FIRST_PORT + (self._turn + number) % _PORTS

    def _send(self, number: int) -> None:
        attempt, self._last = self._attempts[number], time.monotonic()
        if attempt.protocol == "SCTP":
            data = packets.segment(self._sctp_port(number), attempt.port, tag=self._tag(number))
            sock = self._sockets.raw[attempt.source, attempt.family, packets.SCTP]
            _send_from(sock, attempt.source_address, attempt.address, data)
            return
        sock = self._clients[number]
        code = sock.connect_ex((attempt.address, attempt.port))
        if attempt.protocol == "TCP":
            if code not in (0, errno.EINPROGRESS):
                self._refused.add(number)
                return
            self._sockets.selector.register(sock, selectors.EVENT_WRITE, lambda opened: self._connected(number, opened))
        else:
            self._sockets.selector.register(
                sock, selectors.EVENT_READ, lambda opened: self._receive_echo(number, opened)
            )
            self._hello(number, sock)

    def _hello(self, number: int, sock: socket.socket) -> None:
        try:
            sock.send(_HELLO)
        except OSError:
            self._refused.add(number)

    def _watch(self) -> None:
        """Waits for all allowed packets, and then for :data:`QUIET_S` for packets that should not arrive."""
        started = time.monotonic()
        again = started + AGAIN_S
        while True:
            now = time.monotonic()
            end = max(self._last + QUIET_S, started + PATIENCE_S if self._pending else 0.0)
            if now >= end:
                return
            if now >= again:
                again = now + AGAIN_S
                self._send_again()
            for ready, _ in self._sockets.selector.select(max(0.0, min(end, again) - now)):
                ready.data(ready.fileobj)

    def _send_again(self) -> None:
        for number in self._pending:
            if self._attempts[number].protocol == "SCTP":
                self._send(number)
            elif self._attempts[number].protocol == "UDP":
                self._hello(number, self._clients[number])

    def _mark(self, number: int | None, outcome: set[int]) -> None:
        if number is None:
            return
        outcome.add(number)
        self._last = time.monotonic()
        if outcome is not self._arrived:
            self._pending.discard(number)

    def _connected(self, number: int, sock: socket.socket) -> None:
        failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._sockets.selector.unregister(sock)
        self._mark(number, self._refused if failed else self._answered)

    def _echo(self, sock: socket.socket) -> None:
        for data, sender in _all_of(sock):
            self._mark(self._by_flow.get(PacketFlow("UDP", *sender[:2], *sock.getsockname()[:2])), self._arrived)
            with contextlib.suppress(OSError):
                sock.sendto(data, sender)

    def _receive_echo(self, number: int, sock: socket.socket) -> None:
        try:
            sock.recv(64)
        except BlockingIOError:
            return
        except OSError:
            self._mark(number, self._refused)
        else:
            self._mark(number, self._answered)

    def _take_tcp(self, data: bytes, sender: Any, _sock: socket.socket) -> None:
        """Records the first packet of a connection, also when its answer does not come back."""
        if len(data) >= _TCP_HEADER and data[13] & _SYN_ACK == _SYN:
            ports = struct.unpack_from("!HH", data)
            self._mark(self._by_source.get(("TCP", sender[0], *ports)), self._arrived)

    def _take_sctp(self, data: bytes, sender: Any, sock: socket.socket) -> None:
        segment = packets.read_segment(data)
        if segment is None:
            return
        if segment.kind == packets.INIT:
            number = self._tagged(segment.tag, segment.target)
            if number is not None:
                self._mark(number, self._arrived)
                answer = packets.segment(
                    segment.target, segment.source, verification=segment.tag, kind=packets.INIT_ACK, tag=segment.tag
                )
                _send_from(sock, self._attempts[number].address, sender[0], answer)
        elif segment.kind == packets.INIT_ACK:
            number = self._tagged(segment.verification, segment.source)
            if number is not None and segment.target == self._sctp_port(number):
                self._mark(number, self._answered)

    def _tag(self, number: int) -> int:
        """The tag of an SCTP attempt, which no other batch of the last minutes has."""
        return (self._turn + number) % _TAGS + 1

    def _tagged(self, tag: int, port: int) -> int | None:
        """The SCTP attempt of this batch with a tag and a port of the target; None: there is none.

        The source is not compared: a node masquerades the address and port of what it sends into a tunnel.
        """
        number = (tag - 1 - self._turn) % _TAGS
        if number >= len(self._attempts):
            return None
        attempt = self._attempts[number]
        return number if (attempt.protocol, attempt.port) == ("SCTP", port) else None

    def _take_icmp(self, data: bytes, sender: Any, _sock: socket.socket) -> None:
        flow = packets.read_refusal(data, 6 if ":" in sender[0] else 4)
        if flow is not None:
            self._mark(self._by_flow.get(flow), self._refused)


def _send_from(sock: socket.socket, source: str, target: str, data: bytes) -> None:
    """Sends a packet from a raw socket with a source address of the namespace; a packet that cannot be sent is lost."""
    packed = ip_address(source).packed
    if len(packed) == 4:
        control = (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=I4s4s", 0, packed, bytes(4)))
    else:
        control = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, struct.pack("=16sI", packed, 0))
    with contextlib.suppress(OSError):
        sock.sendmsg([data], [control], 0, (target, 0))


def _all_of(sock: socket.socket) -> Iterator[tuple[bytes, Any]]:
    """The packets in a socket's receive buffer, with their senders."""
    with contextlib.suppress(OSError):
        while True:
            yield sock.recvfrom(4096)
