"""Workers that are forks of the process that collected the tests: ``-p tests.forked_workers --forks 6``.

Workers of pytest-xdist begin as new interpreters and collect all files each, the same work once for each of them. Here
one process collects, and its forks share what it has read. A worker asks for a file, runs its tests, and asks for the
next one; files are assigned in the order in which they were collected, those with the same marker ``worker(name)``
together. Fixtures of the session exist once for each worker. Reports travel to the first process some at a time, which
prints and counts them as if it had run the tests.

A worker that dies fails the tests of its file without a report, and another one takes its place.
"""

import atexit
import os
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
Message = tuple[str, dict[str, Any]]
"""The name of a hook of pytest and its arguments; reports are in the form in which they travel."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("forks").addoption(
        "--forks", type=int, default=0, metavar="N", help="Run files in N forks of this process.  [default: 0, no fork]"
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


class _Worker:
    """A worker as the first process sees it."""

    def __init__(self, pid: int, connection: "Connection[Any, Any]") -> None:
        self.pid = pid
        self.connection = connection
        self.items: dict[str, pytest.Item] = {}
        """The tests of its file that have not ended."""
        self.last: pytest.Item | None = None
        """The last test of its file."""


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
        self._folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]

    def run(self, count: int) -> None:
        """Returns when all tests have ended.

        Raises: Failed or Interrupted, as a run in one process does.
        """
        for _ in range(min(count, len(self._files))):
            self._start()
        while self._workers:
            ready = wait([worker.connection for worker in self._workers])
            for worker in [worker for worker in self._workers if worker.connection in ready]:
                self._receive(worker)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)

    def end(self) -> None:
        """Ends the workers that are left after their present test."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            os.waitpid(worker.pid, 0)

    def _start(self) -> None:
        ours, theirs = Pipe()
        self._started += 1
        sys.stdout.flush()  # a fork would print it once more
        pid = os.fork()
        if pid == 0:
            for worker in self._workers:
                worker.connection.close()
            ours.close()
            _work(self._session, theirs, self._folder / f"w{self._started}")
        theirs.close()
        self._workers.append(_Worker(pid, ours))

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
            when: Literal["call", "teardown"] = "call" if lost else "teardown"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, when)
            self._hook.pytest_runtest_logreport(report=report)
        if self._files:
            self._start()


class _Reporter:
    """The plugin by which a worker reports."""

    def __init__(self, config: pytest.Config, connection: "Connection[Any, Any]") -> None:
        self._config = config
        self._connection = connection
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
        self._connection.send([])
        numbers: list[int] = self._connection.recv()
        return numbers


def _work(session: pytest.Session, connection: "Connection[Any, Any]", folder: Path) -> None:
    """Runs files until there are no more; ends the process."""
    status = 1
    atexit._clear()  # what the first process has registered is its own to do
    try:
        reporter = _detach(session, connection, folder)
        try:
            for item, following in _assigned(session, reporter):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.shouldfail or session.shouldstop:
                    break
        finally:
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


def _detach(session: pytest.Session, connection: "Connection[Any, Any]", folder: Path) -> _Reporter:
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
    reporter = _Reporter(session.config, connection)
    plugins.register(reporter, "forked_worker")
    return reporter


def _assigned(session: pytest.Session, reporter: _Reporter) -> Iterator[tuple[pytest.Item, Any]]:
    """The tests of this worker, each with the next one of its file; with the last one, all but the session ends."""
    while numbers := reporter.next_file():
        items = [session.items[number] for number in numbers]
        yield from zip(items, (*items[1:], session), strict=True)
