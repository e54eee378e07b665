"""The shim: one process per pod that holds its namespaces and is the parent of its containers.

It is forked from the kubelet's fork server, outlives both, and obeys whoever connects to its socket, one message
at a time (see :mod:`podwire.embedded.kubelet.orders`). A kubelet that comes back connects again and finds in the
records what happened meanwhile: the shim writes a record, by rename, when a container starts and when it ends.

One thread, one ``select`` loop; what it waits for: the listening socket, kubelets, output of containers (written
to the log files), the start pipe of a forked container (closed by exec, or by the built-in server once it
listens; text in it is the reason why the start failed), and ended children. A process that its parent left behind
is adopted and reaped here. When the shim dies, its containers get SIGKILL.

Costs 2 MiB of private memory and nothing while the pod is quiet.
"""

import array
import fcntl
import os
import pty
import selectors
import signal
import socket
import struct
import termios
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from podwire.embedded.kubelet.container_init import Started, become_container, become_exec
from podwire.embedded.kubelet.containerlog import LogWriter
from podwire.embedded.kubelet.orders import LENGTH, ContainerOrder, ContainerRecord, ShimAnswer, ShimOrder, ShimRequest
from podwire.runtime.child import CLONE_NEWUTS, PR_SET_CHILD_SUBREAPER, prctl, unshare
from podwire.runtime.clock import Clock, SystemClock, rfc3339
from podwire.runtime.files import write_atomically
from podwire.runtime.forkserver import leave

IFF_UP = 1  # net/if.h
SIOCGIFFLAGS = 0x8913  # linux/sockios.h
SIOCSIFFLAGS = 0x8914
_CHUNK = 1 << 16
_SEND_LIMIT_S = 2
_SYSCTLS = (("net/ipv4/ip_unprivileged_port_start", "0"), ("net/ipv4/ping_group_range", "0 2147483647"))

Entry = Callable[[bytes, Started], None]
"""A container that is a warm Python function: its payload, and what to call once it serves."""


class _Child:
    """A forked process: a container, or (``order`` is None) a program run inside one."""

    def __init__(
        self, pid: int, container: str, asked: tuple[socket.socket, int], order: ContainerOrder | None
    ) -> None:
        self.pid = pid
        self.container = container
        self.order = order
        self.asked: tuple[socket.socket, int] | None = asked
        self.start_pipe = -1
        self.log: LogWriter | None = None
        self.outputs: dict[int, str] = {}
        self.input = -1
        self.problem = ""
        self.listeners: list[tuple[int, int]] = []
        """Descriptors of who is attached: for output, for errors."""


class Shim:
    """The loop of one pod."""

    def __init__(self, listener: socket.socket, entries: Mapping[str, Entry], order: ShimOrder, clock: Clock) -> None:
        self._listener = listener
        self._entries = entries
        self._order = order
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, _Child] = {}
        self._kubelets: set[socket.socket] = set()
        self._open = True

    def serve(self) -> None:
        """Returns when told to close."""
        wake_in, wake_out = socket.socketpair()
        wake_in.setblocking(False)
        wake_out.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_out.fileno(), warn_on_full_buffer=False)
        self._watch(wake_in, lambda: self._reap(wake_in))
        self._watch(self._listener, self._accept)
        watched = self._selector.get_map()
        while self._open:
            for key, _ in self._selector.select():
                # What came before it in the same round may have closed the descriptor, or given its number away.
                if watched.get(key.fd) is key:
                    key.data()

    def _watch(self, file: socket.socket | int, action: Callable[[], None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, action)

    # -- kubelets

    def _accept(self) -> None:
        kubelet, _ = self._listener.accept()
        kubelet.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_LIMIT_S, 0))
        self._kubelets.add(kubelet)
        self._watch(kubelet, lambda: self._obey(kubelet))

    def _drop(self, kubelet: socket.socket) -> None:
        if kubelet in self._kubelets:
            self._kubelets.discard(kubelet)
            self._selector.unregister(kubelet)
            kubelet.close()

    def _send(self, kubelet: socket.socket, answer: ShimAnswer) -> None:
        if kubelet not in self._kubelets:
            return
        data = msgspec.msgpack.encode(answer)
        try:
            kubelet.sendall(LENGTH.pack(len(data)) + data)
        except OSError:
            self._drop(kubelet)

    def _tell(self, event: ShimAnswer) -> None:
        for kubelet in tuple(self._kubelets):
            self._send(kubelet, event)

    def _obey(self, kubelet: socket.socket) -> None:
        try:
            request, fds = _receive(kubelet)
        except (OSError, EOFError):
            self._drop(kubelet)
            return
        problem = ""
        try:
            self._run(kubelet, request, fds)
        except OSError as failure:
            problem = str(failure)
        for fd in fds:
            os.close(fd)
        if problem or request.verb not in ("start", "exec"):
            self._send(kubelet, ShimAnswer(number=request.number, problem=problem))

    def _run(self, kubelet: socket.socket, request: ShimRequest, fds: list[int]) -> None:
        if request.start is not None:
            self._start(request.start, (kubelet, request.number))
        elif request.exec is not None:
            self._exec(request, fds, (kubelet, request.number))
        elif request.verb == "signal":
            self._signal(request)
        elif request.verb == "attach":
            self._attach(request.container, fds)
        else:
            self._open = False

    # -- requests

    def _start(self, order: ContainerOrder, asked: tuple[socket.socket, int]) -> None:
        start_in, start_out = os.pipe()
        stdio, ours = _open_stdio(order)
        pid = os.fork()
        if pid == 0:
            self._become(lambda: become_container(order, self._order, self._entries), (*stdio, start_out))
        for fd in {*stdio, start_out}:
            os.close(fd)
        child = self._children[pid] = _Child(pid, order.name, asked, order)
        child.log = LogWriter(order.log)
        child.input = ours[0]
        self._watch_outputs(child, ours)
        self._record(order, ContainerRecord(
            name=order.name, attempt=order.attempt, id=order.id, log=order.log, pid=pid,
            started_at=rfc3339(self._clock.now()),
        ))  # fmt: skip
        self._watch_start(child, start_in)

    def _exec(self, request: ShimRequest, fds: list[int], asked: tuple[socket.socket, int]) -> None:
        order = request.exec
        assert order is not None
        holder = self._container(order.container)
        if holder is None or len(fds) != 3:
            raise OSError(f"container {order.container} is not running")
        start_in, start_out = os.pipe()
        mounts = os.open(f"/proc/{holder.pid}/ns/mnt", os.O_RDONLY)
        pid = os.fork()
        if pid == 0:
            self._become(lambda: become_exec(order), (*fds, start_out, mounts))
        os.close(start_out)
        os.close(mounts)
        self._children[pid] = child = _Child(pid, order.container, asked, None)
        self._watch_start(child, start_in)

    def _become(self, body: Callable[[], None], fds: tuple[int, ...]) -> None:
        code = 128
        try:
            Started.settle(fds)
            body()
            code = 0
        finally:
            leave(code)

    def _signal(self, request: ShimRequest) -> None:
        """To one process (``pid``), or to a container's first process."""
        child = self._children.get(request.pid) if request.pid else self._container(request.container)
        if child is None:
            return
        os.kill(child.pid, request.signal)
        if request.signal == signal.SIGKILL:
            _kill_group(child.pid)

    def _attach(self, container: str, fds: list[int]) -> None:
        """Output and errors are copied to the first two descriptors; a third one feeds standard input."""
        child = self._container(container)
        if child is None or len(fds) < 2:
            raise OSError(f"container {container} is not running")
        listener = (os.dup(fds[0]), os.dup(fds[1]))
        for fd in listener:
            os.set_blocking(fd, False)
        child.listeners.append(listener)
        if len(fds) > 2 and child.input >= 0:
            source = os.dup(fds[2])
            self._watch(source, lambda: self._feed(child, source))

    def _feed(self, child: _Child, source: int) -> None:
        data = os.read(source, _CHUNK)
        try:
            if data and child.input >= 0:
                os.write(child.input, data)
                return
        except OSError:
            pass
        self._selector.unregister(source)
        os.close(source)
        order = child.order
        if order is not None and order.stdin_once and not order.tty and child.input >= 0:
            os.close(child.input)
            child.input = -1

    def _container(self, name: str) -> _Child | None:
        for child in self._children.values():
            if child.order is not None and child.container == name:
                return child
        return None

    # -- what children do

    def _watch_start(self, child: _Child, pipe: int) -> None:
        child.start_pipe = pipe
        self._watch(pipe, lambda: self._started(child))

    def _started(self, child: _Child) -> None:
        text = os.read(child.start_pipe, _CHUNK)
        child.problem += text.decode(errors="replace")
        if text:
            return
        self._selector.unregister(child.start_pipe)
        os.close(child.start_pipe)
        child.start_pipe = -1
        if child.asked is not None:
            kubelet, number = child.asked
            self._send(kubelet, ShimAnswer(number=number, pid=child.pid, problem=child.problem))

    def _watch_outputs(self, child: _Child, ours: tuple[int, ...]) -> None:
        streams = ("stdout",) if child.order is not None and child.order.tty else ("stdout", "stderr")
        for fd, stream in zip(ours[1:], streams, strict=False):
            os.set_blocking(fd, False)
            child.outputs[fd] = stream
            self._selector.register(fd, selectors.EVENT_READ, self._pump(child, fd, stream))

    def _pump(self, child: _Child, fd: int, stream: str) -> Callable[[], None]:
        def pump() -> None:
            if not self._copy(child, fd, stream):
                self._close_output(child, fd)

        return pump

    def _copy(self, child: _Child, fd: int, stream: str) -> bool:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        except OSError:  # EIO: the last holder of a terminal has gone.
            return False
        if data and child.log is not None:
            child.log.write(stream, data, self._clock.now())
            for listener in tuple(child.listeners):
                self._forward(child, listener, stream, data)
        return bool(data)

    def _forward(self, child: _Child, listener: tuple[int, int], stream: str, data: bytes) -> None:
        try:
            os.write(listener[stream == "stderr"], data)
        except BlockingIOError:  # Who is attached and does not read loses output; the container goes on.
            return
        except OSError:
            child.listeners.remove(listener)
            for fd in listener:
                os.close(fd)

    def _close_output(self, child: _Child, fd: int) -> None:
        if child.outputs.pop(fd, None) is not None:
            self._selector.unregister(fd)
            if fd == child.input:
                child.input = -1
            os.close(fd)

    def _reap(self, wake: socket.socket) -> None:
        try:
            wake.recv(_CHUNK)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        while child.start_pipe >= 0:
            self._started(child)
        order = child.order
        if order is None:
            self._tell(ShimAnswer(pid=child.pid, code=code))
            return
        _kill_group(child.pid)
        for fd, stream in tuple(child.outputs.items()):
            while _readable(fd) and self._copy(child, fd, stream):
                pass
            self._close_output(child, fd)
        if child.log is not None:
            child.log.close(self._clock.now())
        for fd in (fd for listener in child.listeners for fd in listener):
            os.close(fd)
        if child.input >= 0:
            os.close(child.input)
        self._finish(order, code, child.problem)
        self._tell(ShimAnswer(pid=child.pid, code=code, container=order.name, attempt=order.attempt))

    def _finish(self, order: ContainerOrder, code: int, problem: str) -> None:
        before = msgspec.json.decode(Path(order.record).read_bytes(), type=ContainerRecord)
        reason = "StartError" if problem else "Completed" if code == 0 else "Error"
        self._record(order, msgspec.structs.replace(
            before, finished_at=rfc3339(self._clock.now()), code=code if code >= 0 else 128 - code,
            signal=max(0, -code), reason=reason, message=problem,
        ))  # fmt: skip

    def _record(self, order: ContainerOrder, record: ContainerRecord) -> None:
        write_atomically(Path(order.record), msgspec.json.encode(record))


def _receive(kubelet: socket.socket) -> tuple[ShimRequest, list[int]]:
    head, fds, _, _ = socket.recv_fds(kubelet, LENGTH.size, 3)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    data = bytearray()
    while len(data) < length:
        piece = kubelet.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return msgspec.msgpack.decode(data, type=ShimRequest), fds


def _open_stdio(order: ContainerOrder) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """The container's three descriptors; ours are (input or -1, output, error)."""
    if order.tty:
        master, slave = pty.openpty()
        return (slave, slave, slave), (master, master)
    stdin_in, stdin_out = os.pipe() if order.stdin else (os.open("/dev/null", os.O_RDONLY), -1)
    out_in, out_out = os.pipe()
    err_in, err_out = os.pipe()
    return (stdin_in, out_out, err_out), (stdin_out, out_in, err_in)


def _readable(fd: int) -> bool:
    waiting = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, waiting)
    except OSError:
        return False
    return waiting[0] > 0


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        name = b"lo".ljust(16, b"\0")
        flags = struct.unpack("16sh", fcntl.ioctl(probe, SIOCGIFFLAGS, name + b"\0" * 16)[:18])[1]
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sh14x", name, flags | IFF_UP))


def run_shim(payload: bytes, entries: Mapping[str, Entry]) -> None:
    """The body of a shim; ``entries`` are the images that are Python functions."""
    order = msgspec.msgpack.decode(payload, type=ShimOrder)
    listener = socket.socket(fileno=3)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if order.cgroup:
        Path(order.cgroup, "cgroup.procs").write_text("0", encoding="ascii")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    unshare(CLONE_NEWUTS)
    socket.sethostname(order.hostname)
    if not order.host_network:
        _raise_loopback()
        for path, value in _SYSCTLS:
            Path("/proc/sys", path).write_text(value, encoding="ascii")
    Shim(listener, entries, order, SystemClock()).serve()
