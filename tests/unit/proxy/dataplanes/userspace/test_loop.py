"""Events, timers, and what is closed among them."""

import os
from collections.abc import Iterator

import pytest

from podwire.proxy.dataplanes.userspace.loop import READ, WRITE, Loop


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


def test_timers_in_their_order() -> None:
    now, called = [0.0], []
    loop = Loop(lambda: now[0])
    for delay in (3, 1, 2, 1):
        loop.later(delay, lambda delay=delay: called.append(delay))  # type: ignore[misc]
    now[0] = 2.0
    loop.turn()
    assert called == [1, 1, 2]
    now[0] = 3.0
    loop.turn()
    assert called == [1, 1, 2, 3]
    loop.close_all()


def test_events_as_they_are_wanted(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    loop = Loop()
    observed: list[int] = []
    os.write(writing, b"x")
    loop.watch(reading, READ, observed.append)
    loop.turn()
    loop.watch(reading, 0, observed.append)
    loop.watch(writing, WRITE, lambda _: observed.append(-1))
    loop.turn()
    assert observed == [READ, -1]
    loop.ignore(writing)
    loop.ignore(writing)
    loop.close_all()


def test_descriptor_closed_by_one_event_gets_no_other(pipe: tuple[int, int]) -> None:
    """Both ends have events; the first handler closes both, and their numbers are not free before the turn is over."""
    reading, writing = pipe
    loop = Loop()
    observed: list[int] = []
    os.write(writing, b"x")

    def close_both(_events: int) -> None:
        observed.append(os.dup(reading))
        loop.close(reading)
        loop.close(writing)

    loop.watch(reading, READ, close_both)
    loop.watch(writing, WRITE, close_both)
    loop.turn()
    (copy,) = observed
    assert copy not in (reading, writing)
    for end in (reading, writing):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)
    os.close(copy)
    loop.close_all()
