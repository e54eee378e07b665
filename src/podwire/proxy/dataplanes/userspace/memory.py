"""The state of the relay in memory that outlives its worker: connections in slots, everything else in a journal.

There are two memfds; a worker finds them by their descriptor numbers. The first memfd has a page that says where the
journal ends, and one slot of 96 bytes for each connection or UDP session: descriptor numbers, state, pool and client.
The state is written last when a slot is filled, and only the state is written when a slot is emptied. So a slot in use
names open descriptors, whenever a worker is killed. The second memfd is the journal, a sequence of msgpack documents:
pools with their listening sockets, and clients with affinity. An entry is valid when the page counts its bytes. A
journal with mostly outdated entries is written again to a new memfd, and one byte of the page selects the journal in
force.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from podwire.errors import ProtocolError
from podwire.proxy.dataplanes.userspace.messages import LENGTH, RelayPool, Target

_MAGIC = b"podwire relay 1\n"
_PAGE = 4096
_WHICH = 16
_JOURNALS = (32, 48)
_JOURNAL = struct.Struct("<iIQ")
_SLOT = struct.Struct("<BxHIiiiiHxx64s")
_SLOT_SIZE = 96
_SLACK = 1 << 20

FREE, ACCEPTED, RELAYING, SESSION = range(4)
"""States of a slot: not in use; a client without endpoint; a client with endpoint and pipes; a UDP session."""


class Listener(msgspec.Struct, frozen=True, tag=True):
    """A pool and its listening socket."""

    number: int
    pool: RelayPool
    fd: int
    retired: bool = False


class PoolRemoved(msgspec.Struct, frozen=True, tag="Gone"):
    """The pool with this number was removed.

    The tag is part of the journal format: after an upgrade a new worker reads entries of the previous version.
    """

    number: int


class AffinityEntry(msgspec.Struct, frozen=True, tag="Sticky"):
    """The endpoint of a pool that a client keeps by session affinity."""

    number: int
    client: str
    target: Target


Entry = Listener | PoolRemoved | AffinityEntry
_ENTRIES = msgspec.msgpack.Decoder(Entry)


class Slot(NamedTuple):
    """One connection or session, as stored in memory."""

    state: int
    pool: int
    fds: tuple[int, int, int, int]
    """Client, endpoint, pipe to the endpoint, pipe to the client; -1 for none."""
    port: int
    """UDP: the client's port."""
    address: str
    """UDP: the client's address."""


class Memory:
    """Both memfds, as used by one worker."""

    def __init__(self, fd: int) -> None:
        """Opens the memory that an earlier worker left.

        Raises: ProtocolError when the memory has another format.
        """
        self.fd = fd
        size = os.fstat(fd).st_size
        self._map = mmap.mmap(fd, size)
        if self._map[: len(_MAGIC)] != _MAGIC:
            raise ProtocolError("local", "the saved state of the relay has another version")
        self.slots = (size - _PAGE) // _SLOT_SIZE
        states = self._map[_PAGE::_SLOT_SIZE]
        self._top = len(states.rstrip(b"\0"))
        self._free = [number for number in range(self._top) if states[number] == FREE]
        self._written = self._end()

    @classmethod
    def create(cls, slots: int) -> "Memory":
        """New, empty memory; the kernel allocates pages when slots are used."""
        fd = os.memfd_create("podwire-relay", os.MFD_CLOEXEC)
        os.truncate(fd, _PAGE + slots * _SLOT_SIZE)
        journal = os.memfd_create("podwire-relay-journal", os.MFD_CLOEXEC)
        os.pwrite(fd, _JOURNAL.pack(journal, 0, 0), _JOURNALS[0])
        os.pwrite(fd, _MAGIC, 0)
        return cls(fd)

    @property
    def journal(self) -> int:
        """The descriptor of the journal in force."""
        return int(_JOURNAL.unpack_from(self._map, self._header())[0])

    def close(self) -> None:
        """Closes both memfds; the kernel frees the memory with the last descriptor."""
        journal = self.journal
        self._map.close()
        os.close(journal)
        os.close(self.fd)

    def _header(self) -> int:
        return _JOURNALS[self._map[_WHICH]]

    def _end(self) -> int:
        return int(_JOURNAL.unpack_from(self._map, self._header())[2])

    def append(self, entry: Entry) -> None:
        """Adds an entry to the journal."""
        body = msgspec.msgpack.encode(entry)
        fd, _, end = _JOURNAL.unpack_from(self._map, self._header())
        os.pwrite(fd, LENGTH.pack(len(body)) + body, end)
        struct.pack_into("<Q", self._map, self._header() + 8, end + LENGTH.size + len(body))

    def entries(self) -> Iterator[Entry]:
        """The journal from its beginning."""
        fd, _, end = _JOURNAL.unpack_from(self._map, self._header())
        offset = 0
        while offset < end:
            (length,) = LENGTH.unpack(os.pread(fd, LENGTH.size, offset))
            yield _ENTRIES.decode(os.pread(fd, length, offset + LENGTH.size))
            offset += LENGTH.size + length

    def overgrown(self) -> bool:
        """Whether the journal should be written again, without outdated entries."""
        return self._end() > 2 * self._written + _SLACK

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Starts a new journal with these entries."""
        old = self.journal
        fresh = os.memfd_create("podwire-relay-journal", os.MFD_CLOEXEC)
        end = 0
        for entry in entries:
            body = msgspec.msgpack.encode(entry)
            end += os.pwrite(fresh, LENGTH.pack(len(body)) + body, end)
        other = 1 - self._map[_WHICH]
        _JOURNAL.pack_into(self._map, _JOURNALS[other], fresh, 0, end)
        self._map[_WHICH] = other
        self._written = end
        os.close(old)

    @property
    def full(self) -> bool:
        """Whether all slots are in use."""
        return not self._free and self._top >= self.slots

    def take(self, slot: Slot) -> int:
        """Fills a free slot and returns its number; -1 when all are in use."""
        if self._free:
            number = self._free.pop()
        elif self._top < self.slots:
            number = self._top
            self._top += 1
        else:
            return -1
        self.fill(number, slot)
        return number

    def fill(self, number: int, slot: Slot) -> None:
        """Writes a slot; the state is written last."""
        offset = _PAGE + number * _SLOT_SIZE
        address = slot.address.encode()[:64]
        _SLOT.pack_into(self._map, offset, self._map[offset], 0, slot.pool, *slot.fds, slot.port, address)
        self._map[offset] = slot.state

    def free(self, number: int) -> None:
        """Empties a slot; call it before the descriptors of the slot are closed."""
        self._map[_PAGE + number * _SLOT_SIZE] = FREE
        self._free.append(number)

    def used(self) -> Iterator[tuple[int, Slot]]:
        """The slots in use."""
        for number in range(self._top):
            offset = _PAGE + number * _SLOT_SIZE
            if self._map[offset] != FREE:
                state, _, pool, *fds, port, address = _SLOT.unpack_from(self._map, offset)
                client, server, to_server, to_client = fds
                text = address.rstrip(b"\0").decode()
                yield number, Slot(state, pool, (client, server, to_server, to_client), port, text)
