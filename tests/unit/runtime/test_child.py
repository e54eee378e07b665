"""Running programs: output, exit status, time limit."""

import asyncio
import time

import pytest

from podwire.runtime.child import run

ENV = {"PATH": "/usr/bin:/bin", "GREETING": "hello"}


def test_program_gets_input_and_environment() -> None:
    done = asyncio.run(run(["/bin/sh", "-c", "cat; echo $GREETING; echo bad >&2; exit 3"], env=ENV, stdin=b"in\n"))
    assert (done.code, done.output, done.errors) == (3, b"in\nhello\n", b"bad\n")


def test_time_limit_kills() -> None:
    started = time.monotonic()
    done = asyncio.run(run(["/bin/sleep", "30"], env=ENV, timeout_s=0.05))
    assert done.code is None
    assert time.monotonic() - started < 5


def test_signal_is_a_negative_code() -> None:
    assert asyncio.run(run(["/bin/sh", "-c", "kill -9 $$"], env=ENV)).code == -9


def test_program_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(run(["/nowhere/at/all"], env=ENV))
