"""The stored objects: in memory for reads and watches, in the journal on the disk.

A write changes memory at once, so that the next request sees the new object, and is queued for the journal. All writes
of one turn of the event loop, and all writes that arrive while a batch is being written, form one transaction (group
commit). After the transaction the write is acknowledged and shown to watchers; a read of an object that is not on the
disk yet waits until it is. When a batch fails (the disk is full), the writes of this batch and all later writes are
undone in reverse order, and every waiting writer gets the error. The state is then the state before the batch, and the
next write is tried as usual. All kinds share one counter of resourceVersions, which is stored with each batch and never
decreases.

Each kind keeps its last changes for watches. A watch that requests older changes gets 410 Gone. A change is encoded
once, whatever the number of watchers.

Cost: an object is its JSON text and a small index record (about 400 bytes); a list is a join of texts.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from podwire.embedded.apiserver.fields import selectable
from podwire.embedded.apiserver.journal import Journal, Row, WriteBatch
from podwire.embedded.apiserver.kinds import ObjectForm
from podwire.errors import ApiError

HISTORY = 10_000
"""Changes remembered for each kind."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class StoredObject:
    """One stored object; never changed, only replaced."""

    __slots__ = (
        "_converted", "_filled", "fields", "labels", "name", "namespace", "raw", "selected", "table", "uid", "version",
    )  # fmt: skip

    def __init__(self, table: str, obj: dict[str, Any], raw: bytes, version: int) -> None:
        meta = obj["metadata"]
        self.table = table
        self.namespace: str = meta.get("namespace", "")
        self.name: str = meta["name"]
        self.uid: str = meta.get("uid", "")
        self.version = version
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.fields = selectable(table, obj)
        self.raw = raw
        self._converted: dict[str, bytes] | None = None
        self._filled: tuple[ObjectForm, bytes] | None = None
        self.selected: tuple[ObjectForm | None, dict[str, str]] | None = None
        """The selectable fields of a custom object in the version that was asked for last."""

    def is_in(self, api_version: str) -> bool:
        """Whether the object is stored in a version, or a webhook has converted it to this version already."""
        return is_stored_in(self.raw, api_version) or (self._converted is not None and api_version in self._converted)

    def converted_to(self, api_version: str) -> dict[str, Any]:
        """The object in a version that it is in, freshly decoded."""
        decoded: dict[str, Any] = _decode(self.raw_in(api_version))
        return decoded

    def raw_in(self, api_version: str) -> bytes:
        """The text of the object in a version that it is in."""
        return self.raw if is_stored_in(self.raw, api_version) else (self._converted or {})[api_version]

    def filled(self, form: ObjectForm) -> bytes:
        """The text of a custom object in a version, with the version's defaults."""
        if self._filled is None or self._filled[0] is not form:
            self._filled = form, form.render(self.raw)
        return self._filled[1]

    def keep_converted(self, api_version: str, raw: bytes) -> None:
        """Keeps the text that a webhook has converted."""
        self._converted = {**(self._converted or {}), api_version: raw}

    def drop_converted(self) -> None:
        """Forgets the texts that webhooks have converted."""
        self._converted = None

    def object(self) -> dict[str, Any]:
        """The object, freshly decoded: the caller may change it."""
        decoded: dict[str, Any] = _decode(self.raw)
        return decoded

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


def is_stored_in(raw: bytes, api_version: str) -> bool:
    """Whether the text of an object is in a version (``GROUP/VERSION``)."""
    return b'"apiVersion":"%b"' % api_version.encode() in raw[:120]


class ObjectChange:
    """One committed write; ``type`` is ADDED, MODIFIED or DELETED, ``frames`` caches encodings by view."""

    __slots__ = ("_departed", "before", "entry", "frames", "type")

    def __init__(self, kind: str, entry: StoredObject, before: StoredObject | None) -> None:
        self.type = kind
        self.entry = entry
        self.before = before
        self.frames: dict[Any, bytes] = {}
        self._departed: StoredObject | None = None

    @property
    def version(self) -> int:
        """The resourceVersion of the change."""
        return self.entry.version

    @property
    def departed(self) -> StoredObject:
        """The object before the change, under the version of the change; the new object where there was none."""
        if self.before is None:
            return self.entry
        if self._departed is None:
            obj = self.before.object()
            obj["metadata"]["resourceVersion"] = str(self.version)
            self._departed = StoredObject(self.before.table, obj, _encode(obj), self.version)
        return self._departed


class ObjectTable:
    """All objects of one kind."""

    __slots__ = ("_order", "compacted", "history", "listeners", "name", "objects", "version")

    def __init__(self, name: str, compacted: int) -> None:
        self.name = name
        self.objects: dict[tuple[str, str], StoredObject] = {}
        self.history: deque[ObjectChange] = deque()
        self.compacted = compacted
        """Changes up to and including this version are forgotten."""
        self.version = 0
        """Version of the last write, committed or not."""
        self.listeners: dict[Callable[[list[ObjectChange]], None], None] = {}
        self._order: list[tuple[str, str]] | None = None

    def ordered(self) -> list[tuple[str, str]]:
        """All keys, by namespace and name."""
        if self._order is None:
            self._order = sorted(self.objects)
        return self._order

    def replace(self, key: tuple[str, str], entry: StoredObject | None) -> None:
        """Puts, or with None removes."""
        if entry is None:
            if self.objects.pop(key, None) is not None:
                self._order = None
        else:
            if key not in self.objects:
                self._order = None
            self.objects[key] = entry

    def remember(self, changes: Iterable[ObjectChange]) -> None:
        """Adds committed changes to the history and forgets the oldest."""
        history = self.history
        history.extend(changes)
        while len(history) > HISTORY:
            self.compacted = history.popleft().version


class Store:
    """Every table, the version counter, and the writes that are not on the disk yet."""

    def __init__(self, journal: Journal) -> None:
        """Reads everything back from the journal and starts its writer."""
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._tables: dict[str, ObjectTable] = {}
        self.version = self._first_version = journal.version()
        self.committed = self.version
        for row in journal.rows():
            if row.value is not None:
                table = self.table(row.table)
                entry = StoredObject(row.table, _decode(row.value), bytes(row.value), row.version)
                table.replace(entry.key, entry)
                table.version = max(table.version, row.version)
        self._pending: list[ObjectChange] = []
        self._in_flight: list[ObjectChange] = []
        self._scheduled = False
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.on_write: list[Callable[[ObjectChange], None]] = []
        """Called with every write at once, before the write is on the disk."""
        self.on_change: list[Callable[[ObjectChange], None]] = []
        """Called with every committed change, in order."""
        self.on_rollback: list[Callable[[], None]] = []
        """Called when writes were undone; state that is derived from writes must be computed again."""
        journal.start()

    def table(self, name: str) -> ObjectTable:
        """The table with this name; an unknown name creates a new table."""
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = ObjectTable(name, self._first_version)
        return table

    def tables(self) -> tuple[ObjectTable, ...]:
        """Every table that ever held something."""
        return tuple(self._tables.values())

    def get(self, table: str, namespace: str, name: str) -> StoredObject | None:
        """The object, or None."""
        return self.table(table).objects.get((namespace, name))

    def entries(self, table: str, namespace: str = "") -> list[StoredObject]:
        """The objects by namespace and name; all namespaces for an empty one."""
        collection = self.table(table)
        objects = collection.objects
        if not namespace:
            return [objects[key] for key in collection.ordered()]
        order = collection.ordered()
        return [
            objects[key]
            for key in order[bisect_left(order, (namespace, "")) : bisect_left(order, (namespace + "\0", ""))]
        ]

    def put(self, table: str, obj: dict[str, Any]) -> StoredObject:
        """Stores the object under the next version, which is set in it."""
        collection = self.table(table)
        version = self._advance(collection)
        obj["metadata"]["resourceVersion"] = str(version)
        entry = StoredObject(table, obj, _encode(obj), version)
        before = collection.objects.get(entry.key)
        collection.replace(entry.key, entry)
        self._queue(ObjectChange("MODIFIED" if before is not None else "ADDED", entry, before))
        return entry

    def delete(self, entry: StoredObject, last: dict[str, Any] | None = None) -> StoredObject:
        """Removes an object; returns its last state (``last``, or as stored) under the deletion's version."""
        collection = self.table(entry.table)
        version = self._advance(collection)
        obj = last if last is not None else entry.object()
        obj["metadata"]["resourceVersion"] = str(version)
        last_state = StoredObject(entry.table, obj, _encode(obj), version)
        before = collection.objects.get(entry.key)
        collection.replace(entry.key, None)
        self._queue(ObjectChange("DELETED", last_state, before))
        return last_state

    def _advance(self, table: ObjectTable) -> int:
        self.version += 1
        table.version = self.version
        return self.version

    def _queue(self, change: ObjectChange) -> None:
        self._pending.append(change)
        for observer in self.on_write:
            observer(change)
        if not self._scheduled and not self._in_flight:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if not self._pending or self._in_flight:
            return
        self._in_flight, self._pending = self._pending, []
        rows = tuple(
            Row(
                change.entry.table, change.entry.namespace, change.entry.name, change.entry.version,
                None if change.type == "DELETED" else change.entry.raw,
            )
            for change in self._in_flight
        )  # fmt: skip
        self._journal.write(WriteBatch(rows, rows[-1].version, self._written))

    def _written(self, problem: str | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._finish, problem)

    def _finish(self, problem: str | None) -> None:
        batch, self._in_flight = self._in_flight, []
        if problem is not None:
            self._take_back(batch, problem)
            return
        self.committed = batch[-1].version
        by_table: dict[str, list[ObjectChange]] = {}
        for change in batch:
            by_table.setdefault(change.entry.table, []).append(change)
        for name, changes in by_table.items():
            table = self._tables[name]
            table.remember(changes)
            for listener in tuple(table.listeners):
                listener(changes)
        for change in batch:
            for observer in self.on_change:
                observer(change)
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.committed:
            future = waiters.popleft()[1]
            if not future.done():
                future.set_result(None)
        if self._pending:
            self._flush()

    def _take_back(self, batch: list[ObjectChange], problem: str) -> None:
        undone = batch + self._pending
        self._pending = []
        for change in reversed(undone):
            self._tables[change.entry.table].replace(change.entry.key, change.before)
        for table in self._tables.values():
            table.version = min(table.version, self.committed)
        for observer in self.on_rollback:
            observer()
        waiters, self._waiters = self._waiters, deque()
        for _, future in waiters:
            if not future.done():
                future.set_exception(not_stored(problem))

    def durable(self, version: int) -> "asyncio.Future[None] | None":
        """None when ``version`` is on the disk, else a future that ends when it is, or fails with ApiError."""
        if version <= self.committed:
            return None
        future: asyncio.Future[None] = self._loop.create_future()
        if self._waiters and self._waiters[-1][0] > version:
            later = [pair for pair in self._waiters if pair[0] > version]
            earlier = [pair for pair in self._waiters if pair[0] <= version]
            self._waiters = deque([*earlier, (version, future), *later])
        else:
            self._waiters.append((version, future))
        return future

    def uncommitted(self, table: str) -> Iterator[ObjectChange]:
        """The changes of a table that are not on the disk yet, the newest first."""
        for changes in (self._pending, self._in_flight):
            for change in reversed(changes):
                if change.entry.table == table:
                    yield change

    def close(self) -> None:
        """Writes pending changes and closes the journal."""
        self._flush()
        self._journal.close()


def not_stored(problem: str) -> ApiError:
    """The error of a write that could not be written to the disk."""
    if "full" in problem:
        return ApiError(507, "InsufficientStorage", f"the write was not stored and nothing changed: {problem}")
    return ApiError(500, "InternalError", f"the write was not stored and nothing changed: {problem}")
