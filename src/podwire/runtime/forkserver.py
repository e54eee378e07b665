"""A process that has imported what its children need, and forks a child on request.

Starting a Python program costs 100 to 300 ms of imports; forking a process that has them costs 1 to 3 ms and
shares their memory. A :class:`ForkServer` is forked from its owner before that has a thread or an event loop, and
then forks one child for each request: a named entry (a function taking the payload bytes), a payload, descriptors, and
a :class:`~podwire.runtime.child.Placement`. What an entry needs is imported in the server, while no request waits, or
at the latest by the first request for the entry.

Two socket pairs join owner and server. *Control* carries one request and one reply at a time (msgpack in the form
of :mod:`podwire.runtime.messages`), so :meth:`ForkServer.spawn` blocks for one fork. *Exits*
carries a fixed record per ended child; the owner polls :meth:`ForkServer.fileno` and calls
:meth:`ForkServer.read_exits`. The server never blocks on *exits*: records wait in a queue, so a busy owner
cannot stop it.

When the owner dies or closes, control ends and the server exits. Children with ``daemon`` continue to run (init
adopts them); all other children get SIGTERM by their parent-death signal. A child whose entry returns ends with status
0, one that raises prints its traceback and ends with 1. The owner's objects are frozen out of garbage
collection, which keeps their pages shared.

Not for several threads at once.
"""

import collections
import gc
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, NoReturn

import msgspec

from podwire.errors import ClusterError
from podwire.runtime import messages
from podwire.runtime.child import Placement, leave, settle
from podwire.runtime.childexits import ChildExits
from podwire.runtime.memory import importing

Entry = Callable[[bytes], None]
Preparation = Callable[[], Iterator[None]]
"""Imports what an entry needs; requests are answered where it yields."""

_EXIT = struct.Struct("!qi")
_MAX_FDS = 64
_CHUNK = 1 << 16


class Exit(NamedTuple):
    """An ended child: ``code`` is its exit status, or the negated signal."""

    pid: int
    code: int


class _Request(msgspec.Struct, frozen=True):
    entry: str
    payload: bytes
    placement: Placement


class _Reply(msgspec.Struct, frozen=True):
    pid: int = 0
    problem: str = ""


class ForkServer:
    """The owner's side; made by :meth:`start`."""

    def __init__(self, pid: int, control: socket.socket, exits: socket.socket) -> None:
        self.pid = pid
        self._control = control
        self._exits = exits
        self._rest = b""

    @classmethod
    def start(
        cls, entries: Mapping[str, Entry], *, title: str = "", prepare: Mapping[str, Preparation] | None = None
    ) -> "ForkServer":
        """Forks the server; the caller must have neither threads nor an event loop yet.

        Everything imported by now is shared with the children, and what ``prepare`` imports, by the name of the entry
        that needs it. The server does that in the order of ``prepare`` while the owner asks for nothing; the first
        :meth:`spawn` of an entry waits for what the entry needs.
        """
        ours, theirs = socket.socketpair()
        exits_in, exits_out = socket.socketpair()
        gc.freeze()  # with what garbage imports left, some hundred objects: to look for it takes 20 to 40 ms
        pid = os.fork()
        if pid == 0:
            _become_server(entries, (theirs.detach(), exits_out.detach()), title, prepare or {})
        theirs.close()
        exits_out.close()
        gc.unfreeze()
        exits_in.setblocking(False)
        return cls(pid, ours, exits_in)

    def spawn(
        self, entry: str, payload: bytes = b"", fds: Sequence[int] = (), placement: Placement | None = None
    ) -> int:
        """Forks a child that runs ``entry`` with ``payload`` and returns its pid.

        The child finds ``fds`` as its descriptors 3, 4, 5 ... Raises: ClusterError when there is no such
        entry, no memory for a process, or no server any more.
        """
        request = msgspec.msgpack.encode(_Request(entry, payload, placement or Placement()))
        try:
            messages.send(self._control, request, fds)
            body, _ = messages.receive(self._control)
            reply = msgspec.msgpack.decode(body, type=_Reply)
        except (OSError, EOFError) as failure:
            raise ClusterError(f"the fork server has ended and cannot start {entry}") from failure
        if reply.problem:
            raise ClusterError(f"cannot start {entry}: {reply.problem}")
        return reply.pid

    def fileno(self) -> int:
        """Readable when a child has ended, or when the server has."""
        return self._exits.fileno()

    def read_exits(self) -> list[Exit] | None:
        """The children that ended since the last call, without blocking; None when the server is gone."""
        try:
            data = self._exits.recv(_CHUNK)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        if not data:
            return None
        data = self._rest + data
        whole = len(data) - len(data) % _EXIT.size
        self._rest = data[whole:]
        return [Exit(*record) for record in _EXIT.iter_unpack(data[:whole])]

    def close(self) -> None:
        """Ends the server and waits for it; its children as the module says."""
        self._control.close()
        self._exits.close()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


def _become_server(
    entries: Mapping[str, Entry], ends: tuple[int, int], title: str, prepare: Mapping[str, Preparation]
) -> NoReturn:
    code = 1
    try:
        settle(Placement(title=title, daemon=True), ends, os.getppid())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _Server(entries, prepare, 3, 4).serve()
        code = 0
    finally:
        leave(code)


class _Server:
    """The loop of the forked server."""

    def __init__(
        self, entries: Mapping[str, Entry], prepare: Mapping[str, Preparation], control: int, exits: int
    ) -> None:
        self._entries = entries
        self._unprepared = {name: preparation() for name, preparation in prepare.items()}
        self._control = socket.socket(fileno=control)
        self._exits = socket.socket(fileno=exits)
        self._ended = ChildExits()
        self._pending: collections.deque[bytes] = collections.deque()
        self._exits.setblocking(False)

    def serve(self) -> None:
        """Returns when the owner has gone."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        poll.register(self._exits, 0)
        while True:
            ready = {fd for fd, _ in poll.poll(0 if self._unprepared else None)}
            if self._ended.fileno() in ready:
                self._pending.extend(_EXIT.pack(*end) for end in self._ended.reap())
            if self._control.fileno() in ready and not self._answer():
                return
            self._report()
            poll.modify(self._exits, select.POLLOUT if self._pending else 0)
            if not ready and self._unprepared:
                self._prepare_more(next(iter(self._unprepared)))

    def _prepare_more(self, entry: str) -> None:
        with importing():
            try:
                next(self._unprepared[entry])
            except StopIteration:
                del self._unprepared[entry]

    def _report(self) -> None:
        while self._pending:
            try:
                sent = self._exits.send(self._pending[0])
            except BlockingIOError:
                return
            except OSError:
                self._pending.clear()
                return
            record = self._pending.popleft()
            if sent < len(record):
                self._pending.appendleft(record[sent:])

    def _answer(self) -> bool:
        try:
            body, fds = messages.receive(self._control, _MAX_FDS)
        except (ConnectionError, EOFError):
            return False
        reply = self._fork(msgspec.msgpack.decode(body, type=_Request), fds)
        for fd in fds:
            os.close(fd)
        try:
            messages.send(self._control, msgspec.msgpack.encode(reply))
        except ConnectionError:
            return False
        return True

    def _fork(self, request: _Request, fds: list[int]) -> _Reply:
        entry = self._entries.get(request.entry)
        if entry is None:
            return _Reply(problem=f"no such entry; expected one of {', '.join(sorted(self._entries))}")
        while request.entry in self._unprepared:
            self._prepare_more(request.entry)
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as failure:
            return _Reply(problem=str(failure))
        if pid == 0:
            self._become_child(entry, request, fds, parent)
        return _Reply(pid=pid)

    def _become_child(self, entry: Entry, request: _Request, fds: list[int], parent: int) -> NoReturn:
        code = 1
        try:
            for connection in (self._control, self._exits):
                connection.detach()
            settle(request.placement, fds, parent)
            entry(request.payload)
            code = 0
        finally:
            leave(code)
