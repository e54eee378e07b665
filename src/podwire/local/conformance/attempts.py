"""Connections between the pods of a step, all of them at once.

TCP is connected, a UDP datagram is sent and sent back, and of an SCTP association the first two packets are made by
hand (:mod:`packets`), since this machine's kernel may have no SCTP. The sockets of both ends are opened inside the
pods' own namespaces, so the pods need no servers. What is let through comes within a few milliseconds; that nothing
came is said :data:`QUIET_S` after the last packet, and after :data:`PATIENCE_S` where something should have come. A
check that ends in a refusal (RST, ICMP) is told apart from silence.

Cost: some 1,000 checks in 0.4 s; a socket for a check of TCP and of UDP, none for SCTP.
"""

import contextlib
import errno
import resource
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from podwire.errors import ClusterError
from podwire.kernel import netns
from podwire.local.conformance import packets
from podwire.local.conformance.packets import Flow

QUIET_S = 0.2
PATIENCE_S = 2.0
AGAIN_S = 0.3
"""When a packet that should have come through is sent again; TCP does it by itself."""
ANSWERED, ARRIVED, REFUSED, NOTHING = "answered", "arrived, and no answer came back", "refused", "nothing came"
_AT_ONCE = 1500
_FIRST_PORT, _PORTS = 20_000, 40_000
"""Source ports of SCTP, each used again long after."""
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_ICMP = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}
_TCP_HEADER, _SYN, _SYN_ACK = 20, 0x02, 0x12
_HELLO = b"podwire conformance"
_BACKLOG = 1024
Take = Callable[[bytes, Any, socket.socket], None]
"""Takes what a raw socket gave: the packet behind the IP header, the sender, the socket."""


class Attempt(msgspec.Struct, frozen=True, gc=False, kw_only=True):
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

    def flow(self, source_port: int) -> Flow:
        """Its packets."""
        return Flow(self.protocol, self.source_address, source_port, self.address, self.port)


class Trials:
    """Tries attempts; no source port of SCTP comes again soon, since connection tracking remembers it."""

    def __init__(self) -> None:
        self._turn = 0

    def run(self, attempts: Sequence[Attempt]) -> list[str]:
        """What became of each attempt: ``ANSWERED``, ``ARRIVED``, ``REFUSED`` or ``NOTHING``. Blocks.

        Raises: ClusterError when a port is taken by somebody else; KernelError when a namespace is gone.
        """
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        found: list[str] = []
        for start in range(0, len(attempts), _AT_ONCE):
            some = attempts[start : start + _AT_ONCE]
            with contextlib.closing(_Batch(some, self._turn)) as batch:
                found += batch.run()
            self._turn += len(some)
        return found


class _Batch:
    """The sockets of some attempts, and what they saw."""

    def __init__(self, attempts: Sequence[Attempt], turn: int) -> None:
        self._attempts = attempts
        self._turn = turn
        self._selector = selectors.DefaultSelector()
        self._open: list[socket.socket] = []
        self._raw: dict[tuple[Path, int, int], socket.socket] = {}
        self._clients: dict[int, socket.socket] = {}
        self._by_flow: dict[Flow, int] = {}
        self._by_source: dict[tuple[str, str, int, int], int] = {}
        self._left = {number for number, one in enumerate(attempts) if one.allowed}
        self._answered: set[int] = set()
        self._arrived: set[int] = set()
        self._refused: set[int] = set()
        self._last = 0.0

    def close(self) -> None:
        """Closes everything; connections that were made are reset, so that nothing of them lingers."""
        self._selector.close()
        for sock in self._open:
            if sock.type == socket.SOCK_STREAM:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()

    def run(self) -> list[str]:
        """Tries all of it."""
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
        """Opens the far ends."""
        wanted: dict[Path, set[tuple[str, str, int]]] = {}
        for one in self._attempts:
            wanted.setdefault(one.target, set()).add((one.address, one.protocol, one.port))
        for place, ends in wanted.items():
            with netns.inside(place):
                for address, protocol, port in ends:
                    family = 6 if ":" in address else 4
                    if protocol == "SCTP":
                        self._open_raw(place, family, packets.SCTP, self._take_sctp)
                        continue
                    self._listener(family, address, protocol, port)
                    if protocol == "TCP":
                        self._open_raw(place, family, socket.IPPROTO_TCP, self._take_tcp)

    def _listener(self, family: int, address: str, protocol: str, port: int) -> None:
        sock = self._socket(family, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError as failure:
            raise ClusterError(f"cannot listen on {address} {protocol}/{port}: {failure.strerror}") from failure
        if protocol == "TCP":
            sock.listen(_BACKLOG)  # nobody accepts: the kernel answers by itself
        else:
            self._selector.register(sock, selectors.EVENT_READ, self._echo)

    def _prepare(self) -> None:
        """Opens the near ends."""
        by_place: dict[Path, list[int]] = {}
        for number, one in enumerate(self._attempts):
            by_place.setdefault(one.source, []).append(number)
        for place, numbers in by_place.items():
            with netns.inside(place):
                for number in numbers:
                    self._open_client(place, number)

    def _open_client(self, place: Path, number: int) -> None:
        one = self._attempts[number]
        self._open_raw(place, one.family, _ICMP[one.family], self._take_icmp)
        if one.protocol == "SCTP":
            self._open_raw(place, one.family, packets.SCTP, self._take_sctp)
            port = self._sctp_port(number)
        else:
            sock = self._clients[number] = self._socket(one.family, one.protocol)
            sock.bind((one.source_address, 0))
            port = sock.getsockname()[1]
        self._by_flow[one.flow(port)] = number
        self._by_source[one.protocol, one.source_address, port, one.port] = number

    def _sctp_port(self, number: int) -> int:
        return _FIRST_PORT + (self._turn + number) % _PORTS

    def _socket(self, family: int, protocol: str) -> socket.socket:
        kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
        sock = socket.socket(_FAMILIES[family], kind)
        sock.setblocking(False)
        self._open.append(sock)
        return sock

    def _open_raw(self, place: Path, family: int, protocol: int, take: Take) -> None:
        key = (place, family, protocol)
        if key in self._raw:
            return
        sock = self._raw[key] = socket.socket(_FAMILIES[family], socket.SOCK_RAW, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sock.setblocking(False)
        self._open.append(sock)

        def ready(opened: socket.socket) -> None:
            for data, sender in _all_of(opened):
                take(packets.without_header(data, family), sender, opened)

        self._selector.register(sock, selectors.EVENT_READ, ready)

    def _send(self, number: int) -> None:
        one, self._last = self._attempts[number], time.monotonic()
        if one.protocol == "SCTP":
            data = packets.segment(self._sctp_port(number), one.port, tag=number + 1)
            with contextlib.suppress(OSError):
                self._raw[one.source, one.family, packets.SCTP].sendto(data, (one.address, 0))
            return
        sock = self._clients[number]
        code = sock.connect_ex((one.address, one.port))
        if one.protocol == "TCP":
            if code not in (0, errno.EINPROGRESS):
                self._refused.add(number)
                return
            self._selector.register(sock, selectors.EVENT_WRITE, lambda opened: self._connected(number, opened))
        else:
            self._selector.register(sock, selectors.EVENT_READ, lambda opened: self._echoed(number, opened))
            self._hello(number, sock)

    def _hello(self, number: int, sock: socket.socket) -> None:
        try:
            sock.send(_HELLO)
        except OSError:
            self._refused.add(number)

    def _watch(self) -> None:
        """Waits until everything that should come has come, and then for a while for what should not."""
        started = time.monotonic()
        again = started + AGAIN_S
        while True:
            now = time.monotonic()
            end = max(self._last + QUIET_S, started + PATIENCE_S if self._left else 0.0)
            if now >= end:
                return
            if now >= again:
                again = now + AGAIN_S
                self._send_again()
            for ready, _ in self._selector.select(max(0.0, min(end, again) - now)):
                ready.data(ready.fileobj)

    def _send_again(self) -> None:
        for number in self._left:
            if self._attempts[number].protocol == "SCTP":
                self._send(number)
            elif self._attempts[number].protocol == "UDP":
                self._hello(number, self._clients[number])

    def _mark(self, number: int | None, seen: set[int]) -> None:
        if number is None:
            return
        seen.add(number)
        self._last = time.monotonic()
        if seen is not self._arrived:
            self._left.discard(number)

    def _connected(self, number: int, sock: socket.socket) -> None:
        failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._selector.unregister(sock)
        self._mark(number, self._refused if failed else self._answered)

    def _echo(self, sock: socket.socket) -> None:
        for data, sender in _all_of(sock):
            self._mark(self._by_flow.get(Flow("UDP", *sender[:2], *sock.getsockname()[:2])), self._arrived)
            with contextlib.suppress(OSError):
                sock.sendto(data, sender)

    def _echoed(self, number: int, sock: socket.socket) -> None:
        try:
            sock.recv(64)
        except BlockingIOError:
            return
        except OSError:
            self._mark(number, self._refused)
        else:
            self._mark(number, self._answered)

    def _take_tcp(self, data: bytes, sender: Any, _sock: socket.socket) -> None:
        """Sees a connection's first packet, also of one whose answer never comes back."""
        if len(data) >= _TCP_HEADER and data[13] & _SYN_ACK == _SYN:
            ports = struct.unpack_from("!HH", data)
            self._mark(self._by_source.get(("TCP", sender[0], *ports)), self._arrived)

    def _take_sctp(self, data: bytes, sender: Any, sock: socket.socket) -> None:
        found = packets.read_segment(data)
        if found is None:
            return
        if found.kind == packets.INIT:
            number = found.tag - 1
            if self._is_ours(number, found.source, found.target, sender[0]):
                self._mark(number, self._arrived)
                answer = packets.segment(
                    found.target, found.source, verification=found.tag, kind=packets.INIT_ACK, tag=found.tag
                )
                with contextlib.suppress(OSError):
                    sock.sendto(answer, (sender[0], 0))
        elif found.kind == packets.INIT_ACK:
            number = found.verification - 1
            known = 0 <= number < len(self._attempts)
            if known and self._is_ours(number, found.target, found.source, self._attempts[number].source_address):
                self._mark(number, self._answered)

    def _is_ours(self, number: int, source_port: int, port: int, source: str) -> bool:
        """Whether a packet belongs to an attempt of this batch, and comes from whom it should."""
        if not 0 <= number < len(self._attempts):
            return False
        one = self._attempts[number]
        return (one.protocol, one.port, one.source_address) == ("SCTP", port, source) and source_port == (
            self._sctp_port(number)
        )

    def _take_icmp(self, data: bytes, sender: Any, _sock: socket.socket) -> None:
        flow = packets.read_refusal(data, 6 if ":" in sender[0] else 4)
        if flow is not None:
            self._mark(self._by_flow.get(flow), self._refused)


def _all_of(sock: socket.socket) -> Iterator[tuple[bytes, Any]]:
    """The packets that wait at a socket."""
    with contextlib.suppress(OSError):
        while True:
            yield sock.recvfrom(4096)
