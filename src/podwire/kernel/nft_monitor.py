"""Notifications of nftables changes, and the changed objects of each table.

Notifications carry whole objects: one about a deleted element has its key, data and comment, one about a deleted rule
its expressions. :class:`Touched` keeps the deleted elements of a table and the deleted rules of some chains as the
kernel encoded them, so that they can be written again as they were.
"""

import ctypes
import errno
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.failure import refusal
from podwire.kernel.nft_socket import open_socket
from podwire.state.nft import FAMILIES

_SO_ATTACH_FILTER = 26


class Touched(msgspec.Struct):
    """The objects of a table that notifications named."""

    missed: bool = False
    """Whether there may be changes that no notification named."""
    deleted: bool = False
    """Whether the whole table was deleted, with all its chains and sets."""
    chains: set[str] = msgspec.field(default_factory=set)
    """Chains whose rules changed, and chains that were created or deleted."""
    sets: set[str] = msgspec.field(default_factory=set)
    """Sets whose elements changed."""
    added: set[str] = msgspec.field(default_factory=set)
    """Sets to which elements were added; deleted elements of such a set may be those of other programs."""
    removed: dict[str, dict[bytes, bytes]] = msgspec.field(default_factory=dict)
    """Deleted elements by set and key, as list attributes of a message; only of the table that is kept."""
    rules: dict[str, list[bytes]] = msgspec.field(default_factory=dict)
    """Deleted rules by chain, in order, as attributes of a message; only of chains that are kept."""

    def restorable(self) -> dict[str, dict[bytes, bytes]]:
        """The deleted elements of sets that lack only these."""
        return {} if self.missed else {name: e for name, e in self.removed.items() if name not in self.added}

    def add(self, later: "Touched") -> None:
        """Adds the objects that later notifications named."""
        self.missed = self.missed or later.missed
        self.deleted = self.deleted or later.deleted
        self.chains |= later.chains
        self.sets |= later.sets
        self.added |= later.added
        for name, elements in later.removed.items():
            self.removed.setdefault(name, {}).update(elements)
        for name, rules in later.rules.items():
            self.rules.setdefault(name, []).extend(rules)


KeptChains = Callable[[str, str], bool]
"""Whether the deleted rules of a chain are kept, by table and chain."""


class NftMonitor:
    """Notifications of rule changes; readable when ``fileno`` is.

    Only names and keys are decoded. A socket filter in the kernel drops transactions of the sockets whose ports are in
    ``ignore``, so this process' own changes cost nothing here. The kernel still makes a
    message per element while any socket listens (25 us; ten times the cost of the change), so a large load is done
    between :meth:`pause` and :meth:`resume`.
    """

    def __init__(
        self,
        netns: Path | str | int | None = None,
        ignore: tuple[int, ...] = (),
        keep: str = "",
        keep_rules: KeptChains = lambda _table, _chain: False,
    ) -> None:
        """``keep`` is the name of the table whose deleted elements are kept."""
        self._keep = keep
        self._keep_rules = keep_rules
        self._sock = open_socket(netns)
        self._filter = _drop_ports(ignore)
        if ignore:
            code = ctypes.create_string_buffer(self._filter)
            count = len(self._filter) // 8
            self._sock.setsockopt(
                socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", count, ctypes.addressof(code))
            )
        self._sock.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_ADD_MEMBERSHIP, uapi.NFNLGRP_NFTABLES)
        self._sock.setblocking(False)
        self._left_out: set[int] = set()

    def ignore_port(self, port: int) -> None:
        """Ignores changes by the socket with this port; the first socket of a program has its process id as port."""
        self._left_out.add(port)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def close(self) -> None:
        """Stops listening."""
        self._sock.close()

    def pause(self) -> None:
        """Stops listening; the descriptor stays.

        Raises: KernelError.
        """
        self._member(uapi.NETLINK_DROP_MEMBERSHIP)

    def resume(self) -> None:
        """Listens again; changes made meanwhile are not reported.

        Raises: KernelError.
        """
        self._member(uapi.NETLINK_ADD_MEMBERSHIP)

    def _member(self, option: int) -> None:
        try:
            self._sock.setsockopt(uapi.SOL_NETLINK, option, uapi.NFNLGRP_NFTABLES)
        except OSError as failure:
            raise refusal("listen", "nftables notifications", failure.errno or 0) from failure

    def changed(self) -> set[tuple[str, str]]:
        """(family, table) of all changes since the last call; ("", "") means that some were missed: read all tables."""
        return set(self.read())

    def read(self) -> dict[tuple[str, str], Touched]:
        """What changed since the last call, by (family, table); ("", "") means that some were missed: read all."""
        touched_tables: dict[tuple[str, str], Touched] = {}
        last = _Repeated()
        while True:
            try:
                data = self._sock.recv(1 << 18)
            except BlockingIOError:
                return touched_tables
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise refusal("receive", "nftables notifications", failure.errno or 0) from failure
                touched_tables[("", "")] = Touched()
                continue
            if struct.unpack_from("=I", data, _PORT_OFFSET)[0] in self._left_out:
                continue
            for kind, _, _, body in nl.messages(data):
                if kind == last.kind and body.startswith(last.head):  # another element of this set, or rule of a chain
                    last.keep(body)
                elif kind != _NEW_GENERATION and len(body) > 4:
                    last = _note(kind, body, touched_tables, self._keep, self._keep_rules)


class _Repeated(msgspec.Struct, frozen=True):
    """The bytes that notifications about the same chain or set have in common, and where a deleted element is kept."""

    kind: int = 0
    head: bytes = b""
    removed: dict[bytes, bytes] | None = None
    element: int = 0
    key: slice = slice(0)
    rules: list[bytes] | None = None

    def keep(self, body: bytes) -> None:
        """Keeps a deleted element or rule, if those of this set or chain are kept."""
        if self.removed is not None:
            self.removed[body[self.key]] = body[self.element :]
        elif self.rules is not None:
            self.rules.append(_without_handle(body, self.element))


def _note(
    kind: int, body: bytes, touched_tables: dict[tuple[str, str], Touched], keep: str, keep_rules: KeptChains
) -> _Repeated:
    """Adds the object of a notification; returns the pattern of further notifications about the same object."""
    kind_of_object = kind & 0xFF
    if kind_of_object in _REPEATED:
        return _note_repeated(kind, body, touched_tables, keep, keep_rules)
    fields = nl.attributes(body[4:])
    touched = _of_table(body, nl.string(fields.get(uapi.NFTA_CHAIN_TABLE)), touched_tables)
    if kind_of_object in _OF_CHAINS:
        touched.chains.add(nl.string(fields.get(uapi.NFTA_CHAIN_NAME)))
    elif kind_of_object == uapi.NFT_MSG_DELTABLE:
        touched.deleted = True
    return _Repeated(kind, body)


def _note_repeated(
    kind: int, body: bytes, touched_tables: dict[tuple[str, str], Touched], keep: str, keep_rules: KeptChains
) -> _Repeated:
    """Adds a rule or element. The names of its table, and of its chain or set, are the first attributes."""
    kind_of_object = kind & 0xFF
    table_end = 4 + _padded_size(body, 4)
    size = table_end + _padded_size(body, table_end)
    table, name = nl.string(body[8:table_end]), nl.string(body[table_end + 4 : size])
    touched = _of_table(body, table, touched_tables)
    if kind_of_object in _OF_RULES:
        touched.chains.add(name)
        if kind_of_object == uapi.NFT_MSG_NEWRULE or not keep_rules(table, name):
            return _Repeated(kind, body[:size])
        rules = touched.rules.setdefault(name, [])
        rules.append(_without_handle(body, size))
        return _Repeated(kind, body[:size], rules=rules, element=size)
    touched.sets.add(name)
    if kind_of_object == uapi.NFT_MSG_NEWSETELEM:
        touched.added.add(name)
    if kind_of_object == uapi.NFT_MSG_NEWSETELEM or table != keep:
        return _Repeated(kind, body[:size])
    element = size + 4  # the list of elements follows the names; its only entry begins with the element's key
    key_length = struct.unpack_from("=H", body, element + 8)[0] - 4
    key = slice(element + 12, element + 12 + key_length)
    removed = touched.removed.setdefault(name, {})
    removed[body[key]] = body[element:]
    return _Repeated(kind, body[:size], removed, element, key)


def _of_table(body: bytes, table: str, touched_tables: dict[tuple[str, str], Touched]) -> Touched:
    """The changes of the table of a notification."""
    key = _FAMILY_NAMES.get(body[0], ""), table
    touched = touched_tables.get(key)
    if touched is None:
        touched = touched_tables[key] = Touched()
    return touched


def _padded_size(body: bytes, offset: int) -> int:
    """The size of an attribute with its padding."""
    return (int.from_bytes(body[offset : offset + 2], sys.byteorder) + 3) & ~3


def _without_handle(rule: bytes, names: int) -> bytes:
    """The attributes of a rule behind the names without the handle, which a new rule gets anew; it comes first."""
    return rule[names + _HANDLE_SIZE :] if rule.startswith(_HANDLE, names) else rule[names:]


_HANDLE_SIZE = 12
_HANDLE = struct.pack("=HH", _HANDLE_SIZE, uapi.NFTA_RULE_HANDLE)
_NEW_GENERATION = uapi.NFNL_SUBSYS_NFTABLES << 8 | uapi.NFT_MSG_NEWGEN
_REPEATED = (uapi.NFT_MSG_NEWRULE, uapi.NFT_MSG_DELRULE, uapi.NFT_MSG_NEWSETELEM, uapi.NFT_MSG_DELSETELEM)
"""Notifications that come once for each rule or element."""
_OF_RULES = (uapi.NFT_MSG_NEWRULE, uapi.NFT_MSG_DELRULE)
_OF_CHAINS = (uapi.NFT_MSG_NEWCHAIN, uapi.NFT_MSG_DELCHAIN)
_FAMILY_NAMES = {number: name for name, number in FAMILIES.items()}
_PORT_OFFSET = 12
"""The offset of ``nlmsg_pid``, the port of the requesting socket, in a message."""


def _drop_ports(ports: tuple[int, ...]) -> bytes:
    """A classic BPF program that drops messages whose first header names one of the ports."""
    load = struct.pack("HBBI", 0x20, 0, 0, _PORT_OFFSET)
    tests = b""
    for index, port in enumerate(ports):
        swapped = int.from_bytes(struct.pack("=I", port), "big")
        tests += struct.pack("HBBI", 0x15, len(ports) - index, 0, swapped)
    keep = struct.pack("HBBI", 0x06, 0, 0, 0xFFFFFFFF)
    drop = struct.pack("HBBI", 0x06, 0, 0, 0)
    return load + tests + keep + drop
