"""Watches: the changes of one kind, as a stream of events.

A watch starts with the existing objects (resourceVersion 0 or absent, or ``sendInitialEvents``) or with the kept
changes after its version; a version older than these changes gets 410 Gone. Then the watch gets every commit. With
selectors, an object that starts to match is ADDED. An object that stops matching is DELETED: the event has the last
form that matched, under the version of the change.

Each event is encoded once per view and shared by all clients as HTTP chunks. Changes that are committed within a few
milliseconds are one write to each client. A client that does not read is disconnected when its buffer exceeds a limit,
so no other client waits. Bookmarks are sent once a minute and at the end of the initial events. Guarantees:

1. The versions of events on one stream only grow.
2. An event is sent only when its change is on the disk.
3. No event is left out or sent twice.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from podwire.embedded.apiserver import failures, views
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.customform import parse_selection
from podwire.embedded.apiserver.fields import Filter
from podwire.embedded.apiserver.reads import ObjectReader, parse_version
from podwire.embedded.apiserver.store import ObjectChange, ObjectTable, Store, StoredObject
from podwire.errors import ApiError
from podwire.http.answer import Stream, Streaming, encode_chunk

_encode = msgspec.json.Encoder().encode

BUFFER_LIMIT = 32 << 20
"""Bytes that a slow client may leave unread before it is disconnected."""

_COALESCE_S = 0.005
"""Least time between two writes to one client: at 1,000 events/s to 50 clients it saves half the processor."""


class ClientWatch:
    """The watch of one client."""

    __slots__ = ("_buffer_limit", "_columns_sent", "_reader", "_stream", "bookmarks", "filter", "version", "view")

    def __init__(self, reader: ObjectReader, view: views.View, selection: Filter, *, bookmarks: bool) -> None:
        self._reader = reader
        self._stream: Stream | None = None
        self._columns_sent = False
        self._buffer_limit = BUFFER_LIMIT
        self.view = view
        self.filter = selection
        self.bookmarks = bookmarks
        self.version = 0

    @property
    def first_filter(self) -> Filter:
        """The filter for the existing objects that :meth:`initial` gets."""
        return self.filter

    def open(self, stream: Stream) -> None:
        """Sets the stream to which events are sent."""
        self._stream = stream

    def initial(self, entries: Iterable[StoredObject], version: int, *, mark_end: bool) -> None:
        """Sends existing objects as ADDED, then the bookmark of their end if the client requested bookmarks."""
        frames = [self._frame(ObjectChange("ADDED", entry, None), "ADDED", entry) for entry in entries]
        if mark_end:
            frames.append(self._bookmark(version, end=True))
        self.version = version
        self._buffer_limit = BUFFER_LIMIT + sum(map(len, frames))
        self._send(frames)

    def receive(self, changes: Iterable[ObjectChange]) -> None:
        """Sends the committed changes that are selected and newer than the last sent version."""
        frames: list[bytes] = []
        selection = self.filter
        for change in changes:
            if change.version <= self.version:
                continue
            self.version = change.version
            if not selection.selective and (not selection.namespace or selection.namespace == change.entry.namespace):
                frames.append(self._frame(change, change.type, change.entry))
            elif selection.selective and (kind := _transition(selection, change)):
                departed = kind == "DELETED" and not selection.matches(change.entry)
                frames.append(self._frame(change, kind, change.departed if departed else change.entry))
        self._send(frames)

    def bookmark(self, version: int) -> None:
        """Sends the version up to which the client has all changes, if the client requested bookmarks."""
        if self.bookmarks and version >= self.version:
            self.version = version
            self._send([self._bookmark(version)])

    def close(self) -> None:
        """Ends the stream in order."""
        if self._stream is not None:
            self._stream.close()

    def _send(self, frames: list[bytes]) -> None:
        stream = self._stream
        if not frames or stream is None:
            return
        stream.write_framed(b"".join(frames))
        if stream.buffered > self._buffer_limit:
            stream.abort()

    def _frame(self, change: ObjectChange, kind: str, entry: StoredObject) -> bytes:
        view = self.view
        if view.form == views.TABLE:
            if self._columns_sent:
                view = msgspec.structs.replace(view, headless=True)
            self._columns_sent = True
        key = (view, kind, entry is change.entry)
        cached = change.frames.get(key)
        if cached is None:
            cached = change.frames[key] = encode_chunk(
                b'{"type":"%b","object":%b}\n' % (kind.encode(), self._object(view, entry))
            )
        return cached

    def _object(self, view: views.View, entry: StoredObject) -> bytes:
        if view.form == views.PLAIN:
            return views.plain(view.kind, entry)
        obj = views.decoded(view.kind, entry)
        if view.form == views.METADATA:
            return _encode(views.metadata_only(obj))
        return _encode(self._reader.table(view, [obj], {"resourceVersion": str(entry.version)}))

    def _bookmark(self, version: int, *, end: bool = False) -> bytes:
        meta: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if end:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        kind = self.view.kind
        obj: dict[str, Any] = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
        if self.view.form == views.METADATA:
            obj = views.metadata_only(obj)
        elif self.view.form == views.TABLE:
            obj = {
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": [],
                "metadata": {"resourceVersion": str(version)}, "rows": [{"cells": [], "object": obj}],
            }  # fmt: skip
        return encode_chunk(_encode({"type": "BOOKMARK", "object": obj}) + b"\n")


def _transition(selection: Filter, change: ObjectChange) -> str:
    now = change.type != "DELETED" and selection.matches(change.entry)
    before = change.before is not None and selection.matches(change.before)
    if now:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else ""


class Hub:
    """The watches of one table; under load it passes changes on every few milliseconds, else at once.

    Encryption and the system call of each write cost more than an event, and each client needs its own write.
    """

    __slots__ = ("_changes", "_flushed", "_loop", "_timer", "watches")

    def __init__(self, table: ObjectTable, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changes: list[ObjectChange] = []
        self._flushed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.watches: dict[ClientWatch, str] = {}
        """The open watches with the users that opened them."""
        table.listeners[self.receive] = None

    def receive(self, changes: list[ObjectChange]) -> None:
        """Takes the changes of one commit."""
        if not self.watches:
            return
        self._changes.extend(changes)
        if self._timer is None:
            due = self._flushed + _COALESCE_S
            if self._loop.time() >= due:
                self.flush()
            else:
                self._timer = self._loop.call_at(due, self.flush)

    def flush(self) -> None:
        """Passes the collected changes on to the watches."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changes, self._changes = self._changes, []
        self._flushed = self._loop.time()
        for watch in tuple(self.watches):
            watch.receive(changes)


class Watcher:
    """Opens watches and keeps them going."""

    def __init__(self, store: Store, reader: ObjectReader, *, bookmark_s: float) -> None:
        """Watches that ask for bookmarks get one every ``bookmark_s``."""
        self._store = store
        self._reader = reader
        self._bookmark_s = bookmark_s
        self._loop = asyncio.get_running_loop()
        self._hubs: dict[str, Hub] = {}
        self._closing = False
        self.make_converted: Callable[..., ClientWatch] = ClientWatch
        """Makes the watch of a kind whose versions a webhook converts."""
        self._timer = self._loop.call_later(self._bookmark_s, self._tick)

    def watch(self, call: Call) -> Streaming:
        """The stream that a request asks for.

        Raises: ApiError 400 for options that contradict each other, Gone for a version that is too old.
        """
        kind = call.kind
        view = views.choose(kind, call.accept, call.query.get("includeObject", ""))
        table = self._store.table(kind.table)
        selection = parse_selection(kind, call.query, call.namespace, call.name)
        version = parse_version(call.query.get("resourceVersion", ""))
        initial = _wants_initial(call, version)
        if not initial and version < table.compacted:
            raise failures.too_old(version, table.compacted)
        if version > self._store.version:
            raise ApiError(504, "Timeout", f"Too large resource version: {version}, current: {self._store.version}")
        bookmarks = call.flag("allowWatchBookmarks")
        watch = self._client_watch(view, selection, bookmarks=bookmarks)
        mark_end = call.flag("sendInitialEvents") and bookmarks
        seconds = call.number("timeoutSeconds")

        def start(stream: Stream) -> None:
            watch.open(stream)
            hub = self._hub(table)

            def finish() -> None:
                hub.watches.pop(watch, None)

            def expire() -> None:
                finish()
                stream.close()

            stream.on_close = finish
            if initial:
                self._send_initial(watch, table, watch.first_filter, mark_end=mark_end)
            else:
                watch.version = version
                watch.receive(change for change in table.history if change.version > version)
            hub.watches[watch] = call.user.name
            if seconds:
                self._loop.call_later(seconds, expire)

        return Streaming(start, headers=(("Cache-Control", "no-cache, private"),))

    def _client_watch(self, view: views.View, selection: Filter, *, bookmarks: bool) -> ClientWatch:
        make = self.make_converted if view.kind.webhook else ClientWatch
        return make(self._reader, view, selection, bookmarks=bookmarks)

    def end(self, table: str) -> None:
        """Ends every watch of a table in order."""
        hub = self._hubs.get(table)
        if hub is not None:
            hub.flush()
            for watch in tuple(hub.watches):
                watch.close()
            hub.watches.clear()

    def users(self) -> frozenset[str]:
        """The users that have a watch open."""
        return frozenset(user for hub in self._hubs.values() for user in hub.watches.values())

    def _hub(self, table: ObjectTable) -> Hub:
        hub = self._hubs.get(table.name)
        if hub is None:
            hub = self._hubs[table.name] = Hub(table, self._loop)
        return hub

    def _send_initial(self, watch: ClientWatch, table: ObjectTable, selection: Filter, *, mark_end: bool) -> None:
        """Sends the committed state, without the writes that are not on the disk yet."""
        state = {entry.key: entry for entry in self._reader.select(table.name, selection)}
        for change in self._store.uncommitted(table.name):
            if change.before is not None and selection.matches(change.before):
                state[change.before.key] = change.before
            else:
                state.pop(change.entry.key, None)
        entries = [state[key] for key in sorted(state)]
        watch.initial(entries, self._store.committed, mark_end=mark_end)

    def _tick(self) -> None:
        for hub in self._hubs.values():
            hub.flush()
            for watch in tuple(hub.watches):
                watch.bookmark(self._store.committed)
        if not self._closing:
            self._timer = self._loop.call_later(self._bookmark_s, self._tick)

    def close(self) -> None:
        """Ends every watch in order."""
        self._closing = True
        self._timer.cancel()
        for table in tuple(self._hubs):
            self.end(table)


def _wants_initial(call: Call, version: int) -> bool:
    has_send_initial = "sendInitialEvents" in call.query
    match = call.query.get("resourceVersionMatch", "")
    if has_send_initial and match != "NotOlderThan":
        raise ApiError(
            422, "Invalid",
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires '
            "setting resourceVersionMatch to NotOlderThan",
        )  # fmt: skip
    if has_send_initial:
        return call.flag("sendInitialEvents")
    if match:
        raise ApiError(
            422, "Invalid",
            'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is '
            "forbidden for watch unless sendInitialEvents is provided",
        )  # fmt: skip
    return version == 0
