"""Child processes that keep running: the whole desired set goes in, survivors of an earlier parent are adopted.

A component that needs programs beside itself (a routing backend with a BGP daemon, the supervisor of a local cluster)
describes each of them as a :class:`~podwire.runtime.program.Child`: name, arguments, environment, and the files that
the program reads. :meth:`Children.apply` makes exactly these children run. It can be called again with the same set
without effect.

How a routing backend uses it::

    children = Children(run_dir / "children", spawn_program, supervisor, clock, report)
    await children.apply([
        Child(
            name="bird",
            argv=("/usr/sbin/bird", "-f", "-c", f"{run_dir}/bird.conf", "-s", f"{run_dir}/bird.ctl"),
            files={f"{run_dir}/bird.conf": configuration.encode()},
            check=("/usr/sbin/bird", "-p", "-c", f"{run_dir}/bird.conf"),
            on_file_change="reload",
            reload=("/usr/sbin/birdcl", "-s", f"{run_dir}/bird.ctl", "configure"),
        )
    ])
    await children.apply([])  # the backend is switched off: its children end and their files go

Children outlive their parent. Each runs in a session of its own, without a parent-death signal, because traffic may
depend on it (BGP sessions, a user-space tunnel). When the agent crashes or is upgraded, the child runs on; the next
agent finds the child's record (number, start time and a hash of the command, in one file per child) and adopts it. A
child whose command differs from the desired one is ended and started again. In a container, the children end with the
container.

Guarantees: 1. a child that ends is started again: at once the first time, then after 0.1 s doubling to 5 s; 2. a child
that ran for ten seconds starts again without delay; 3. a child that is no longer wanted gets SIGTERM, and SIGKILL after
three seconds; when the call returns it has ended; 4. files are written before the child starts or gets the signal to
read them; 5. a child that cannot be started is reported and tried again, and does not delay the other children; 6.
files that a child's own check refuses are never written: the child continues with the last valid files; 7. a reload of
files that fails is repeated until it succeeds, also after an adoption.

Limit: a parent that is killed between the start of a child and the writing of its record leaves a child that no later
parent knows of.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from podwire.errors import ConfigError
from podwire.runtime.backoff import Backoff
from podwire.runtime.child import enter_namespace, enter_netns, run
from podwire.runtime.childrecord import Record, read_record, write_record
from podwire.runtime.clock import Clock
from podwire.runtime.files import write_atomically
from podwire.runtime.process import send_signal, start_ticks
from podwire.runtime.program import Child
from podwire.runtime.supervise import Supervisor

_SOUND_S = 10.0
_COMMAND_S = 10.0
_TERM_WAIT_S = 3.0


class ChildEvent(msgspec.Struct, frozen=True):
    """An event of a child, for the parent's log."""

    name: str
    pid: int
    event: Literal["adopted", "ended"]
    """``ended``: the child ended by itself and is started again."""


Start = Callable[[Child], int]
"""Starts a child's program and returns the number of its process. Raises: OSError, ClusterError."""


class _Watch:
    """The watch over one child."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.pid = 0
        self.restarts = 0
        self.backoff = Backoff(first_s=0.1, ceiling_s=5.0)
        self.task: asyncio.Task[None] | None = None
        self.unread = False
        """Whether the program still has to be signalled to read its files."""
        self.tried = asyncio.Event()
        """Set once the child is adopted, or its first start has succeeded or failed."""


class Children:
    """Keeps the children of one parent running; ``tasks`` runs one watching task for each of them."""

    def __init__(
        self,
        directory: Path,
        start: Start,
        tasks: Supervisor,
        clock: Clock,
        report: Callable[[ChildEvent], None],
        *,
        term_wait_s: float = _TERM_WAIT_S,
    ) -> None:
        """``directory`` holds the record files and is made when it is missing; a child that still runs ``term_wait_s``
        after SIGTERM is killed.

        Raises: OSError.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._start = start
        self._tasks = tasks
        self._clock = clock
        self._report = report
        self._term_wait_s = term_wait_s
        self._watches: dict[str, _Watch] = {}

    async def apply(self, desired: Iterable[Child]) -> None:
        """Makes exactly these children run; others that this parent or an earlier one started are ended.

        Raises: OSError when a file cannot be written, ConfigError when the files of a child are refused; the children
        before it are as desired then.
        """
        children = tuple(desired)
        names = {child.name for child in children}
        recorded = {file.stem for file in self._directory.glob("*.json")}
        await self.stop(sorted((recorded | self._watches.keys()) - names))
        for child in children:
            await self.ensure(child)

    async def ensure(self, child: Child) -> None:
        """Makes one child run and leaves the others as they are, for a parent that starts its children in stages.

        Returns when the child has been started, or could not be.

        Raises: OSError when a file cannot be written, ConfigError when the files are refused; the child is as it was
        then. ConfigError too when the program cannot be signalled to read its files; a further call tries it again.
        """
        watch = self._watches.get(child.name)
        if watch is not None and watch.child == child and not watch.unread:
            return
        record = read_record(self._file(child.name))
        changed = [path for path, content in child.files.items() if _read(Path(path)) != content]
        if changed and child.check:
            await _check_files(child)
        _write_files(child, changed, record)
        stays = record is not None and record.running
        if record is not None and stays:
            if record.command != _command(child) or (changed and child.on_file_change == "restart"):
                await self._end([child.name], kill=child.restart_by == "kill")
                watch, stays = None, False
            else:
                self._write_record(child, record)
        unread = stays and child.on_file_change == "reload" and _must_read(child, watch, changed)
        if watch is None:
            watch = self._watch(child)
            await watch.tried.wait()
        else:
            watch.child = child
        watch.unread = unread
        if record is not None and unread:
            await _tell(child, record.pid)
            watch.unread = False

    async def stop(self, names: Iterable[str]) -> None:
        """Ends the named children together, and deletes their records and files; returns when they have ended."""
        for name, record in (await self._end(list(names))).items():
            for path in record.files:
                Path(path).unlink(missing_ok=True)
            self._file(name).unlink(missing_ok=True)

    async def replace(self, child: Child) -> None:
        """Ends a child, wherever it came from, and starts it as given; returns when the new one has been started.

        Raises: OSError when a file cannot be written; the child has ended then.
        """
        await self._end([child.name], kill=child.restart_by == "kill")
        await self.ensure(child)

    def is_running(self, name: str) -> bool:
        """Whether the child of that name runs, started by this parent or by an earlier one."""
        record = read_record(self._file(name))
        return record is not None and record.running

    def pids(self) -> dict[str, int]:
        """The process number of each watched child by name; 0 for a child that is not started yet."""
        return {name: watch.pid for name, watch in self._watches.items()}

    def _watch(self, child: Child) -> _Watch:
        watch = self._watches[child.name] = _Watch(child)
        watch.task = self._tasks.start(child.name, lambda: self._keep_running(watch))
        return watch

    async def _keep_running(self, watch: _Watch) -> None:
        name = watch.child.name
        try:
            self._begin(watch)
        finally:
            watch.tried.set()
        while True:
            since = self._clock.monotonic()
            await _ended(watch.pid)
            if self._clock.monotonic() - since > _SOUND_S:
                watch.backoff.reset()
                watch.restarts = 0
            if watch.restarts:
                await self._clock.sleep(watch.backoff.next_delay_s())
            watch.restarts += 1
            self._report(ChildEvent(name, watch.pid, "ended"))
            self._spawn(watch)

    def _begin(self, watch: _Watch) -> None:
        """Adopts the child of an earlier parent, or starts it."""
        name = watch.child.name
        record = read_record(self._file(name))
        if record is not None and record.running:
            watch.pid = record.pid
            self._report(ChildEvent(name, watch.pid, "adopted"))
        else:
            self._spawn(watch)

    def _spawn(self, watch: _Watch) -> None:
        child = watch.child
        watch.pid = 0
        watch.pid = pid = self._start(child)
        self._write_record(child, Record(pid, start_ticks(pid), "", version=child.version))

    def _write_record(self, child: Child, known: Record) -> None:
        record = Record(known.pid, known.started, _command(child), tuple(child.files), known.version)
        write_record(self._file(child.name), record)

    async def _end(self, names: list[str], *, kill: bool = False) -> dict[str, Record]:
        """Ends children and forgets them; their records by name."""
        for name in names:
            watch = self._watches.pop(name, None)
            if watch is not None and watch.task is not None:
                watch.task.cancel()
        files = {name: read_record(self._file(name)) for name in names}
        records = {name: record for name, record in files.items() if record is not None}
        wait_s = 0.0 if kill else self._term_wait_s
        await asyncio.gather(*(_terminate(record, wait_s) for record in records.values()))
        return records

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.json"


def spawn_program(child: Child) -> int:
    """Starts ``argv`` as a program of its own session and returns the number of its process.

    Without the right to raise a priority the program runs with that of its parent.

    Raises: OSError when there is no such program or no such network namespace.
    """
    actions: list[tuple[int, int, str, int, int]] = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)]
    if child.log:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions += [(os.POSIX_SPAWN_OPEN, number, child.log, flags, 0o644) for number in (1, 2)]
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC) if child.netns else -1
    try:
        if child.netns:
            enter_netns(child.netns)
        pid = os.posix_spawn(
            child.argv[0], child.argv, dict(child.environment), file_actions=actions, setsid=True,
            setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM),
        )  # fmt: skip
    finally:
        if own >= 0:
            enter_namespace(own, 0)
            os.close(own)
    if child.niceness:
        _set_niceness(pid, child.niceness)
    return pid


def _set_niceness(pid: int, niceness: int) -> None:
    """Sets the priority of a process, and that of its session.

    With ``sched_autogroup_enabled`` the scheduler divides the processor between sessions, and the priority of a process
    counts only within its own (sched(7), "The autogroup feature").
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")


async def stop_recorded(directory: Path) -> None:
    """Ends the children whose records are in a directory, when their parent has ended for good."""
    for file in directory.glob("*.json"):
        record = read_record(file)
        if record is not None and record.running:
            await _terminate(record, _TERM_WAIT_S)
        file.unlink(missing_ok=True)


def _command(child: Child) -> str:
    text = msgspec.json.encode((child.argv, sorted(child.environment.items()), child.netns))
    return hashlib.sha256(text).hexdigest()[:16]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


async def _check_files(child: Child) -> None:
    """Runs the child's check on the new content of all its files.

    Raises: ConfigError with the first line that the check wrote; OSError.
    """
    new = {path: f"{path}.new" for path in child.files}
    try:
        for path, content in child.files.items():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(Path(new[path]), content, 0o600)
        await _run_command(child, [new.get(argument, argument) for argument in child.check], "refused")
    finally:
        for path in new.values():
            Path(path).unlink(missing_ok=True)


def _write_files(child: Child, changed: Iterable[str], record: Record | None) -> None:
    """Writes the changed files, and deletes those of the record that the child has no more.

    Raises: OSError.
    """
    for path in changed:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), child.files[path], 0o600)
    if record is not None:
        for path in set(record.files) - child.files.keys():
            Path(path).unlink(missing_ok=True)


def _must_read(child: Child, watch: _Watch | None, changed: Sequence[str]) -> bool:
    """Whether a running child has to be signalled to read its files.

    A child of an earlier parent may not have been told of the last change; only a command is harmless then.
    """
    adopted_or_late = watch is None or watch.unread
    return bool(changed) or (bool(child.reload) and adopted_or_late)


async def _tell(child: Child, pid: int) -> None:
    """Makes the child read its files.

    Raises: ConfigError when its command fails; OSError.
    """
    if child.reload:
        await _run_command(child, child.reload, "not read by the running program")
    else:
        send_signal(pid, signal.SIGHUP)


async def _run_command(child: Child, argv: Sequence[str], problem: str) -> None:
    finished = await run(argv, env=child.environment, timeout_s=_COMMAND_S)
    if finished.code != 0:
        lines = (finished.errors + finished.output).decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"exit status {finished.code}"
        raise ConfigError(f"the files of {child.name}", "", f"{problem}: {reason}")


async def _terminate(record: Record, wait_s: float) -> None:
    """Ends a process by SIGTERM, and after ``wait_s`` by SIGKILL; 0 kills at once."""
    if not record.running:
        return
    if not wait_s:
        send_signal(record.pid, signal.SIGKILL)
        await _ended(record.pid)
        return
    send_signal(record.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(wait_s):
            await _ended(record.pid)
    except TimeoutError:
        send_signal(record.pid, signal.SIGKILL)
        await _ended(record.pid)


async def _ended(pid: int) -> None:
    """Returns when the process has ended; its status is taken where it is a child of this process."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
