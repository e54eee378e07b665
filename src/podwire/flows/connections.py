"""The sockets of numbered flows, one class for each way of sending; nothing blocks.

A flow has a turn in each interval: it reads the answers that have arrived, and sends the next number.

| class | kinds | sockets |
|---|---|---|
| :class:`StreamFlow` | ``tcp`` | one TCP connection that stays; a connection that ends is broken, and another is made |
| :class:`DatagramFlow` | ``udp``, ``denied-udp`` | one UDP socket that stays |
| :class:`ExchangeFlow` | ``new``, ``http``, ``dns-tcp``, ``denied`` | a TCP connection for each message |
| :class:`QueryFlow` | ``dns`` | a UDP socket for each query, as resolvers do |

At most :data:`MOST_OPEN` messages of a flow wait on sockets of their own; with more it sends none until some are
decided.
"""

import errno
import socket
from ipaddress import ip_address
from typing import Protocol

from podwire.flows.count import LOST_S, FlowCount, FlowTarget
from podwire.flows.messages import SIZE, STREAM_EXCHANGES, answers_query, encode_number, encode_query

MOST_OPEN = 128
DENIED_S = 1.0
"""Seconds that a denied connection is tried: longer than the second SYN."""
_PROGRESS = (0, errno.EINPROGRESS)
_WAITING = (errno.EAGAIN, errno.ENOTCONN, errno.ENOBUFS)
_RECEIVE = 65536


class NumberedFlow(Protocol):
    """A flow to one target."""

    count: FlowCount

    def turn(self, now: float) -> None:
        """Reads answers, and sends the next number."""
        ...

    def close(self) -> None:
        """Closes the sockets."""
        ...


def open_flow(target: FlowTarget, now: float, epoch: float = 0.0) -> NumberedFlow:
    """The flow to a target; ``epoch`` is the time since 1970 when the clock of ``now`` was 0."""
    count = FlowCount(target.kind, target.address, now, path=target.path, epoch=epoch)
    if target.kind == "tcp":
        return StreamFlow(target, count)
    if target.kind in ("udp", "denied-udp"):
        return DatagramFlow(target, count)
    return QueryFlow(target, count) if target.kind == "dns" else ExchangeFlow(target, count)


def _connected(target: FlowTarget, kind: socket.SocketKind) -> tuple[socket.socket, int]:
    """A socket that connects, and the error of the attempt (0: none)."""
    family = socket.AF_INET6 if ip_address(target.address).version == 6 else socket.AF_INET
    opened = socket.socket(family, kind)
    opened.setblocking(False)
    failure = opened.connect_ex((target.address, target.port))
    return opened, 0 if failure in _PROGRESS else failure


class StreamFlow:
    """Numbers over one TCP connection."""

    def __init__(self, target: FlowTarget, count: FlowCount) -> None:
        self.count = count
        self._target = target
        self._socket: socket.socket | None = None
        self._opened_at = 0.0
        self._sent = False
        self._incomplete = b""

    def turn(self, now: float) -> None:
        """Reads answers, and sends the next number."""
        if self._socket is None:
            self._open(now)
        if self._socket is not None:
            self._read(self._socket, now)
        if self._socket is not None:
            self._send(self._socket, now)
        self.count.expire(now)

    def close(self) -> None:
        """Closes the connection."""
        if self._socket is not None:
            self._socket.close()

    def _open(self, now: float) -> None:
        self._opened_at, self._sent, self._incomplete = now, False, b""
        self._socket, failure = _connected(self._target, socket.SOCK_STREAM)
        if failure:
            self._end(failure)

    def _end(self, failure: int = 0) -> None:
        self.close()
        self._socket = None
        self.count.end(_reason(failure))

    def _read(self, opened: socket.socket, now: float) -> None:
        try:
            data = opened.recv(_RECEIVE)
        except BlockingIOError:
            return
        except OSError as refused:
            self._end(refused.errno or 0)
            return
        if not data:
            self._end()
            return
        self._incomplete += data
        while len(self._incomplete) >= SIZE:
            number, self._incomplete = int.from_bytes(self._incomplete[:SIZE], "big"), self._incomplete[SIZE:]
            self.count.answer(number, now)

    def _send(self, opened: socket.socket, now: float) -> None:
        try:
            opened.send(encode_number(self.count.sent + 1))
        except OSError as refused:
            # A connection that is not there yet has time.
            late = now - self._opened_at > LOST_S and not self._sent
            if refused.errno not in _WAITING or late:
                self._end(refused.errno or 0)
        else:
            self._sent = True
            self.count.send(now)


class DatagramFlow:
    """Numbers over one UDP socket; what the node refuses to send is lost."""

    def __init__(self, target: FlowTarget, count: FlowCount) -> None:
        self.count = count
        self._target = target
        self._socket: socket.socket | None = None

    def turn(self, now: float) -> None:
        """Reads answers, and sends the next number."""
        if self._socket is None:
            self._socket, failure = _connected(self._target, socket.SOCK_DGRAM)
            if failure:
                self.close()
        if self._socket is not None:
            self._read(self._socket, now)
        number = self.count.send(now)
        try:
            if self._socket is not None:
                self._socket.send(encode_number(number))
        except OSError as refused:
            if refused.errno not in (errno.ECONNREFUSED, *_WAITING):
                self.count.lose(number, _reason(refused.errno or 0))
        self.count.expire(now)

    def close(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _read(self, opened: socket.socket, now: float) -> None:
        while True:
            try:
                data = opened.recv(_RECEIVE)
            except OSError:
                return  # nothing there, or an ICMP error about an earlier message, which expires
            self.count.answer(int.from_bytes(data[:SIZE], "big"), now)


class _Open:
    """One message on a socket of its own."""

    def __init__(self, number: int, since: float, opened: socket.socket) -> None:
        self.number = number
        self.since = since
        self.socket = opened
        self.sent = False
        self.data = b""


class SocketPerMessage:
    """The messages on their way, each with a socket of its own."""

    def __init__(self, target: FlowTarget, count: FlowCount) -> None:
        self.count = count
        self._target = target
        self._open: list[_Open] = []

    def close(self) -> None:
        """Closes the sockets."""
        for attempt in self._open:
            attempt.socket.close()
        self._open = []

    def _lose(self, attempt: _Open, reason: str) -> bool:
        attempt.socket.close()
        self.count.lose(attempt.number, reason)
        return True


class ExchangeFlow(SocketPerMessage):
    """A TCP connection for each message."""

    def __init__(self, target: FlowTarget, count: FlowCount) -> None:
        super().__init__(target, count)
        self._exchange = STREAM_EXCHANGES[target.kind]
        self._limit_s = DENIED_S if target.kind == "denied" else LOST_S

    def turn(self, now: float) -> None:
        """Reads answers, and opens the connection of the next number."""
        self._open = [attempt for attempt in self._open if not self._decided(attempt, now)]
        if len(self._open) >= MOST_OPEN:
            return
        number = self.count.send(now)
        opened, failure = _connected(self._target, socket.SOCK_STREAM)
        attempt = _Open(number, now, opened)
        if failure:
            self._lose(attempt, _reason(failure))
        elif not self._decided(attempt, now):
            self._open.append(attempt)

    def _decided(self, attempt: _Open, now: float) -> bool:
        """Whether the fate of a message is known; it is counted then."""
        try:
            if not attempt.sent:
                attempt.socket.send(self._exchange.request(attempt.number, self._target))
                attempt.sent = True
                if self.count.kind == "denied":  # the connection was made, which is the leak
                    attempt.socket.close()
                    self.count.answer(attempt.number, now)
                    return True
            data = attempt.socket.recv(_RECEIVE)
        except OSError as waits:
            if waits.errno not in _WAITING:
                return self._lose(attempt, _reason(waits.errno or 0))
            return now - attempt.since > self._limit_s and self._lose(attempt, "no answer")
        attempt.data += data
        complete = self._exchange.complete(attempt.number, attempt.data)
        if complete:
            self.count.answer(attempt.number, now)
            attempt.socket.close()
        elif complete is not None:
            self._lose(attempt, "a wrong answer")
        elif not data:
            self._lose(attempt, "the connection ended")
        return complete is not None or not data


class QueryFlow(SocketPerMessage):
    """A UDP socket for each query of DNS."""

    def turn(self, now: float) -> None:
        """Reads answers, and sends the next query."""
        self._open = [attempt for attempt in self._open if not self._decided(attempt, now)]
        if len(self._open) >= MOST_OPEN:
            return
        number = self.count.send(now)
        opened, failure = _connected(self._target, socket.SOCK_DGRAM)
        attempt = _Open(number, now, opened)
        try:
            if not failure:
                opened.send(encode_query(number, self._target))
        except OSError as refused:
            failure = refused.errno or 0
        if failure:
            self._lose(attempt, _reason(failure))
        else:
            self._open.append(attempt)

    def _decided(self, attempt: _Open, now: float) -> bool:
        try:
            data = attempt.socket.recv(_RECEIVE)
        except BlockingIOError:
            return now - attempt.since > LOST_S and self._lose(attempt, "no answer")
        except OSError as refused:
            return self._lose(attempt, _reason(refused.errno or 0))
        if not answers_query(attempt.number, data):
            return self._lose(attempt, "a wrong answer")
        self.count.answer(attempt.number, now)
        attempt.socket.close()
        return True


def _reason(number: int) -> str:
    return _REASONS.get(number) or (
        f"error {errno.errorcode.get(number, number)}" if number else "the connection ended"
    )


_REASONS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset",
    errno.ETIMEDOUT: "no answer",
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETUNREACH: "no route to the network",
    errno.EPERM: "the node refused to send",
}
