"""A watch whose objects a webhook converts before they are sent.

Initial objects, changes and bookmarks wait in one queue, so that their order is kept. One call converts all objects of
an entry of the queue. When the webhook fails, the client gets an ERROR event, and the watch ends.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec

from podwire.embedded.apiserver import failures, views
from podwire.embedded.apiserver.fields import Filter
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.reads import ObjectReader
from podwire.embedded.apiserver.store import ObjectChange, StoredObject
from podwire.embedded.apiserver.watches import ClientWatch
from podwire.errors import ApiError
from podwire.http.answer import encode_chunk
from podwire.runtime.tasks import TaskSet

Convert = Callable[[ResourceKind, Sequence[StoredObject]], Awaitable[ApiError | None]]


class ConvertedWatch(ClientWatch):
    """The watch of one client at a version other than the storage version."""

    __slots__ = ("_convert", "_jobs", "_running", "_tasks")

    def __init__(
        self,
        convert: Convert,
        tasks: TaskSet,
        reader: ObjectReader,
        view: views.View,
        selection: Filter,
        *,
        bookmarks: bool,
    ) -> None:
        """``tasks`` owns the task that waits for ``convert``."""
        super().__init__(reader, view, selection, bookmarks=bookmarks)
        self._convert = convert
        self._tasks = tasks
        self._jobs: deque[tuple[Sequence[StoredObject], Callable[[], None]]] = deque()
        self._running = False

    @property
    def first_filter(self) -> Filter:
        """The filter without the fields of custom objects, which can be read only after the conversion."""
        return self.filter.coarse

    def initial(self, entries: Iterable[StoredObject], version: int, *, mark_end: bool) -> None:
        """Sends existing objects, when they are converted."""
        first_entries = list(entries)
        send = super().initial
        self._put(
            first_entries,
            lambda: send([e for e in first_entries if self.filter.matches(e)], version, mark_end=mark_end),
        )

    def receive(self, changes: Iterable[ObjectChange]) -> None:
        """Sends committed changes, when their objects are converted."""
        pending_changes = list(changes)
        self._put(
            [entry for change in pending_changes for entry in self._needed(change)],
            partial(super().receive, pending_changes),
        )

    def _needed(self, change: ObjectChange) -> tuple[StoredObject, ...]:
        """The forms of a changed object that the filter reads or that an event may have."""
        selection, before = self.filter.coarse, change.before
        now, earlier = selection.matches(change.entry), before is not None and selection.matches(before)
        if before is not None and self.filter.read is not None and (now or earlier):
            return (change.entry, before, change.departed)
        if now:
            return (change.entry,)
        return (change.departed,) if earlier else ()

    def bookmark(self, version: int) -> None:
        """Sends a bookmark behind the changes that still wait."""
        self._put((), partial(super().bookmark, version))

    def _put(self, entries: Sequence[StoredObject], send: Callable[[], None]) -> None:
        self._jobs.append((entries, send))
        if not self._running:
            self._running = True
            self._tasks.start("conversion of events", self._work())

    async def _work(self) -> None:
        try:
            while self._jobs:
                entries, send = self._jobs.popleft()
                failure = await self._convert(self.view.kind, entries)
                if failure is not None:
                    self._jobs.clear()
                    self._fail(failure)
                    return
                send()
        finally:
            self._running = False

    def _fail(self, failure: ApiError) -> None:
        event = {"type": "ERROR", "object": failures.status_of(failure)}
        self._send([encode_chunk(msgspec.json.encode(event) + b"\n")])
        self.close()
