"""The data plane's end of the control socket; starts a relay when none runs.

This module opens the listening socket and passes it to the new process, so the first request waits in the kernel until
the relay reads it. A relay that runs another version of the program (podwire was upgraded or downgraded) is asked to
continue as this version; its sockets and connections stay. When a worker ends during a request, the request is sent
again: requests are idempotent.
"""

import errno
import select
import socket

import msgspec

from podwire.errors import KernelError
from podwire.kernel import netns
from podwire.kernel.netns import NetnsPath
from podwire.proxy.dataplanes.userspace.control import is_root
from podwire.proxy.dataplanes.userspace.messages import (
    LENGTH,
    SOCKET,
    Answer,
    Arrange,
    Arranged,
    Ask,
    Drain,
    RelayPool,
    Renew,
    Request,
    Retire,
    Retired,
    Show,
    Shown,
    State,
    frame,
    parse_answer,
)
from podwire.proxy.dataplanes.userspace.process import ARGV, build
from podwire.runtime.child import spawn_apart

_ANSWER_S = 10.0
_ATTEMPTS = 3
_RELAY = "the relay of mode userspace"


class RelayClient:
    """A connection to the relay of one network namespace (None: that of this thread)."""

    def __init__(self, netns_path: NetnsPath = None) -> None:
        self._netns_path = netns_path
        self._peer: socket.socket | None = None

    def fileno(self) -> int:
        """A descriptor that reports EPOLLRDHUP when the relay has closed the connection; -1 without a relay."""
        return -1 if self._peer is None else self._peer.fileno()

    def close(self) -> None:
        """Closes the connection to the relay; the relay continues."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def lost(self) -> bool:
        """Whether the relay has closed the connection; reads nothing: answers belong to the thread that asked."""
        peer = self._peer
        if peer is None:
            return True
        poll = select.poll()
        try:
            poll.register(peer, select.POLLRDHUP)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    def open(self) -> None:
        """Connects to the relay, or starts one; afterwards the relay runs this version of the program.

        Raises: KernelError.
        """
        state = self._require(Ask())
        assert isinstance(state, State), state
        if state.build != build():
            self._require(Renew(ARGV))
            self.close()

    def arrange(self, pools: tuple[RelayPool, ...]) -> Arranged:
        """Creates or changes these pools.

        Raises: KernelError.
        """
        answer = self._require(Arrange(pools))
        assert isinstance(answer, Arranged), answer
        return answer

    def retire(self, request: Retire) -> Retired:
        """Retires pools: no rule leads to them any more.

        Raises: KernelError.
        """
        answer = self._require(request)
        assert isinstance(answer, Retired), answer
        return answer

    def drain(self) -> bool:
        """Asks the relay to end with its last connection; False when no relay runs.

        Raises: KernelError.
        """
        running = self._ask(Drain()) is not None
        self.close()
        return running

    def state(self) -> State | None:
        """The state of the relay, None when no relay runs.

        Raises: KernelError.
        """
        answer = self._ask(Ask())
        assert isinstance(answer, State | None), answer
        return answer

    def show(self) -> Shown:
        """The pools that the relay serves; empty when no relay runs.

        Raises: KernelError.
        """
        answer = self._ask(Show()) or Shown()
        assert isinstance(answer, Shown), answer
        return answer

    def _require(self, request: Request) -> Answer:
        """The answer of the relay; starts a relay when none runs."""
        answer = self._ask(request, start=True)
        assert answer is not None, "a relay was started"
        return answer

    def _ask(self, request: Request, *, start: bool = False) -> Answer | None:
        """The answer of the relay; None when no relay runs."""
        problem: OSError | EOFError | msgspec.MsgspecError | None = None
        for _ in range(_ATTEMPTS):
            try:
                if self._peer is None and not self._connect():
                    if not start:
                        return None
                    self._start()
                assert self._peer is not None, "connected"
                self._peer.sendall(frame(request))
                (length,) = LENGTH.unpack(self._receive(LENGTH.size))
                return parse_answer(self._receive(length))
            except (OSError, EOFError, msgspec.MsgspecError) as failure:
                problem = failure
                self.close()
        number = problem.errno if isinstance(problem, OSError) and problem.errno else errno.EPIPE
        raise KernelError("ask", _RELAY, number, str(problem)) from problem

    def _receive(self, count: int) -> bytes:
        assert self._peer is not None, "connected"
        data = bytearray()
        while len(data) < count:
            chunk = self._peer.recv(count - len(data))
            if not chunk:
                raise EOFError("the relay closed the connection")
            data += chunk
        return bytes(data)

    def _connect(self) -> bool:
        """Connects to the relay; False when no relay runs.

        Raises: KernelError when the process that listens is not a relay of podwire.
        """
        with netns.inside(self._netns_path):
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.settimeout(_ANSWER_S)
        try:
            peer.connect(SOCKET)
        except ConnectionRefusedError:
            peer.close()
            return False
        except OSError as failure:
            peer.close()
            raise KernelError("reach", _RELAY, failure.errno or 0, str(failure)) from failure
        if not is_root(peer):
            peer.close()
            raise KernelError("reach", _RELAY, errno.EPERM, "the process that listens on the socket is not root")
        self._peer = peer
        return True

    def _start(self) -> None:
        """Starts a relay and connects to it, or to a relay that another process started at the same time."""
        with netns.inside(self._netns_path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(SOCKET)
                listener.listen(16)
                spawn_apart(ARGV, (listener.fileno(),))
            except OSError as failure:
                if failure.errno != errno.EADDRINUSE:
                    raise
        if not self._connect():
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the relay does not start")
