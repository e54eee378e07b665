"""Keeps the maps of the BPF program ``dns_answers`` equal to a zone.

How it works: the index of the zone reports each Service and namespace that changes; :meth:`DnsTable.follow` computes
their entries and writes those that differ. Guarantees: 1. nothing is answered before all collections were listed;
then the whole map is compared, and entries of an earlier process that are right stay; 2. entries are written or
deleted before the settings of the next generation with the new serial number; a query that meets a change goes to the
server; 3. answers end when :meth:`DnsTable.renew` was not called for ``LEASE_S`` seconds, because the process is dead
or hangs; 4. when the kernel refuses an entry, all queries go to the server until a whole load succeeds.

Cost: 20 to 40 us for a change of a Service.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from podwire.dns.bpf.entries import (
    ANSWERS,
    COUNTERS,
    MAX_ZONE,
    Entries,
    EntryPlan,
    NameEntry,
    is_long,
    unpack_entry,
)
from podwire.dns.index import RecordIndex, ServiceKey
from podwire.errors import KernelError
from podwire.kernel.bpf_syscall import BpfMapTable

LEASE_S = 15.0
_ZERO = bytes(4)
_PRESENT = b"\x01\0\0\0"


class DnsMaps(NamedTuple):
    """The open maps of the program."""

    names: BpfMapTable
    more6: BpfMapTable
    settings: BpfMapTable
    generation: BpfMapTable
    clients: BpfMapTable
    counters: BpfMapTable

    def close(self) -> None:
        """Closes the descriptors; the maps stay in the kernel."""
        for table in self:
            table.close()


class DnsTable:
    """The entries of one zone in the kernel; ``service`` is the DNS Service, whose addresses are answered for."""

    def __init__(self, plan: EntryPlan, index: RecordIndex, service: ServiceKey, udp_size: int) -> None:
        self._plan = plan
        self._index = index
        self._service = service
        self._udp_size = udp_size
        self._maps: DnsMaps | None = None
        self._services: dict[ServiceKey, Entries] = {}
        self._long: set[ServiceKey | str] = set()
        """The Services and namespaces whose names are too long for a key."""
        self._changed: set[ServiceKey] = set()
        self._namespaces: set[str] = set()
        self._version = time.time_ns() // 1000 & 0x7FFFFFFF
        self._loaded = False
        self.problem = ""
        """Why the kernel answers nothing; empty: it answers, or the lists are not complete yet."""
        index.on_service = self._changed.add
        index.on_namespace = self._namespaces.add

    @property
    def answering(self) -> bool:
        """Whether the kernel answers queries."""
        return self._loaded

    @property
    def entries(self) -> int:
        """The number of names of Services and their endpoints in the kernel."""
        return sum(map(len, self._services.values()))

    def use(self, maps: DnsMaps | None) -> None:
        """Takes other maps, or none: the program was loaded, or is gone."""
        self._maps, self._loaded = maps, False

    def follow(self) -> None:
        """Writes all changes of the index; to be called after each, before a server drops its replies."""
        maps = self._maps
        if not self._plan.possible:
            self.problem = f"the name of the zone has more than {MAX_ZONE} bytes"
            return
        if maps is None or not self._index.synced:
            return
        try:
            if not self._loaded:
                self._load(maps)
            elif self._changed or self._namespaces:
                self._write_changes(maps)
        except KernelError as failure:
            self.switch_off(str(failure))

    def renew(self) -> None:
        """Extends the lease of the answers; loads everything after a failure."""
        if self._maps is not None and self._loaded:
            self._publish(self._maps)
        else:
            self.follow()

    def _load(self, maps: DnsMaps) -> None:
        self._changed.clear()
        self._namespaces.clear()
        self._services = {
            owner: own for owner, records in self._index.records.items() if (own := self._plan.service(owner, records))
        }
        self._long = {owner for owner in self._index.records if is_long(owner[1], owner[0], "svc")}
        self._long |= {name for name in self._index.namespaces if is_long(name, "svc")}
        desired = self._plan.fixed()
        for name in self._index.namespaces:
            desired |= self._plan.namespace(name)
        for own in self._services.values():
            desired |= own
        present = {
            key: unpack_entry(value, maps.more6.read(key) or b"")
            for key in maps.names
            if (value := maps.names.read(key))
        }
        self._replace(maps, present, desired)
        for key in [key for key in maps.more6 if key not in desired or not desired[key].has_more]:
            maps.more6.delete(key)
        self._publish(maps)
        self._loaded, self.problem = True, ""

    def _write_changes(self, maps: DnsMaps) -> None:
        owners, names = set(self._changed), set(self._namespaces)
        self._changed -= owners
        self._namespaces -= names
        for owner in owners:
            before = self._services.pop(owner, {})
            after = self._plan.service(owner, self._index.records.get(owner))
            if after:
                self._services[owner] = after
            self._note_length(owner, long=owner in self._index.records and is_long(owner[1], owner[0], "svc"))
            self._replace(maps, before, after)
        for name in names:
            own = self._plan.namespace(name)
            absent = name not in self._index.namespaces
            self._note_length(name, long=not absent and is_long(name, "svc"))
            self._replace(maps, own if absent else {}, {} if absent else own)
        self._publish(maps)

    def _note_length(self, owner: ServiceKey | str, *, long: bool) -> None:
        if long:
            self._long.add(owner)
        else:
            self._long.discard(owner)

    def _replace(self, maps: DnsMaps, present: Mapping[bytes, NameEntry | None], desired: Entries) -> None:
        """Deletes and writes what differs; deletions come first.

        The program compares the versions of both values of an entry, so a query between two writes goes to the server.
        """
        for key in present.keys() - desired.keys():
            maps.names.delete(key)
            self._delete_more(maps, key, present)
        names, more = [], []
        for key, entry in desired.items():
            if present.get(key) == entry:
                continue
            self._version = self._version + 1 & 0xFFFFFFFF
            names.append((key, entry.pack(self._version)))
            if entry.has_more:
                more.append((key, entry.pack_more(self._version)))
        maps.more6.write_all(more)
        maps.names.write_all(names)
        for key, _ in names:
            if not desired[key].has_more:
                self._delete_more(maps, key, present)

    @staticmethod
    def _delete_more(maps: DnsMaps, key: bytes, present: Mapping[bytes, NameEntry | None]) -> None:
        before = present.get(key)
        if before is not None and before.has_more:
            maps.more6.delete(key)

    def _publish(self, maps: DnsMaps) -> None:
        before = int.from_bytes(maps.generation.read(_ZERO) or b"", "little")
        generation = before + 1 or 1
        lease_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(LEASE_S * 1e9)
        long_names = bool(self._long) or self._plan.has_long_hosts
        records = self._index.records.get(self._service)
        servers = records.virtual if records is not None else ()
        settings = self._plan.settings(
            generation, lease_ns, self._index.serial, servers, self._udp_size, long_names=long_names
        )
        maps.settings.write((generation & 1).to_bytes(4, "little"), settings)
        maps.generation.write(_ZERO, generation.to_bytes(8, "little"))

    def switch_off(self, problem: str) -> None:
        """Sends all queries to the server, until a whole load succeeds."""
        self._loaded, self.problem, maps = False, problem, self._maps
        if maps is None:
            return
        try:
            maps.generation.write(_ZERO, bytes(8))
        except KernelError as failure:
            self.problem = f"{self.problem}; {failure}"

    def counters(self) -> dict[str, int]:
        """The sums of the program's counters over all processors, by their names in ``COUNTERS``."""
        maps = self._maps
        if maps is None:
            return {}
        copies = possible_processors()
        sums = {}
        for at, name in enumerate(COUNTERS):
            data = maps.counters.read(at.to_bytes(4, "little"), copies) or b""
            sums[name] = sum(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8))
        return sums


def answered(counters: dict[str, int]) -> dict[str, int]:
    """The counters of answers alone."""
    return {name: counters[name] for name in COUNTERS[:ANSWERS] if name in counters}


def replace_keys(table: BpfMapTable, keys: Iterable[bytes]) -> None:
    """Makes a map that is used as a set hold exactly these keys; surplus keys go first.

    Raises: KernelError.
    """
    desired, present = set(keys), set(table)
    for key in present - desired:
        table.delete(key)
    for key in desired - present:
        table.write(key, _PRESENT)


def possible_processors() -> int:
    """The number of processors for which maps have values: those that could be plugged in, too."""
    listed = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii").strip()
    return int(listed.rpartition("-")[2].rpartition(",")[2]) + 1
