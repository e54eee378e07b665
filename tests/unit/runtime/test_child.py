"""Running programs: output, exit status, time limit."""

import asyncio
import os
import time

import pytest

from podwire.runtime.child import call, run

ENV = {"PATH": "/usr/bin:/bin", "GREETING": "hello"}


def test_program_gets_input_and_environment() -> None:
    done = asyncio.run(run(["/bin/sh", "-c", "cat; echo $GREETING; echo bad >&2; exit 3"], env=ENV, stdin=b"in\n"))
    assert (done.code, done.output, done.errors) == (3, b"in\nhello\n", b"bad\n")


def test_time_limit_kills() -> None:
    started = time.monotonic()
    done = asyncio.run(run(["/bin/sleep", "600"], env=ENV, timeout_s=0.05))
    assert done.code is None
    assert time.monotonic() - started < 300


def test_signal_is_a_negative_code() -> None:
    assert asyncio.run(run(["/bin/sh", "-c", "kill -9 $$"], env=ENV)).code == -9


def test_program_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(run(["/nowhere/at/all"], env=ENV))


def test_a_thread_that_waits_gets_the_same() -> None:
    done = call(["/bin/sh", "-c", "cat; echo $GREETING; echo bad >&2; exit 3"], env=ENV, stdin=b"in\n")
    assert (done.code, done.output, done.errors) == (3, b"in\nhello\n", b"bad\n")
    assert call(["/bin/sh", "-c", "kill -9 $$"], env=ENV).code == -9
    assert call(["/bin/sleep", "600"], env=ENV, timeout_s=0.05).code is None
    with pytest.raises(FileNotFoundError):
        call(["/nowhere/at/all"], env=ENV)


def test_large_input_to_a_program_that_reads_none() -> None:
    text = b"x" * (1 << 20)
    assert call(["/bin/cat"], env=ENV, stdin=text).output == text
    assert call(["/bin/true"], env=ENV, stdin=text).code == 0


def test_process_id_is_reported_before_input_is_written() -> None:
    reported: list[int] = []
    done = call(["/bin/sh", "-c", "read line; echo $$"], env=ENV, stdin=b"go\n", started=reported.append)
    assert [int(done.output)] == reported


def test_a_failing_listener_ends_the_program() -> None:
    def fail(pid: int) -> None:
        raise RuntimeError(pid)

    with pytest.raises(RuntimeError) as caught:
        call(["/bin/sleep", "30"], env=ENV, started=fail)
    with pytest.raises(ProcessLookupError):
        os.kill(caught.value.args[0], 0)
