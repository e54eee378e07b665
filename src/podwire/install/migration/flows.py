"""Numbered flows of TCP and UDP, which run during a migration to count what it costs; blocking, one thread.

The server answers each message with the message. The sender has, for every target, a TCP connection that stays
(``tcp``), a UDP socket that stays (``udp``), and one new TCP connection after another (``new``). Every :data:`TURN_S`
each flow sends a number. Every second the sender prints its counts as one line of JSON: the last line of its log is the
report. Messages are 8 bytes, so that a stream divides into numbers without further marks.
"""

import contextlib
import errno
import selectors
import socket
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address

import msgspec

from podwire.install.migration.flowcount import PORT, FlowCount, FlowReport
from podwire.runtime.clock import SystemClock

TURN_S = 0.05
REPORT_S = 1.0
CONNECT_S = 5.0
_SIZE = 8
_PROGRESS = (0, errno.EINPROGRESS)
_WAITING = (errno.EAGAIN, errno.ENOTCONN, errno.ENOBUFS)


def serve(port: int = PORT) -> None:
    """Answers messages on a port, of both families where the machine has both; never returns.

    Raises: OSError when the port is taken.
    """
    with selectors.DefaultSelector() as selector:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        listener = socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6)
        datagrams = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6:
            datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        datagrams.bind(("", port))
        selector.register(listener, selectors.EVENT_READ, _accept)
        selector.register(datagrams, selectors.EVENT_READ, _answer_datagram)
        while True:
            for key, _ in selector.select():
                key.data(selector, key.fileobj)


def _accept(selector: selectors.BaseSelector, listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.settimeout(CONNECT_S)
    selector.register(connection, selectors.EVENT_READ, _answer_stream)


def _answer_stream(selector: selectors.BaseSelector, connection: socket.socket) -> None:
    try:
        data = connection.recv(4096)
        if data:
            connection.sendall(data)
            return
    except OSError:
        pass  # the client is gone
    selector.unregister(connection)
    connection.close()


def _answer_datagram(_selector: selectors.BaseSelector, opened: socket.socket) -> None:
    with contextlib.suppress(OSError):
        data, peer = opened.recvfrom(4096)
        opened.sendto(data, peer)


class NumberedFlow:
    """One flow to one target; ``kind`` is ``tcp``, ``udp`` or ``new``."""

    def __init__(self, kind: str, target: str, port: int, now: float) -> None:
        self.count = FlowCount(kind, target, now)
        self._address = (target, port)
        self._family = socket.AF_INET6 if ip_address(target).version == 6 else socket.AF_INET
        self._kind = socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM
        self._socket: socket.socket | None = None
        self._opened_at = now
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

    def _open(self, now: float) -> None:
        self._socket = socket.socket(self._family, self._kind)
        self._socket.setblocking(False)
        self._opened_at, self._sent, self._incomplete = now, False, b""
        if self._socket.connect_ex(self._address) not in _PROGRESS:
            self._end()

    def close(self) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close()

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        if self.count.kind != "udp":
            self.count.end()

    def _read(self, opened: socket.socket, now: float) -> None:
        try:
            data = opened.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        self._incomplete += data
        while len(self._incomplete) >= _SIZE:
            number, self._incomplete = int.from_bytes(self._incomplete[:_SIZE], "big"), self._incomplete[_SIZE:]
            self.count.answer(number, now)
        if self.count.kind == "new":
            opened.close()
            self._socket = None

    def _send(self, opened: socket.socket, now: float) -> None:
        if self.count.kind == "new" and self._sent:
            if self._is_late(now):
                self._end()
            return
        try:
            opened.send((self.count.sent + 1).to_bytes(_SIZE, "big"))
        except OSError as failure:
            self._refused(failure, now)
        else:
            self._sent = True
            self.count.send(now)

    def _refused(self, failure: OSError, now: float) -> None:
        """A connection that is not there yet has time; what the node refuses to send over UDP is lost."""
        if failure.errno in _WAITING:
            if self._is_late(now) and not self._sent:
                self._end()
        elif self.count.kind == "udp":
            self.count.send(now)
        else:
            self._end()

    def _is_late(self, now: float) -> bool:
        return now - self._opened_at > CONNECT_S


def send(targets: Sequence[str], say: Callable[[str], None], port: int = PORT, turns: int | None = None) -> None:
    """Sends to all targets and says the counts every second, and at the end of ``turns`` (None: never)."""
    clock = SystemClock()
    began = clock.monotonic()
    flows = [NumberedFlow(kind, target, port, began) for target in targets for kind in ("tcp", "udp", "new")]
    due = began + REPORT_S
    done = 0
    with selectors.DefaultSelector() as pause, contextlib.ExitStack() as stack:
        for flow in flows:
            stack.callback(flow.close)
        while turns is None or done < turns:
            now = clock.monotonic()
            for flow in flows:
                flow.turn(now)
            if now >= due:
                due = now + REPORT_S
                say(render(flow.count.report(now) for flow in flows))
            done += 1
            pause.select(max(0.0, now + TURN_S - clock.monotonic()))
    now = clock.monotonic()
    say(render(flow.count.report(now) for flow in flows))


def render(reports: Iterable[FlowReport]) -> str:
    """Reports as one line."""
    return msgspec.json.encode(list(reports)).decode()


def parse(log: str) -> list[FlowReport]:
    """The reports in the last complete line of a log; none when there is no such line."""
    for line in reversed(log.splitlines()):
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(line, type=list[FlowReport])
    return []


def unreachable(targets: Sequence[str], patience_s: float, port: int = PORT) -> list[str]:
    """The targets that answered no message over TCP within the time, with the reasons."""
    clock, problems = SystemClock(), dict[str, str]()
    until = clock.monotonic() + patience_s
    pending = list(targets)
    with selectors.DefaultSelector() as pause:
        while pending:
            for target in list(pending):
                try:
                    with socket.create_connection((target, port), timeout=CONNECT_S) as connection:
                        connection.sendall(bytes(_SIZE))
                        if len(connection.recv(_SIZE)) == _SIZE:
                            pending.remove(target)
                            problems.pop(target, None)
                            continue
                    problems[target] = "no answer"
                except OSError as failure:
                    problems[target] = failure.strerror or str(failure)
            if clock.monotonic() > until:
                break
            if pending:
                pause.select(0.2)
    return [f"{target}: {reason}" for target, reason in problems.items()]
