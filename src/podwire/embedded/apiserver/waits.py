"""Work that may have to wait, as a generator: it yields an awaitable, and is sent the awaitable's result.

A write runs in one turn of the event loop until it must call another process, such as a webhook. Most writes call none
and cost no task. A yielded awaitable never raises: a failure is part of its result.
"""

from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")
Waits = Generator[Awaitable[Any], Any, Result]


def begin(work: Waits[Result]) -> Result | Coroutine[Any, Any, Result]:
    """The result of the work or, when the work has to wait, a coroutine that finishes it."""
    try:
        awaited = next(work)
    except StopIteration as done:
        result: Result = done.value
        return result
    return _rest(work, awaited)


def complete(work: Waits[Result]) -> Result:
    """The result of the server's own work, which never waits."""
    try:
        next(work)
    except StopIteration as done:
        result: Result = done.value
        return result
    work.close()
    raise AssertionError("the server's own write would wait for a webhook")


def remainder(work: Waits[None]) -> Waits[None] | None:
    """Begins work; returns None when it is done, or the remaining work when it has to wait."""
    try:
        awaited = next(work)
    except StopIteration:
        return None
    return _continued(work, awaited)


def _continued(work: Waits[None], awaited: Awaitable[Any]) -> Waits[None]:
    try:
        while True:
            result = yield awaited
            try:
                awaited = work.send(result)
            except StopIteration:
                return
    finally:
        work.close()


async def _rest(work: Waits[Result], awaited: Awaitable[Any]) -> Result:
    try:
        while True:
            try:
                awaited = work.send(await awaited)
            except StopIteration as done:
                result: Result = done.value
                return result
    finally:
        work.close()
