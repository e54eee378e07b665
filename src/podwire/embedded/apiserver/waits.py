"""Work that may have to wait, as a generator: it yields what it waits for, and is sent what that gave.

A write runs without leaving the event loop's turn until something must be asked outside the process, such as a webhook.
Most writes ask nothing and cost no task. What is yielded never fails: failures are part of what it gives.
"""

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

Given = TypeVar("Given")
Waits = Generator[Awaitable[Any], Any, Given]


def begin(work: Waits[Given]) -> Given | Coroutine[Any, Any, Given]:
    """What the work returns, or when it has to wait, a coroutine that does the rest."""
    try:
        awaited = next(work)
    except StopIteration as done:
        given: Given = done.value
        return given
    return _rest(work, awaited)


def complete(work: Waits[Given]) -> Given:
    """What work returns that the server does for itself, which never waits."""
    try:
        next(work)
    except StopIteration as done:
        given: Given = done.value
        return given
    work.close()
    raise AssertionError("the server's own write would wait for a webhook")


def remainder(work: Waits[None]) -> Waits[None] | None:
    """Begins work; returns None when it is done, and where it has to wait, what is left of it."""
    try:
        awaited = next(work)
    except StopIteration:
        return None
    return _continued(work, awaited)


def _continued(work: Waits[None], awaited: Awaitable[Any]) -> Waits[None]:
    try:
        while True:
            given = yield awaited
            try:
                awaited = work.send(given)
            except StopIteration:
                return
    finally:
        work.close()


async def _rest(work: Waits[Given], awaited: Awaitable[Any]) -> Given:
    try:
        while True:
            try:
                awaited = work.send(await awaited)
            except StopIteration as done:
                given: Given = done.value
                return given
    finally:
        work.close()
