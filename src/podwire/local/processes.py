"""The processes of a local cluster: started by the fork server, watched by pidfd, started again when they end.

Each process has a record in a file (pid and start time, so that a reused pid is not mistaken for it). A new
supervisor adopts the processes that its predecessor left behind instead of starting them again. Every process
joins the cluster's cgroup, if there is one, so that all of them can be ended at once.

Guarantees: 1. a process that ends is started again: at once the first time, then after 0.1 s doubling to 5 s;
2. one that ran for ten seconds counts as sound again; 3. ``stop`` sends SIGTERM, waits, then SIGKILL.
"""

import asyncio
import os
import signal
from pathlib import Path

import msgspec

from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.child import Placement
from podwire.runtime.clock import Clock
from podwire.runtime.forkserver import ForkServer

_SOUND_S = 10.0
_TERM_WAIT_S = 3.0


class Order(msgspec.Struct, frozen=True):
    """One process to keep running: its name, the fork server's entry, its payload and placement."""

    name: str
    entry: str
    payload: bytes
    placement: Placement


class Record(msgspec.Struct, frozen=True):
    """What a process file holds; ``started`` is the kernel's start time in clock ticks since boot."""

    pid: int
    started: int


class _Kept:
    """A process under watch."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.backoff = Backoff(first_s=0.1, ceiling_s=5.0)
        self.pid = 0
        self.since = 0.0
        self.restarts = 0
        self.ended = asyncio.Event()
        self.wanted = True


class Processes:
    """Keeps a set of processes running."""

    def __init__(self, fork_server: ForkServer, records: Path, cgroup: Path | None, clock: Clock) -> None:
        self._fork_server = fork_server
        self._records = records
        self._cgroup = cgroup
        self._clock = clock
        self._log = Log("supervisor")
        self._kept: dict[str, _Kept] = {}

    async def keep(self, order: Order) -> None:
        """Runs one process until :meth:`stop`; adopts it when it runs already. Returns after the stop."""
        kept = self._kept[order.name] = _Kept(order)
        kept.pid = self._adopt(order.name) or self._spawn(kept)
        while kept.wanted:
            kept.since = self._clock.monotonic()
            await _gone(kept.pid)
            if not kept.wanted:
                break
            if self._clock.monotonic() - kept.since > _SOUND_S:
                kept.backoff.reset()
                kept.restarts = 0
            if kept.restarts:
                await self._clock.sleep(kept.backoff.next_delay_s())
            kept.restarts += 1
            self._log.warning("process ended, starting it again", process=order.name, pid=kept.pid)
            kept.pid = self._spawn(kept)
        kept.ended.set()

    def keeps(self, name: str) -> bool:
        """Whether a process of that name is kept running."""
        return name in self._kept

    def runs(self, name: str) -> bool:
        """Whether a process of that name runs, kept by this supervisor or left by another."""
        record = read_record(self._file(name))
        return record is not None and start_time(record.pid) == record.started

    def pids(self) -> dict[str, int]:
        """The pid of each process by name."""
        return {name: kept.pid for name, kept in self._kept.items()}

    async def stop(self, names: list[str]) -> None:
        """Ends the named processes, together, and forgets them."""
        stopping = [self._kept[name] for name in names if name in self._kept]
        for kept in stopping:
            kept.wanted = False
            signal_process(kept.pid, signal.SIGTERM)
        waits = [asyncio.wait_for(kept.ended.wait(), _TERM_WAIT_S) for kept in stopping]
        results = await asyncio.gather(*waits, return_exceptions=True)
        for kept, result in zip(stopping, results, strict=True):
            if isinstance(result, BaseException):
                signal_process(kept.pid, signal.SIGKILL)
            self._file(kept.order.name).unlink(missing_ok=True)
            del self._kept[kept.order.name]

    def _spawn(self, kept: _Kept) -> int:
        order = kept.order
        pid = self._fork_server.spawn(order.entry, order.payload, placement=order.placement)
        join_cgroup(pid, self._cgroup)
        record = Record(pid=pid, started=start_time(pid) or 0)
        file = self._file(order.name)
        coming = file.with_suffix(".new")
        coming.write_bytes(msgspec.json.encode(record))
        coming.replace(file)  # at no moment is there half a record
        return pid

    def _adopt(self, name: str) -> int:
        record = read_record(self._file(name))
        if record and start_time(record.pid) == record.started:
            self._log.info("adopted a running process", process=name, pid=record.pid)
            return record.pid
        return 0

    def _file(self, name: str) -> Path:
        return self._records / f"{name}.json"


async def _gone(pid: int) -> None:
    """Returns when the process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _finish, ended)
    try:
        await ended
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/<pid>/stat, or None when there is no such process (zombies count as none)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def read_record(file: Path) -> Record | None:
    """The record in a process file; None when it is missing or torn."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return None


def signal_process(pid: int, number: signal.Signals) -> bool:
    """Sends a signal; False when the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def join_cgroup(pid: int, cgroup: Path | None) -> None:
    """Moves a process into a cgroup; a process that ended meanwhile is let go."""
    if cgroup is None:
        return
    try:
        (cgroup / "cgroup.procs").write_text(str(pid), encoding="ascii")
    except ProcessLookupError:
        pass


def _finish(ended: "asyncio.Future[None]") -> None:
    if not ended.done():
        ended.set_result(None)
