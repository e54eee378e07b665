"""The shim: one process per pod that holds the pod's namespaces and is the parent of its containers.

The shim is forked from the kubelet's fork server and lives longer than both. It serves the requests of
:mod:`podwire.embedded.kubelet.orders` on a socket, one at a time. When a container starts and when it ends, the shim
writes a record by rename; a kubelet that restarts connects to the socket again and reads in the records what happened
in the meantime.

The shim has one thread and one loop, which waits for: the listening socket, kubelets, the output of containers, the
start pipe of each forked container, and ended children. exec closes the start pipe, and so does a built-in server as
soon as it listens; text in the pipe is the reason why the start failed. The shim adopts processes whose parent has
ended, and reaps them. When the shim dies, its containers get SIGKILL.

Costs 2 MiB of private memory, and no CPU time while the pod is quiet.
"""

import fcntl
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from podwire.embedded.kubelet.container_init import Started, become_container, become_exec
from podwire.embedded.kubelet.containerlog import LogWriter
from podwire.embedded.kubelet.containerstreams import ContainerStreams, open_stdio
from podwire.embedded.kubelet.orders import ContainerOrder, ContainerRecord, ShimAnswer, ShimOrder, ShimRequest
from podwire.embedded.kubelet.selectloop import SelectLoop
from podwire.embedded.kubelet.shimconnections import ReplyAddress, ShimConnections
from podwire.kernel.cgroup import end_members, has_killed, join
from podwire.runtime.child import CLONE_NEWIPC, CLONE_NEWUTS, PR_SET_CHILD_SUBREAPER, leave, prctl, unshare
from podwire.runtime.childexits import ChildExits
from podwire.runtime.clock import Clock, SystemClock, rfc3339
from podwire.runtime.files import write_atomically

IFF_UP = 1  # net/if.h
SIOCGIFFLAGS = 0x8913  # linux/sockios.h
SIOCSIFFLAGS = 0x8914
_CHUNK = 1 << 16
_NOT_STARTED = 128
_SYSCTLS = (("net/ipv4/ip_unprivileged_port_start", "0"), ("net/ipv4/ping_group_range", "0 2147483647"))

Entry = Callable[[bytes, Started], None]
"""A container that is a warm Python function: its payload, and what to call when the container serves."""


class _Child(msgspec.Struct):
    """A forked process: a container, or (``order`` and ``streams`` are None) a program run inside a container."""

    pid: int
    container: str
    reply_to: ReplyAddress
    start_pipe: int
    """-1 once the start has succeeded or failed."""
    order: ContainerOrder | None = None
    streams: ContainerStreams | None = None
    problem: str = ""
    """Why the start failed."""


class Shim:
    """The containers of one pod, and the programs inside them."""

    def __init__(self, listener: socket.socket, entries: Mapping[str, Entry], order: ShimOrder, clock: Clock) -> None:
        self._entries = entries
        self._order = order
        self._clock = clock
        self._children: dict[int, _Child] = {}
        self._loop = SelectLoop()
        self._connections = ShimConnections(listener, self._loop, self._execute)
        self._exits = ChildExits()
        self._loop.watch(self._exits, self._reap)

    def serve(self) -> None:
        """Returns after a request to close."""
        self._loop.run()

    def _execute(self, request: ShimRequest, fds: list[int], reply_to: ReplyAddress) -> None:
        if request.start is not None:
            self._start(request.start, reply_to)
        elif request.exec is not None:
            self._exec(request, fds, reply_to)
        elif request.verb == "signal":
            self._signal(request)
        elif request.verb == "attach":
            self._attach(request.container, fds)
        else:
            self._loop.stop()

    def _start(self, order: ContainerOrder, reply_to: ReplyAddress) -> None:
        log = LogWriter(order.log)
        start_in, start_out = os.pipe()
        pipes = open_stdio(order)
        pid = os.fork()
        if pid == 0:
            _become(lambda: become_container(order, self._order, self._entries), (*pipes.container, start_out))
        for fd in {*pipes.container, start_out}:
            os.close(fd)
        child = self._children[pid] = _Child(pid, order.name, reply_to, start_in, order)
        child.streams = ContainerStreams(order, pipes, log, self._loop, self._clock)
        self._loop.watch(start_in, lambda: self._read_start_pipe(child))
        _write_record(order, ContainerRecord(
            name=order.name, attempt=order.attempt, id=order.id, log=order.log, pid=pid, entry=order.entry,
            started_at=rfc3339(self._clock.now()),
        ))  # fmt: skip

    def _exec(self, request: ShimRequest, fds: list[int], reply_to: ReplyAddress) -> None:
        order = request.exec
        assert order is not None
        container = self._container(order.container)
        if len(fds) != 3:
            raise OSError(f"exec needs 3 descriptors, the request has {len(fds)}")
        start_in, start_out = os.pipe()
        inherited = container.order
        assert inherited is not None
        mounts = os.open(f"/proc/{container.pid}/ns/mnt", os.O_RDONLY)
        pid = os.fork()
        if pid == 0:
            _become(lambda: become_exec(order, inherited), (*fds, start_out, mounts))
        os.close(start_out)
        os.close(mounts)
        child = self._children[pid] = _Child(pid, order.container, reply_to, start_in)
        self._loop.watch(start_in, lambda: self._read_start_pipe(child))

    def _signal(self, request: ShimRequest) -> None:
        """Signals one process (``pid``), or a container's first process; does nothing when that has ended."""
        child = self._children.get(request.pid) if request.pid else self._running(request.container)
        if child is None:
            return
        os.kill(child.pid, request.signal)
        if request.signal == signal.SIGKILL:
            _kill_group(child.pid)

    def _attach(self, container: str, fds: list[int]) -> None:
        streams = self._container(container).streams
        if streams is None or len(fds) < 2:
            raise OSError(f"attach needs at least 2 descriptors, the request has {len(fds)}")
        streams.attach(fds)

    def _container(self, name: str) -> _Child:
        child = self._running(name)
        if child is None:
            raise OSError(f"container {name} is not running")
        return child

    def _running(self, container: str) -> _Child | None:
        for child in self._children.values():
            if child.order is not None and child.container == container:
                return child
        return None

    def _read_start_pipe(self, child: _Child) -> None:
        text = os.read(child.start_pipe, _CHUNK)
        child.problem += text.decode(errors="replace")
        if text:
            return
        self._loop.unwatch(child.start_pipe)
        os.close(child.start_pipe)
        child.start_pipe = -1
        self._connections.answer(child.reply_to, pid=child.pid, problem=child.problem)

    def _reap(self) -> None:
        for pid, code in self._exits.reap():
            child = self._children.pop(pid, None)
            if child is not None:
                self._end(child, code)

    def _end(self, child: _Child, code: int) -> None:
        while child.start_pipe >= 0:
            self._read_start_pipe(child)
        order = child.order
        if order is None:
            self._connections.publish(ShimAnswer(pid=child.pid, code=code))
            return
        _kill_group(child.pid)
        if order.groups:
            end_members(order.groups[0])
        if child.streams is not None:
            child.streams.close()
        self._finish_record(order, code, child.problem)
        self._connections.publish(ShimAnswer(pid=child.pid, code=code, container=order.name, attempt=order.attempt))

    def _finish_record(self, order: ContainerOrder, code: int, problem: str) -> None:
        record = msgspec.json.decode(Path(order.record).read_bytes(), type=ContainerRecord)
        reason = "StartError" if problem else "Completed" if code == 0 else "Error"
        if order.memory_group and has_killed(order.memory_group):
            reason = "OOMKilled"
        _write_record(order, msgspec.structs.replace(
            record, finished_at=rfc3339(self._clock.now()), code=code if code >= 0 else 128 - code,
            signal=max(0, -code), reason=reason, message=problem,
        ))  # fmt: skip


def _write_record(order: ContainerOrder, record: ContainerRecord) -> None:
    write_atomically(Path(order.record), msgspec.json.encode(record))


def _become(body: Callable[[], None], fds: tuple[int, ...]) -> None:
    """Runs ``body`` in a freshly forked process with ``fds`` and ends the process."""
    code = _NOT_STARTED
    try:
        Started.settle(fds)
        body()
        code = 0
    finally:
        leave(code)


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
    """Runs a shim until its end; ``entries`` are the images that are Python functions."""
    order = msgspec.msgpack.decode(payload, type=ShimOrder)
    listener = socket.socket(fileno=3)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if order.cgroup:
        join((order.cgroup,))
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    unshare(CLONE_NEWUTS if order.host_ipc else CLONE_NEWUTS | CLONE_NEWIPC)
    socket.sethostname(order.hostname)
    if not order.host_network:
        _raise_loopback()
        for path, value in _SYSCTLS:
            Path("/proc/sys", path).write_text(value, encoding="ascii")
    for name, value in order.sysctls:
        Path("/proc/sys", name.replace(".", "/")).write_text(value, encoding="ascii")
    Shim(listener, entries, order, SystemClock()).serve()
