"""Executes programs as a container runtime does, many at a time, from one thread.

A runtime is a compiled program whose own time hardly counts. ``subprocess`` in threads costs 0.7 ms per execution and
makes the threads wait for each other, which would be most of what is measured. Here an execution is one
``posix_spawn``, a write, and reads until the program has closed its output: 0.15 ms of Python.
"""

import contextlib
import os
import select
import time
from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple

_READ = 1 << 16


class Execution(NamedTuple):
    """One execution: arguments with the path of the program first, environment, standard input."""

    arguments: list[str]
    environment: dict[str, str]
    document: bytes


Call = Generator[Execution, tuple[int, bytes], None]
"""A call of a runtime: it yields the executions one after the other, and gets exit status and standard output."""


class _Running:
    """A call whose program runs."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._output = b""
        self._pid = 0
        self.started = time.perf_counter()
        self.descriptor = self._start(next(call))

    def _start(self, execution: Execution) -> int:
        """Starts a program; returns the end of the pipe with its output."""
        program, feed = os.pipe()
        output, printed = os.pipe()
        ends = [(os.POSIX_SPAWN_DUP2, program, 0), (os.POSIX_SPAWN_DUP2, printed, 1)]
        self._output = b""
        self._pid = os.posix_spawn(
            execution.arguments[0], execution.arguments, execution.environment, file_actions=ends
        )
        os.close(program)
        os.close(printed)
        with contextlib.suppress(BrokenPipeError):  # A program may end without reading its input.
            os.write(feed, execution.document)
        os.close(feed)
        return output

    def read(self) -> bool:
        """Reads output; whether there is more to come."""
        data = os.read(self.descriptor, _READ)
        self._output += data
        return bool(data)

    def proceed(self) -> bool:
        """Starts the next program behind the end of one; returns whether there is one."""
        os.close(self.descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        try:
            execution = self._call.send((status, self._output))
        except StopIteration:
            return False
        self.descriptor = self._start(execution)
        return True


def run_all(calls: Iterable[Call], width: int) -> list[float]:
    """Runs all calls, ``width`` of them at a time; returns the milliseconds of each, in the order of their ends."""
    waiting: Iterator[Call] = iter(calls)
    used: list[float] = []
    running: dict[int, _Running] = {}
    with select.epoll() as events:

        def follow(item: _Running) -> None:
            running[item.descriptor] = item
            events.register(item.descriptor, select.EPOLLIN)

        def admit() -> None:
            if (call := next(waiting, None)) is not None:
                follow(_Running(call))

        for _ in range(width):
            admit()
        while running:
            for descriptor, _ in events.poll():
                item = running[descriptor]
                if item.read():
                    continue
                del running[descriptor]
                # A program that was started a moment ago may still have a copy, which keeps the registration.
                events.unregister(descriptor)
                if item.proceed():
                    follow(item)
                else:
                    used.append((time.perf_counter() - item.started) * 1000)
                    admit()
    return used
