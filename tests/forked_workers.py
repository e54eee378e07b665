"""Workers that are forks of the process that collected the tests: ``-p tests.forked_workers --forks 6``.

Workers of pytest-xdist begin as new interpreters and collect all files each, the same work once for each of them. Here
one process collects, and its forks share what it has read. A worker asks for a file, runs its tests, and asks for the
next one; files are assigned in the order in which they were collected, those with the same marker ``worker(name)``
together. Fixtures of the session exist once for each worker. Reports travel to the first process some at a time, which
prints and counts them as if it had run the tests.

A worker that dies fails the tests of its file without a report, and another one takes its place. A test that does not
end in time (``--test-limit``) fails with the place where it waits; its worker is killed, and another one runs the rest
of the file. So a test that waits for ever costs minutes, not the whole run.
"""

import atexit
import faulthandler
import math
import mmap
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import pytest

_BATCH_S = 0.1
"""Reports of tests that end within this time travel together."""
_LOOK_S = 2.0
"""Seconds between two looks for tests that do not end."""
_LAST_S = 1.0
"""Seconds for a process to write where it is, or to end."""
_ASSIGNED, _ENDING = -1, -2
"""In place of the number of a test: the worker waits for a file, or ends the fixtures of its session."""
Message = tuple[str, dict[str, Any]]
"""The name of a hook of pytest and its arguments; reports are in the form in which they travel."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("forks").addoption(
        "--forks", type=int, default=0, metavar="N", help="Run files in N forks of this process.  [default: 0, no fork]"
    )
    parser.getgroup("forks").addoption(
        "--test-limit",
        type=float,
        default=300.0,
        metavar="S",
        help="Fail a test of a fork after S seconds.  [default: 300]",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("forks")
    if not count or session.testsfailed or session.config.option.collectonly:
        return None
    run = _Run(session)
    try:
        run.run(count)
    finally:
        run.end()
    return True


class _Present:
    """What a worker does now, and since when, in memory that it shares with the first process.

    Each of the two values is written at once. Nothing is overdue while they change.
    """

    def __init__(self) -> None:
        self._values = memoryview(mmap.mmap(-1, 16)).cast("d")
        self.begin(_ASSIGNED)

    def begin(self, number: int) -> None:
        """Notes the number of a test, or ``_ASSIGNED`` or ``_ENDING``."""
        self._values[1] = math.inf
        self._values[0] = number
        self._values[1] = time.monotonic()

    def overdue(self, limit: float) -> int | None:
        """The number of what has taken longer than ``limit`` seconds, if it has."""
        number = int(self._values[0])
        return number if number != _ASSIGNED and time.monotonic() - self._values[1] > limit else None


class _Worker:
    """A worker as the first process sees it."""

    def __init__(self, pid: int, connection: "Connection[Any, Any]", present: _Present, stack: Path) -> None:
        self.pid = pid
        self.connection = connection
        self.present = present
        self.items: dict[str, pytest.Item] = {}
        """The tests of its file that have not ended."""
        self.last: pytest.Item | None = None
        """The last test of its file."""
        self._stack = stack

    def kill(self) -> str:
        """Kills the worker; where its threads were."""
        handle = os.pidfd_open(self.pid)
        try:
            for number in (signal.SIGUSR2, signal.SIGKILL):
                signal.pidfd_send_signal(handle, number)
                if select.select([handle], [], [], _LAST_S)[0]:
                    os.waitpid(self.pid, 0)
                    break
        finally:
            os.close(handle)
        return self._stack.read_text(errors="replace")


class _Run:
    """The first process: assigns files, and passes on what workers report."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        files: dict[object, list[int]] = {}
        for number, item in enumerate(session.items):
            marker = item.get_closest_marker("worker")
            files.setdefault(marker.args if marker else item.path, []).append(number)
        self._files = deque(files.values())
        self._workers: list[_Worker] = []
        self._started = 0
        self._limit: float = session.config.getoption("test_limit")
        self._folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, count: int) -> None:
        """Returns when all tests have ended.

        Raises: Failed or Interrupted, as a run in one process does.
        """
        for _ in range(min(count, len(self._files))):
            self._start()
        while self._workers:
            ready = wait([worker.connection for worker in self._workers], _LOOK_S)
            for worker in tuple(self._workers):
                if worker.connection in ready:
                    self._receive(worker)
                elif (number := worker.present.overdue(self._limit)) is not None:
                    self._end_overdue(worker, number)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)

    def end(self) -> None:
        """Ends the workers that are left after their present test."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            handle = os.pidfd_open(worker.pid)
            ended = select.select([handle], [], [], self._limit)[0]
            os.close(handle)
            if ended:
                os.waitpid(worker.pid, 0)
            else:
                worker.kill()

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._started += 1
        present, stack = _Present(), self._folder / f"stack-of-w{self._started}"
        sys.stdout.flush()  # a fork would print it once more
        pid = os.fork()
        if pid == 0:
            for worker in self._workers:
                worker.connection.close()
            ours.close()
            faulthandler.register(signal.SIGUSR2, stack.open("w"))
            _work(self._session, _Reporter(self._session.config, theirs, present), self._folder / f"w{self._started}")
        theirs.close()
        self._workers.append(_Worker(pid, ours, present, stack))

    def _receive(self, worker: _Worker) -> None:
        try:
            messages: list[Message] = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._ended(worker)
            return
        for name, arguments in messages:
            self._pass_on(worker, name, arguments)
        if not messages:
            numbers = self._files.popleft() if self._files else []
            items = [self._session.items[number] for number in numbers]
            worker.items = {item.nodeid: item for item in items}
            worker.last = items[-1] if items else worker.last
            worker.connection.send(numbers)

    def _pass_on(self, worker: _Worker, name: str, arguments: dict[str, Any]) -> None:
        if name == "pytest_runtest_logreport":
            config = self._session.config
            report = self._hook.pytest_report_from_serializable(config=config, data=arguments["report"])
            self._hook.pytest_runtest_logreport(report=report)
            return
        getattr(self._hook, name)(**arguments)
        if name == "pytest_runtest_logfinish":
            worker.items.pop(arguments["nodeid"], None)

    def _end_overdue(self, worker: _Worker, number: int) -> None:
        """Fails a test that does not end and replaces its worker; the tests without a report run again."""
        self._workers.remove(worker)
        stack = worker.kill()
        worker.connection.close()
        item = worker.last if number == _ENDING else self._session.items[number]
        assert item is not None
        worker.items.pop(item.nodeid, None)
        what = "the end of the session's fixtures" if number == _ENDING else "the test"
        text = f"{what} took longer than {self._limit:g} s; where the worker was:\n{stack}"
        self._fail(item, text, "teardown" if number == _ENDING else "call")
        if left := set(worker.items):
            self._files.appendleft([place for place, other in enumerate(self._session.items) if other.nodeid in left])
        if self._files:
            self._start()

    def _fail(self, item: pytest.Item, text: str, when: Literal["call", "teardown"] = "call") -> None:
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, when)
        self._hook.pytest_runtest_logreport(report=report)

    def _ended(self, worker: _Worker) -> None:
        """Fails the tests that a worker did not report, and replaces the worker."""
        self._workers.remove(worker)
        worker.connection.close()
        _, status = os.waitpid(worker.pid, 0)
        if not status:
            return
        code, lost = os.waitstatus_to_exitcode(status), list(worker.items.values())
        how = f"signal {-code}" if code < 0 else f"status {code}"
        for item in lost or [worker.last] if worker.last else []:
            text = f"the worker ended with {how} in one of the tests of {item.nodeid.partition('::')[0]}, or after them"
            self._fail(item, text, "call" if lost else "teardown")
        if self._files:
            self._start()


class _Reporter:
    """The plugin by which a worker reports."""

    def __init__(self, config: pytest.Config, connection: "Connection[Any, Any]", present: _Present) -> None:
        self._config = config
        self._connection = connection
        self.present = present
        self._messages: list[Message] = []
        self._sent = 0.0
        self._pid = os.getpid()

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._messages.append(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._messages.append(("pytest_runtest_logreport", {"report": data}))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._messages.append(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))
        if time.monotonic() - self._sent > _BATCH_S:
            self.send()

    def send(self) -> None:
        """Sends what has been reported; a process that a test forked and did not end is no worker, and ends here."""
        if os.getpid() != self._pid:
            os._exit(1)
        if self._messages:
            self._connection.send(self._messages)
            self._messages, self._sent = [], time.monotonic()

    def next_file(self) -> list[int]:
        """The numbers of the tests of another file; none when all files are assigned."""
        self.send()
        self.present.begin(_ASSIGNED)
        self._connection.send([])
        numbers: list[int] = self._connection.recv()
        return numbers


def _work(session: pytest.Session, reporter: _Reporter, folder: Path) -> None:
    """Runs files until there are no more; ends the process."""
    status = 1
    atexit._clear()  # what the first process has registered is its own to do
    try:
        _detach(session, reporter, folder)
        try:
            for item, following in _assigned(session, reporter):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail or session.shouldstop:
                    break
        finally:
            reporter.present.begin(_ENDING)
            session.config.hook.pytest_sessionfinish(session=session, exitstatus=0)
        reporter.send()
        session.config._ensure_unconfigure()
        atexit._run_exitfuncs()
        status = 0
    except (EOFError, ConnectionError, KeyboardInterrupt):
        status = 2  # the first process has ended
    finally:
        if status == 1:
            traceback.print_exc(file=sys.__stderr__)
        os._exit(status)


def _detach(session: pytest.Session, reporter: _Reporter, folder: Path) -> None:
    """Gives the worker folders and files of its own, and reports to the first process."""
    session.config.option.basetemp = str(folder)
    factory = pytest.TempPathFactory.from_config(session.config, _ispytest=True)
    session.config._tmp_path_factory = factory  # type: ignore[attr-defined]
    plugins = session.config.pluginmanager
    plugins.unregister(name="terminalreporter")
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    plugins.register(reporter, "forked_worker")


def _assigned(session: pytest.Session, reporter: _Reporter) -> Iterator[tuple[pytest.Item, Any]]:
    """The tests of this worker, each with the next one of its file; with the last one, all but the session ends."""
    while numbers := reporter.next_file():
        items = [session.items[number] for number in numbers]
        for number, item, following in zip(numbers, items, (*items[1:], session), strict=True):
            reporter.present.begin(number)
            yield item, following
