"""The objects of the zone, where they survive the death of the process that answers.

How it works: the process that holds the sockets opens files in memory (memfd), and each worker inherits them. The
worker appends every change of an object; a new worker reads the file and answers from it until the API has listed all.
Guarantees: 1. an entry that was cut by a kill is ignored, and all before it count; 2. when more than half of a file is
obsolete, the living objects are written to the other file, and then one byte of the control file makes it the valid
one; 3. the control file holds how many collections were listed, once all were, and when the API was last heard of;
4. a configuration that a worker has accepted is the configuration of the next one.

Cost: about 10 us for each change; the memory of the objects, at most twice.
"""

import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from podwire.dns.config import DnsConfig

_ENTRY = struct.Struct("!II")
_CONTROL = struct.Struct("!BBxxxxxxd")
_COMPACT_BYTES = 1 << 20

Key = tuple[str, str]
"""The plural of a collection, and the key of an object in it."""


class Snapshot:
    """The last state that a worker knew; created before the first worker, and shared by all of them."""

    def __init__(self) -> None:
        self._config = os.memfd_create("podwire-dns-config")
        self._files = (os.memfd_create("podwire-dns-0"), os.memfd_create("podwire-dns-1"))
        control = os.memfd_create("podwire-dns-control")
        os.ftruncate(control, _CONTROL.size)
        self._control = mmap.mmap(control, _CONTROL.size)
        os.close(control)
        self._objects: dict[Key, bytes] = {}
        self._living = 0
        self._size = 0

    def close(self) -> None:
        """Releases the files in this process."""
        self._control.close()
        for file in (*self._files, self._config):
            os.close(file)

    @property
    def collections(self) -> int:
        """How many collections a worker had listed; 0 before it had listed all of them."""
        return int(self._read_control()[1])

    @property
    def heard_s(self) -> float:
        """When the API was last heard of, in seconds since the epoch; 0 before that."""
        return float(self._read_control()[2])

    def _read_control(self) -> tuple[int, int, float]:
        active, complete, heard_s = _CONTROL.unpack(self._control[:])
        return active, complete, heard_s

    def mark_complete(self, collections: int) -> None:
        """Marks all collections as listed."""
        self._control[1] = collections

    def mark_heard(self, now_s: float) -> None:
        """Notes when the API was heard of."""
        self._control[8:] = struct.pack("!d", now_s)

    def save_config(self, config: DnsConfig) -> None:
        """Sets the configuration of the next worker."""
        body = msgspec.msgpack.encode(config)
        os.pwrite(self._config, _ENTRY.pack(len(body), zlib.crc32(body)) + body, 0)

    def saved_config(self) -> DnsConfig | None:
        """The configuration that a worker has saved, or None."""
        data = os.pread(self._config, os.fstat(self._config).st_size, 0)
        if len(data) < _ENTRY.size:
            return None
        size, checksum = _ENTRY.unpack_from(data)
        body = data[_ENTRY.size : _ENTRY.size + size]
        return msgspec.msgpack.decode(body, type=DnsConfig) if zlib.crc32(body) == checksum else None

    def record(self, plural: str, key: str, item: msgspec.Struct | None) -> None:
        """Appends the new form of an object, or (None) its end."""
        name = (plural, key)
        body = msgspec.msgpack.encode((plural, key, item))
        before = self._objects.pop(name, None)
        self._living -= len(before) if before is not None else 0
        if item is not None:
            self._objects[name] = body
            self._living += len(body)
        self._append(self._read_control()[0], body)
        if self._size > 2 * self._living + _COMPACT_BYTES:
            self._compact()

    def _append(self, active: int, body: bytes) -> None:
        entry = _ENTRY.pack(len(body), zlib.crc32(body)) + body
        os.pwrite(self._files[active], entry, self._size)
        self._size += len(entry)

    def _compact(self) -> None:
        following = 1 - self._read_control()[0]
        os.ftruncate(self._files[following], 0)
        self._size = 0
        for body in self._objects.values():
            self._append(following, body)
        self._control[0] = following

    def restore(self, types: Mapping[str, type[Any]]) -> dict[str, dict[str, Any]]:
        """The objects of the last worker by plural and key; writing continues after the last whole entry."""
        active = self._read_control()[0]
        data = os.pread(self._files[active], os.fstat(self._files[active]).st_size, 0)
        offset = 0
        while offset + _ENTRY.size <= len(data):
            size, checksum = _ENTRY.unpack_from(data, offset)
            body = data[offset + _ENTRY.size : offset + _ENTRY.size + size]
            if len(body) != size or not size or zlib.crc32(body) != checksum:
                break
            offset += _ENTRY.size + size
            plural, key, item = msgspec.msgpack.decode(body, type=tuple[str, str, msgspec.Raw])
            if bytes(item) == b"\xc0":
                self._objects.pop((plural, key), None)
            else:
                self._objects[plural, key] = body
        os.ftruncate(self._files[active], offset)
        self._size = offset
        self._living = sum(map(len, self._objects.values()))
        restored: dict[str, dict[str, Any]] = {plural: {} for plural in types}
        for (plural, key), body in self._objects.items():
            if plural in types:
                kind = tuple[str, str, types[plural]]  # type: ignore[valid-type]
                restored[plural][key] = msgspec.msgpack.decode(body, type=kind)[2]
        return restored
