"""The store and its journal: group commit, taking back, versions."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from podwire.embedded.apiserver.journal import Journal, Row, WriteBatch
from podwire.embedded.apiserver.store import HISTORY, ObjectChange, Store
from podwire.errors import ApiError, ClusterError


def config_map(name: str, size: int = 0) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}, "data": "x" * size}


def with_store(path: Path, scenario: Callable[[Store, Journal], Awaitable[None]]) -> None:
    async def body() -> None:
        journal = Journal(path)
        store = Store(journal)
        try:
            await scenario(store, journal)
        finally:
            store.close()

    asyncio.run(body())


async def settle(store: Store) -> None:
    pending = store.durable(store.version)
    if pending is not None:
        await pending


def test_a_new_table_is_watched_from_the_committed_version(tmp_path: Path) -> None:
    async def scenario(store: Store, journal: Journal) -> None:
        store.put("t", config_map("a"))
        assert store.version > store.committed >= store.table("other").compacted

    with_store(tmp_path / "db", scenario)


def test_writes_of_one_turn_are_one_transaction(tmp_path: Path) -> None:
    async def scenario(store: Store, journal: Journal) -> None:
        observed: list[list[str]] = []
        store.table("t").listeners[lambda changes: observed.append([c.entry.name for c in changes])] = None
        for name in ("b", "a", "c"):
            store.put("t", config_map(name))
        assert observed == [] and store.committed == 0
        await settle(store)
        assert observed == [["b", "a", "c"]]
        assert [entry.name for entry in store.entries("t")] == ["a", "b", "c"]
        assert [entry.name for entry in store.entries("t", "n")] == []

    with_store(tmp_path / "db", scenario)


def test_versions_continue_after_a_restart(tmp_path: Path) -> None:
    async def first(store: Store, journal: Journal) -> None:
        store.put("t", config_map("a"))
        store.delete(store.put("t", config_map("b")))
        await settle(store)
        assert store.version == 3

    async def second(store: Store, journal: Journal) -> None:
        assert store.version == store.committed == 3
        assert [entry.name for entry in store.entries("t")] == ["a"]
        assert store.table("t").compacted == 3
        assert store.put("t", config_map("c")).version == 4

    with_store(tmp_path / "db", first)
    with_store(tmp_path / "db", second)


def test_failed_writes_are_undone(tmp_path: Path) -> None:
    async def scenario(store: Store, journal: Journal) -> None:
        remaining = store.put("t", config_map("kept"))
        gone = store.put("t", config_map("gone"))
        await settle(store)
        journal._db.execute("PRAGMA max_page_count = 1")
        object_changes: list[ObjectChange] = []
        reported: list[bool] = []
        store.on_change.append(object_changes.append)
        store.on_rollback.append(lambda: reported.append(True))
        store.put("t", {**config_map("kept"), "data": "new"})
        store.delete(gone)
        store.put("t", config_map("big", 100_000))
        with pytest.raises(ApiError) as failure:
            await settle(store)
        assert failure.value.code == 507
        assert (object_changes, reported) == ([], [True])
        assert [(e.name, e.version) for e in store.entries("t")] == [
            ("gone", gone.version),
            ("kept", remaining.version),
        ]
        journal._db.execute("PRAGMA max_page_count = 100000")
        after = store.put("t", config_map("big", 100_000))
        await settle(store)
        assert after.version > gone.version + 3
        assert [change.entry.name for change in object_changes] == ["big"]

    with_store(tmp_path / "db", scenario)


def test_old_changes_are_forgotten(tmp_path: Path) -> None:
    async def scenario(store: Store, journal: Journal) -> None:
        for _ in range(HISTORY + 5):
            store.put("t", config_map("a"))
        await settle(store)
        table = store.table("t")
        assert (len(table.history), table.compacted) == (HISTORY, 5)

    with_store(tmp_path / "db", scenario)


def test_only_one_process_may_open_a_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "db")
    first.start()
    done: list[str | None] = []
    first.write(WriteBatch((Row("t", "", "a", 1, b"{}"),), 1, done.append))
    with pytest.raises(ClusterError, match="another API server uses it"):
        Journal(tmp_path / "db", wait_s=0.05)
    first.close()
    assert done == [None]
    again = Journal(tmp_path / "db")
    assert [(row.name, row.version) for row in again.rows()] == [("a", 1)]
    again.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"this is no database" * 100)
    with pytest.raises(ClusterError, match="cannot use the state database"):
        Journal(tmp_path / "db")
