"""The nfnetlink socket: batches in one send, dumps, generation numbers, notifications.

A batch must be one datagram, so the send buffer is made large with SO_SNDBUFFORCE (a full load of 10,000 Services is
about 7 MB). The kernel handles a batch inside ``sendmsg``: when the call returns, all answers are in the receive
buffer.
"""

import ctypes
import errno
import socket
import struct
from pathlib import Path

import msgspec

from podwire.errors import KernelError
from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.failure import refusal
from podwire.kernel.netns import inside
from podwire.state.nft import FAMILIES

_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 32, 33, 26
_BUFFER = 64 << 20
_RECEIVE = 8 << 20
_TRIES = 16


class Refusal(Exception):
    """The kernel refused a message of a batch: sequence number, errno, error text, offset of the attribute."""

    def __init__(self, sequence: int, number: int, text: str, offset: int) -> None:
        super().__init__(text)
        self.sequence, self.number, self.text, self.offset = sequence, number, text, offset


class Touched(msgspec.Struct):
    """What notifications named of a table."""

    deleted: bool = False
    """Whether the whole table was deleted, with all its chains and sets."""
    chains: set[str] = msgspec.field(default_factory=set)
    """Those whose rules changed, or that were made or deleted."""
    sets: set[str] = msgspec.field(default_factory=set)
    """Those whose elements changed."""


def open_socket(netns: Path | str | int | None) -> socket.socket:
    """An nfnetlink socket that lives in the namespace.

    Raises: KernelError when it cannot be opened.
    """
    with inside(netns):
        try:
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, uapi.NETLINK_NETFILTER)
        except OSError as failure:
            raise refusal("open", "nfnetlink socket", failure.errno or 0) from failure
    sock.bind((0, 0))
    sock.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_CAP_ACK, 1)
    sock.setsockopt(uapi.SOL_NETLINK, uapi.NETLINK_EXT_ACK, 1)
    for forced, plain, size in (
        (_SO_SNDBUFFORCE, socket.SO_SNDBUF, _BUFFER),
        (_SO_RCVBUFFORCE, socket.SO_RCVBUF, _RECEIVE),
    ):
        try:
            sock.setsockopt(socket.SOL_SOCKET, forced, size)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, plain, size)
    return sock


class NftSocket:
    """Requests to nftables in one network namespace."""

    def __init__(self, netns: Path | str | int | None = None) -> None:
        self._sock = open_socket(netns)
        self._sequence = 0

    @property
    def port(self) -> int:
        """The port that notifications of this socket's transactions carry."""
        return int(self._sock.getsockname()[0])

    def close(self) -> None:
        """Closes the socket."""
        self._sock.close()

    def next_sequence(self, count: int = 1) -> int:
        """The first of ``count`` unused sequence numbers."""
        first = self._sequence + 1
        self._sequence += count
        return first

    def transact(self, batch: bytes) -> None:
        """Sends a batch and waits until the kernel has committed it.

        Raises: Refusal for the first refused message; nothing has changed then.
        """
        self._send(batch, f"nftables batch of {len(batch)} bytes")
        first: Refusal | None = None
        while True:
            try:
                data = self._sock.recv(1 << 17, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise refusal("receive", "nftables answer", failure.errno or 0) from failure
                continue
            for kind, flags, sequence, body in nl.messages(data):
                refused = _refusal(kind, flags, sequence, body)
                if refused is not None and first is None:
                    first = refused
        if first is not None:
            raise first

    def _send(self, data: bytes, what: str) -> None:
        try:
            self._sock.send(data)
        except OSError as failure:
            raise refusal("send", what, failure.errno or 0) from failure

    def _receive(self, what: str) -> bytes:
        try:
            return self._sock.recv(1 << 18)
        except OSError as failure:
            raise refusal("receive", what, failure.errno or 0) from failure

    def dump(self, kind: int, family: int, body: bytes = b"") -> list[bytes]:
        """The bodies (behind the nfnetlink header) of all answers to a dump request.

        Raises: KernelError; KernelNotFound when the object in the request does not exist.
        """
        for _ in range(_TRIES):
            bodies = self._dump_once(kind, family, body)
            if bodies is not None:
                return bodies
        raise KernelError(
            "dump",
            f"nftables message {kind}",
            errno.EINTR,
            f"the rules changed during each of {_TRIES} attempts to read them",
        )

    def _dump_once(self, kind: int, family: int, body: bytes) -> list[bytes] | None:
        sequence = self.next_sequence()
        what = f"nftables message {kind}"
        self._send(nl.message(kind, uapi.NLM_F_DUMP, sequence, family, body), what)
        bodies: list[bytes] = []
        interrupted = False
        while True:
            for answer, flags, number, payload in nl.messages(self._receive(what)):
                if number != sequence:
                    continue
                interrupted = interrupted or bool(flags & uapi.NLM_F_DUMP_INTR)
                if answer == uapi.NLMSG_DONE:
                    return None if interrupted else bodies
                failure = _refusal(answer, flags, number, payload)
                if failure is not None:
                    if failure.number == errno.EINTR:
                        return None
                    raise refusal("dump", what, failure.number, failure.text)
                bodies.append(payload[4:])

    def generation(self) -> int:
        """The number that grows with every committed transaction of the namespace."""
        sequence = self.next_sequence()
        self._send(nl.message(uapi.NFT_MSG_GETGEN, 0, sequence, 0, b""), "nftables generation")
        while True:
            for _, _, number, payload in nl.messages(self._receive("nftables generation")):
                if number == sequence:
                    return nl.number(nl.attributes(payload[4:]).get(uapi.NFTA_GEN_ID))


def _refusal(kind: int, flags: int, sequence: int, body: bytes) -> Refusal | None:
    if kind != uapi.NLMSG_ERROR:
        return None
    number = -struct.unpack_from("=i", body)[0]
    if not number:
        return None
    text, offset = "", 0
    if flags & uapi.NLM_F_ACK_TLVS:
        capped = flags & uapi.NLM_F_CAPPED
        skip = 20 if capped else 4 + struct.unpack_from("=I", body, 4)[0]
        extra = nl.attributes(body[skip:])
        text = nl.string(extra.get(uapi.NLMSGERR_ATTR_MSG))
        offset = struct.unpack("=I", extra[uapi.NLMSGERR_ATTR_OFFS])[0] if uapi.NLMSGERR_ATTR_OFFS in extra else 0
    return Refusal(sequence, number, text, offset)


class NftMonitor:
    """Notifications of rule changes; readable when ``fileno`` is.

    Only table names are decoded: the changes are found by reading. A socket filter in the kernel drops transactions of
    the sockets whose ports are in ``ignore``, so this process' own changes cost nothing here. The kernel still makes a
    message per element while any socket listens (25 us; ten times the cost of the change), so a large load is done
    between :meth:`pause` and :meth:`resume`.
    """

    def __init__(self, netns: Path | str | int | None = None, ignore: tuple[int, ...] = ()) -> None:
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
        found: dict[tuple[str, str], Touched] = {}
        known: tuple[int, bytes] = (0, b"")
        while True:
            try:
                data = self._sock.recv(1 << 18)
            except BlockingIOError:
                return found
            except OSError as failure:
                if failure.errno != errno.ENOBUFS:
                    raise refusal("receive", "nftables notifications", failure.errno or 0) from failure
                found[("", "")] = Touched()
                continue
            if struct.unpack_from("=I", data, _PORT_OFFSET)[0] in self._left_out:
                continue
            for kind, _, _, body in nl.messages(data):
                if kind == (uapi.NFNL_SUBSYS_NFTABLES << 8 | uapi.NFT_MSG_NEWGEN) or len(body) <= 4:
                    continue
                if known[0] == kind and body.startswith(known[1]):
                    continue  # another element of the same set, or another rule of the same chain
                known = kind, _note(kind & 0xFF, body, found)


def _note(kind: int, body: bytes, found: dict[tuple[str, str], Touched]) -> bytes:
    """Adds what a notification is about; returns the beginning of all notifications about the same chain or set."""
    fields = nl.attributes(body[4:])
    family = _FAMILY_NAMES.get(body[0], "")
    touched = found.setdefault((family, nl.string(fields.get(_TABLE_NAME))), Touched())
    if kind in _OF_CHAINS:
        touched.chains.add(nl.string(fields.get(_OF_CHAINS[kind])))
    elif kind == uapi.NFT_MSG_DELTABLE:
        touched.deleted = True
    elif kind in _OF_SETS:
        touched.sets.add(nl.string(fields.get(_OF_SETS[kind])))
    if kind not in (uapi.NFT_MSG_NEWRULE, uapi.NFT_MSG_DELRULE, uapi.NFT_MSG_NEWSETELEM, uapi.NFT_MSG_DELSETELEM):
        return body
    sizes = [len(fields[_TABLE_NAME]), len(fields[_OF_CHAINS.get(kind) or _OF_SETS[kind]])]
    return body[: 4 + sum((4 + size + 3) & ~3 for size in sizes)]


_OF_CHAINS = {
    uapi.NFT_MSG_NEWRULE: uapi.NFTA_RULE_CHAIN,
    uapi.NFT_MSG_DELRULE: uapi.NFTA_RULE_CHAIN,
    uapi.NFT_MSG_NEWCHAIN: uapi.NFTA_CHAIN_NAME,
    uapi.NFT_MSG_DELCHAIN: uapi.NFTA_CHAIN_NAME,
}
"""Where the chain is named in a notification about rules or chains."""
_OF_SETS = {
    uapi.NFT_MSG_NEWSETELEM: uapi.NFTA_SET_ELEM_LIST_SET,
    uapi.NFT_MSG_DELSETELEM: uapi.NFTA_SET_ELEM_LIST_SET,
}
"""Where the set is named in a notification about elements."""
_FAMILY_NAMES = {number: name for name, number in FAMILIES.items()}
_TABLE_NAME = uapi.NFTA_TABLE_NAME
"""NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE and NFTA_SET_ELEM_LIST_TABLE have the same number."""
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
