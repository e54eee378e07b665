"""A new worker reads the memory of the last worker."""

import os
from collections.abc import Iterator

import pytest

from podwire.errors import ProtocolError
from podwire.proxy.dataplanes.userspace.memory import (
    ACCEPTED,
    RELAYING,
    SESSION,
    AffinityEntry,
    Entry,
    Listener,
    Memory,
    PoolRemoved,
    Slot,
)
from podwire.proxy.dataplanes.userspace.messages import RelayPool

POOL = RelayPool(
    key="ip default/web/tcp cluster", protocol="tcp", address="192.168.99.1", endpoints=(("10.0.0.1", 80),)
)
SESSION_OF = Slot(SESSION, 2, (-1, 9, -1, -1), 40000, "fd00:1111:2222:3333:4444:5555:6666:7777")


@pytest.fixture
def memory() -> Iterator[Memory]:
    created = Memory.create(4)
    yield created
    created.close()


def used_slots(memory: Memory) -> dict[int, Slot]:
    """The slots as a new worker reads them from the memfd."""
    return dict(Memory(memory.fd).used())


def test_slots(memory: Memory) -> None:
    first = Slot(ACCEPTED, 1, (5, -1, -1, -1), 0, "")
    number = memory.take(first)
    other = memory.take(SESSION_OF)
    assert used_slots(memory) == {number: first, other: SESSION_OF}
    both = Slot(RELAYING, 1, (5, 6, 7, 8), 0, "")
    memory.fill(number, both)
    assert used_slots(memory) == {number: both, other: SESSION_OF}
    memory.free(number)
    assert used_slots(memory) == {other: SESSION_OF}


def test_slots_come_to_an_end_and_back(memory: Memory) -> None:
    numbers = [memory.take(SESSION_OF) for _ in range(4)]
    assert sorted(numbers) == [0, 1, 2, 3]
    assert memory.take(SESSION_OF) == -1
    memory.free(2)
    again = Memory(memory.fd)
    assert again.take(SESSION_OF) == 2
    assert again.take(SESSION_OF) == -1


def test_the_journal(memory: Memory) -> None:
    entries: list[Entry] = [
        Listener(1, POOL, 7),
        AffinityEntry(1, "10.0.0.9", ("10.0.0.1", 80)),
        Listener(1, POOL, 7, True),
        PoolRemoved(1),
    ]
    for entry in entries:
        memory.append(entry)
    assert list(Memory(memory.fd).entries()) == entries


def test_an_entry_that_was_not_finished_is_none(memory: Memory) -> None:
    memory.append(PoolRemoved(1))
    end = os.fstat(memory.journal).st_size
    os.pwrite(memory.journal, b"\0\0\0\x09half", end)
    again = Memory(memory.fd)
    assert list(again.entries()) == [PoolRemoved(1)]
    again.append(PoolRemoved(2))
    assert list(memory.entries()) == [PoolRemoved(1), PoolRemoved(2)]


def test_a_journal_that_is_mostly_history_is_written_anew(memory: Memory) -> None:
    assert not memory.overgrown()
    while not memory.overgrown():
        memory.append(Listener(1, POOL, 7))
    old = memory.journal
    memory.rewrite([Listener(1, POOL, 7)])
    assert not memory.overgrown()
    assert memory.journal != old
    memory.append(PoolRemoved(1))
    assert list(Memory(memory.fd).entries()) == [Listener(1, POOL, 7), PoolRemoved(1)]


def test_another_form_is_refused() -> None:
    fd = os.memfd_create("other")
    os.truncate(fd, 8192)
    try:
        with pytest.raises(ProtocolError):
            Memory(fd)
    finally:
        os.close(fd)
