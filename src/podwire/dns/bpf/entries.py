"""The keys and values of the maps of the BPF program ``dns_answers`` (pure; layouts in ``src/bpf/dns_answers.bpf.c``).

A key is the part of a name before the zone, in wire form and lower case, padded with zeros. A value has the addresses
of both families, or says that the server answers; IPv6 addresses from the second one on are in a second map, so that
the values that nearly all names have are small. The program takes a name without a key for one that does not exist,
except below ``pod`` and below a Service with a key. So a key is needed for every Service that exists, every namespace,
and every other name that exists directly in the zone; names of endpoints have keys only to be answered in the kernel.
Where a Service, a namespace or a fixed host has a name that is too long for a key, the settings have a flag for it, and
all names of this length go to the server.

The server answers, because the program cannot or need not: aliases; names with more than 12 addresses in a family;
types other than A and AAAA of names that exist; names of ports; names of pods; the zone itself.

Cost: one entry for a Service, one for each endpoint of a headless Service with at most 256 of them, two for a
namespace; an entry takes 200 bytes of kernel memory, and 300 more with several IPv6 addresses.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from podwire.dns import wire
from podwire.dns.index import ServiceKey
from podwire.dns.names import encode_name, join_labels, match_zone, split_labels
from podwire.dns.records import Addresses, ServiceRecords
from podwire.dns.zone import ZoneOptions
from podwire.errors import ProtocolError

NAME_BYTES, KEY_BYTES, MAX_LABELS, MAX_ZONE = 128, 56, 15, 64
MAX_ADDRESSES = 12
"""Addresses of an entry in each family; a reply with so many AAAA records has less than 512 bytes."""
MAX_HOSTS = 256
"""A headless Service with more endpoints has no entries for their names."""
COUNTERS = (
    "a",
    "aaaa",
    "nodata",
    "nxdomain",
    "client",
    "off",
    "lease",
    "form",
    "checksum",
    "long",
    "foreign",
    "name",
    "type",
    "changed",
    "busy",
)
"""The counters in the order of their cells: what was answered, then why a query went to the server."""
ANSWERS = 4
"""How many of the counters are answers."""

_ADDRESS_ENTRY = 1
_ENTRY = struct.Struct("=IBBBx4sI16s44sI")
_MORE6 = struct.Struct("=I4x176sI4x")
_SETTINGS = struct.Struct("=QQ16s16s12s12s64s56sIHBB")
_HEAD = struct.Struct("!2sHHIH")
_NUMBERS = struct.Struct("!5I")


class NameEntry(NamedTuple):
    """The addresses of a name; ``served``: the server answers."""

    v4: tuple[bytes, ...] = ()
    v6: tuple[bytes, ...] = ()
    served: bool = False

    def pack(self, version: int) -> bytes:
        """The value in the map of names; ``version`` differs from that of the entry before."""
        kind = 0 if self.served else _ADDRESS_ENTRY
        v4, first6 = b"".join(self.v4), b"".join(self.v6[:1])
        return _ENTRY.pack(version, kind, len(self.v4), len(self.v6), v4[:4], version, first6, v4[4:], version)

    @property
    def has_more(self) -> bool:
        """Whether there is a second value, in the map of further IPv6 addresses."""
        return len(self.v6) > 1

    def pack_more(self, version: int) -> bytes:
        """The second value, with the version of the first."""
        return _MORE6.pack(version, b"".join(self.v6[1:]), version)


SERVED = NameEntry(served=True)
NO_DATA = NameEntry()
Entries = dict[bytes, NameEntry]
"""Entries by key."""


def unpack_entry(value: bytes, more: bytes = b"") -> NameEntry | None:
    """The entry of its values in the maps; None when they do not belong together."""
    version, kind, count4, count6, first4, _, first6, more4, _ = _ENTRY.unpack(value)
    if kind != _ADDRESS_ENTRY:
        return SERVED
    v4, v6 = first4 + more4, first6
    if count6 > 1:
        version6, more6, _ = _MORE6.unpack(more) if more else (~version, b"", 0)
        if version6 != version:
            return None
        v6 += more6
    return NameEntry(
        tuple(v4[at : at + 4] for at in range(0, 4 * count4, 4)),
        tuple(v6[at : at + 16] for at in range(0, 16 * count6, 16)),
    )


def key_of(labels: tuple[str, ...], domain: bytes) -> bytes:
    """The key of the name with these labels in front of the zone; empty when the program does not answer for it."""
    try:
        name = join_labels(labels, domain).lower()
    except ProtocolError:
        return b""
    if len(name) > NAME_BYTES or len(split_labels(name)) > MAX_LABELS:
        return b""
    return relative_key(name, domain)


def relative_key(name: bytes, domain: bytes) -> bytes:
    """The key of a whole name in the zone, in lower case; empty when it is too long for a key."""
    relative = name.removesuffix(domain)
    return relative.ljust(KEY_BYTES, b"\0") if len(relative) <= KEY_BYTES else b""


def is_long(*labels: str) -> bool:
    """Whether the labels before the zone are too long for a key."""
    return sum(1 + len(label.encode()) for label in labels) > KEY_BYTES


def _entry(addresses: Addresses) -> NameEntry:
    if max(len(addresses.v4), len(addresses.v6)) > MAX_ADDRESSES:
        return SERVED
    return NameEntry(addresses.v4, addresses.v6)


class EntryPlan:
    """The entries of the objects of a zone."""

    def __init__(self, options: ZoneOptions) -> None:
        self._options = options
        self.domain = encode_name(options.domain.removesuffix(".").lower())
        """The zone in wire form and lower case."""

    @property
    def possible(self) -> bool:
        """Whether the program can hold the name of the zone."""
        return len(self.domain) <= MAX_ZONE

    @property
    def closed(self) -> bool:
        """Whether a missing name does not exist; otherwise another server is asked for it."""
        zone = self._options.domain.removesuffix(".").lower()
        return zone not in {name.removesuffix(".").lower() for name in self._options.fallthrough}

    def _exposed(self, namespace: str) -> bool:
        return not self._options.namespaces or namespace in self._options.namespaces

    def _keyed(self, entries: Iterable[tuple[tuple[str, ...], NameEntry]]) -> Entries:
        return {key: entry for labels, entry in entries if (key := key_of(labels, self.domain))}

    def fixed(self) -> Entries:
        """The names that every zone has, and fixed hosts."""
        entries = self._keyed(
            [
                ((), SERVED),
                (("dns-version",), SERVED),
                (("ns", "dns"), SERVED),
                (("dns",), NO_DATA),
                (("svc",), NO_DATA),
                (("pod",), NO_DATA),
            ]
        )
        entries |= {key: SERVED for name in self._hosts() if (key := relative_key(name, self.domain))}
        return entries

    def _hosts(self) -> Iterator[bytes]:
        """The whole names of fixed hosts in the zone."""
        for host in self._options.hosts:
            name = encode_name(host.lower())
            if match_zone(name, (self.domain,)) is not None:
                yield name

    @property
    def has_long_hosts(self) -> bool:
        """Whether a fixed host has a name that is too long for a key."""
        return any(not relative_key(name, self.domain) for name in self._hosts())

    def namespace(self, name: str) -> Entries:
        """The names of a namespace that exists."""
        if not self._exposed(name):
            return {}
        return self._keyed([((name, "svc"), NO_DATA), ((name, "pod"), NO_DATA)])

    def service(self, owner: ServiceKey, records: ServiceRecords | None) -> Entries:
        """The names of a Service; empty when its name does not exist."""
        namespace, name = owner
        if records is None or not records.present or not self._exposed(namespace):
            return {}
        labels = (name, namespace, "svc")
        if records.alias or (not records.virtual and records.ready_addresses > MAX_HOSTS):
            return self._keyed([(labels, SERVED)])
        entries: list[tuple[tuple[str, ...], NameEntry]] = [(labels, _entry(records.addresses))]
        if not records.virtual:
            for host in records.host_names():
                own = records.host(host)
                if own is not None:
                    entries.append(((host, *labels), _entry(own.addresses)))
        return self._keyed(entries)

    def everything(self, namespaces: Collection[str], records: Mapping[ServiceKey, ServiceRecords]) -> Entries:
        """The entries of a whole zone."""
        entries = self.fixed()
        for name in namespaces:
            entries |= self.namespace(name)
        for owner, own in records.items():
            entries |= self.service(owner, own)
        return entries

    def has_long_names(self, namespaces: Iterable[str], services: Iterable[ServiceKey]) -> bool:
        """Whether one of these, or a fixed host, has a name that is too long for a key."""
        return (
            self.has_long_hosts
            or any(is_long(name, "svc") for name in namespaces)
            or any(is_long(name, namespace, "svc") for namespace, name in services)
        )

    def settings(
        self, generation: int, lease_ns: int, serial: int, servers: Iterable[bytes], udp_size: int, *, long_names: bool
    ) -> bytes:
        """The settings of one generation; the answers end at ``lease_ns`` of the boot clock.

        ``servers`` are the addresses of the DNS Service, at most one of each family.
        """
        ttl = self._options.ttl_s
        families = {len(address): address for address in servers}
        server4 = mapped(families[4]) if 4 in families else b""
        head4, head6 = (_HEAD.pack(wire.TO_QUESTION, t, wire.IN, ttl, n) for t, n in ((wire.A, 4), (wire.AAAA, 16)))
        numbers = _NUMBERS.pack(serial & 0xFFFFFFFF, 7200, 1800, 86400, ttl)
        names = b"\x02ns\x03dns\xc0\x0c\x0ahostmaster\xc0\x0c" + numbers
        soa = wire.TO_QUESTION + wire.encode_fixed(wire.SOA, min(ttl, 300), names)
        return _SETTINGS.pack(
            generation, lease_ns, server4, families.get(16, b""), head4, head6, self.domain, soa,
            len(self.domain), udp_size, self.closed, long_names,
        )  # fmt: skip


def client_key(interface_index: int, address: bytes) -> bytes:
    """The key of a pod's address behind a device."""
    return struct.pack("=I", interface_index) + mapped(address)


def mapped(address: bytes) -> bytes:
    """An address of either family in 16 bytes."""
    return address if len(address) == 16 else b"\0" * 10 + b"\xff\xff" + address
