"""Answers that are sent when the objects in them are on the disk."""

import asyncio
from collections.abc import Awaitable, Callable

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.store import Store
from podwire.errors import ApiError
from podwire.http.answer import Result
from podwire.http.message import Response


class DurableAnswers:
    """Holds answers back until the store has written a version."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def settled(self, version: int, read: Callable[[], Response]) -> Result | Awaitable[Result]:
        """The answer to a read, sent when the objects are on the disk; read again when their write fails."""
        answer = read_or_failure(read)
        durable = self._store.durable(version)
        if durable is None:
            return answer
        settled: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def finish(done: "asyncio.Future[None]") -> None:
            lost = not done.cancelled() and done.exception() is not None
            if not settled.done():
                settled.set_result(read_or_failure(read) if lost else answer)

        durable.add_done_callback(finish)
        return settled

    def later(self, version: int, answer: Callable[[], Response]) -> Result | Awaitable[Result]:
        durable = self._store.durable(version)
        if durable is None:
            return answer()
        settled: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def finish(done: "asyncio.Future[None]") -> None:
            if settled.done() or done.cancelled():
                return
            failure = done.exception()
            try:
                if isinstance(failure, ApiError):
                    raise failure
                settled.set_result(answer())
            except ApiError as problem:
                settled.set_result(failures.render(problem))

        durable.add_done_callback(finish)
        return settled


def read_or_failure(read: Callable[[], Response]) -> Response:
    """The answer, or the Status of its failure."""
    try:
        return read()
    except ApiError as failure:
        return failures.render(failure)
