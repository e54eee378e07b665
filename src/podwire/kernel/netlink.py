"""Netlink sockets: requests, batches in one send, dumps.

The kernel handles a request inside ``send``, so the calls here are synchronous and return within microseconds; they do
not wait for other machines. A batch is many messages in one datagram with NLM_F_ACK on the last message alone: each
refused message is still reported by its sequence number, and the acknowledgement of the last one says that all were
handled (a pod's ten messages: 0.46-0.75 ms; one by one in pyroute2: 26-97 ms). Messages are independent: a failure does
not stop later messages.

NETLINK_EXT_ACK makes the kernel add an error text, NETLINK_CAP_ACK keeps it from returning the request,
NETLINK_GET_STRICT_CHK makes it filter dumps by the fields of the request (and refuse short headers). A dump during
which the tables changed (NLM_F_DUMP_INTR) is inconsistent and is requested again.
"""

import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from podwire.errors import KernelError
from podwire.kernel import attributes, netns
from podwire.kernel.attributes import NLMSGHDR, Run
from podwire.kernel.failure import refusal
from podwire.kernel.uapi import (
    NETLINK_CAP_ACK,
    NETLINK_EXT_ACK,
    NETLINK_GET_STRICT_CHK,
    NETLINK_ROUTE,
    NLM_F_ACK,
    NLM_F_ACK_TLVS,
    NLM_F_CAPPED,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    NLMSGERR_ATTR_MSG,
    SOL_NETLINK,
)

_BUFFER = 1 << 22
"""Socket buffers in bytes: 4 MiB hold the errors of a batch in which every message fails."""

_RECEIVE = 1 << 16
"""The longest datagram: dumps have at most 32 KiB, error reports of batches are much shorter."""

_BATCH = 500
"""Messages per datagram; more are not faster (measured), and their errors could overflow the receive buffer."""

_ANSWER_TIMEOUT_S = 10
"""The kernel answers inside send; this limit matters only if it does not (a kernel bug, never observed)."""

_DUMP_TRIES = 10


class Message(msgspec.Struct, frozen=True, gc=False):
    """One request: message type, flags besides NLM_F_REQUEST, family header with attributes.

    ``subject`` is the object for error messages; it is converted to text only then.
    """

    kind: int
    flags: int
    body: bytes
    operation: str
    subject: object


class Netlink:
    """A netlink socket that lives in one network namespace."""

    def __init__(
        self, netns_path: Path | str | int | None = None, family: int = NETLINK_ROUTE, *, short: bool = False
    ) -> None:
        """With ``short`` the socket is for a few small batches: its buffers are not enlarged."""
        self.netns = netns_path
        self._socket = netns.run_inside(netns_path, lambda: _open(family, short=short))
        self._sequence = 0

    def __enter__(self) -> "Netlink":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket; has no effect when it is closed."""
        self._socket.close()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    @property
    def port(self) -> int:
        """The port id by which notifications name this socket's own changes."""
        return int(self._socket.getsockname()[0])

    def request(self, message: Message) -> None:
        """Sends one message and returns when the kernel has handled it.

        Raises: KernelError and its subclasses.
        """
        failures = self._exchange((message,))
        if failures:
            raise failures[0]

    def batch(self, messages: Sequence[Message]) -> dict[int, KernelError]:
        """Sends all messages, in datagrams of 500, and returns the failures by position in ``messages``.

        Messages after a failed one are handled nevertheless.

        Raises: KernelError when the socket itself fails.
        """
        failures: dict[int, KernelError] = {}
        for start in range(0, len(messages), _BATCH):
            chunk = messages[start : start + _BATCH]
            failures.update((start + at, failure) for at, failure in self._exchange(chunk).items())
        return failures

    def _exchange(self, messages: Sequence[Message]) -> dict[int, KernelError]:
        if not messages:
            return {}
        first = self._sequence + 1
        self._sequence += len(messages)
        chunks: list[bytes] = []
        pack, header, last = NLMSGHDR.pack, NLMSGHDR.size, self._sequence
        for sequence, message in enumerate(messages, first):
            flags = message.flags | (NLM_F_REQUEST if sequence < last else NLM_F_REQUEST | NLM_F_ACK)
            body = message.body
            chunks += pack(header + len(body), message.kind, flags, sequence, 0), body
        self._send(b"".join(chunks), messages[0])
        failures: dict[int, KernelError] = {}
        while True:
            for kind, flags, sequence, payload in attributes.messages(self._receive(messages[-1])):
                at = sequence - first
                if kind != NLMSG_ERROR or not 0 <= at < len(messages):
                    continue
                failure = _failure(payload, flags, messages[at])
                if failure is not None:
                    failures[at] = failure
                if at == len(messages) - 1:
                    return failures

    def dump(self, message: Message, keep: Callable[[bytes], bool] | None = None) -> list[bytes]:
        """The payload of every object in the answer to a dump request, from one consistent state.

        ``keep`` says whether to keep a payload; only kept payloads take memory. After ten interrupted attempts the last
        answer is returned: the calling reconciler runs again anyway.

        Raises: KernelError.
        """
        objects: list[bytes] = []

        def take(run: Run) -> None:
            objects.extend(run.payloads if keep is None else filter(keep, run.payloads))

        for _attempt in range(_DUMP_TRIES):
            objects.clear()
            if not self._dump_once(message, take):
                break
        return objects

    def dump_runs(self, message: Message) -> list[Run]:
        """As :meth:`dump`, all payloads, without an object for each.

        Raises: KernelError.
        """
        answered: list[Run] = []
        for _attempt in range(_DUMP_TRIES):
            answered.clear()
            if not self._dump_once(message, answered.append):
                break
        return answered

    def _dump_once(self, message: Message, take: Callable[[Run], None]) -> bool:
        """Calls ``take`` with the payloads; returns whether the tables changed meanwhile."""
        self._sequence += 1
        sequence = self._sequence
        size = NLMSGHDR.size + len(message.body)
        flags = message.flags | NLM_F_REQUEST | NLM_F_DUMP
        self._send(NLMSGHDR.pack(size, message.kind, flags, sequence, 0) + message.body, message)
        interrupted = False
        while True:
            datagram = self._receive(message)
            alike = attributes.messages_alike(datagram)
            if alike is not None and alike.sequence == sequence and alike.kind > NLMSG_DONE:
                interrupted = interrupted or bool(alike.flags & NLM_F_DUMP_INTR)
                take(alike.run)
                continue
            payloads: list[bytes] = []
            for kind, flags, answered_sequence, payload in attributes.messages(datagram):
                if answered_sequence != sequence:
                    continue
                if flags & NLM_F_DUMP_INTR:
                    interrupted = True
                if kind <= NLMSG_DONE and kind in (NLMSG_DONE, NLMSG_ERROR):
                    failure = _failure(payload, flags, message, done=kind == NLMSG_DONE)
                    if failure is not None:
                        raise failure
                    _take_all(payloads, take)
                    return interrupted
                payloads.append(payload)
            _take_all(payloads, take)

    def get(self, message: Message) -> tuple[int, bytes]:
        """Type and payload of the single object in the answer to a request without NLM_F_DUMP.

        Raises: KernelNotFound, KernelError.
        """
        self._sequence += 1
        sequence = self._sequence
        size = NLMSGHDR.size + len(message.body)
        head = NLMSGHDR.pack(size, message.kind, message.flags | NLM_F_REQUEST, sequence, 0)
        self._send(head + message.body, message)
        while True:
            for kind, flags, answered_sequence, payload in attributes.messages(self._receive(message)):
                if answered_sequence != sequence:
                    continue
                if kind != NLMSG_ERROR:
                    return kind, payload
                failure = _failure(payload, flags, message)
                raise failure or refusal(message.operation, str(message.subject), errno.ENODATA)

    def receive_notification(self) -> bytes | None:
        """The next notification; empty when the kernel dropped some for lack of room; None: there is none.

        Raises: KernelError when the socket fails.
        """
        try:
            return self._socket.recv(_RECEIVE, socket.MSG_DONTWAIT)
        except OSError as failure:
            if failure.errno in (errno.EAGAIN, errno.ENOBUFS):
                return None if failure.errno == errno.EAGAIN else b""
            raise refusal("read", "netlink messages", failure.errno or 0) from failure

    def _send(self, datagram: bytes, message: Message) -> None:
        try:
            self._socket.send(datagram)
        except OSError as failure:
            raise refusal(message.operation, str(message.subject), failure.errno or 0) from failure

    def _receive(self, message: Message) -> bytes:
        try:
            return self._socket.recv(_RECEIVE)
        except OSError as failure:
            number = errno.ETIMEDOUT if failure.errno == errno.EAGAIN else failure.errno or 0
            raise refusal(message.operation, str(message.subject), number) from failure


def _take_all(payloads: Sequence[bytes], take: Callable[[Run], None]) -> None:
    for run in attributes.runs(payloads):
        take(run)


def _open(family: int, *, short: bool = False) -> socket.socket:
    try:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family)
    except OSError as failure:
        raise refusal("open", f"netlink socket of family {family}", failure.errno or 0) from failure
    for level, option, value in _OPTIONS[:_SMALL] if short else _OPTIONS:
        # Kernels before 4.12 and 4.20 lack the first three, user namespaces lack the permission for the last two. Then
        # error texts are missing, dumps are longer and batches must be shorter, but everything works.
        with contextlib.suppress(OSError):
            opened.setsockopt(level, option, value)
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVTIMEO, struct.pack("@ll", _ANSWER_TIMEOUT_S, 0))
    opened.bind((0, 0))
    return opened


_SO_RCVTIMEO, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 20, 32, 33
"""asm-generic/socket.h"""
_OPTIONS = (
    (SOL_NETLINK, NETLINK_CAP_ACK, 1),
    (SOL_NETLINK, NETLINK_EXT_ACK, 1),
    (SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1),
    (socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER),
    (socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER),
)
_SMALL = 2
"""How many of the options are for requests; the others are for dumps and for buffers."""


def _failure(payload: bytes, flags: int, message: Message, *, done: bool = False) -> KernelError | None:
    """The refusal in an NLMSG_ERROR or NLMSG_DONE payload, None for success."""
    if len(payload) < 4:
        return None
    (code,) = struct.unpack_from("=i", payload)
    if code >= 0:
        return None
    detail = ""
    if flags & NLM_F_ACK_TLVS:
        start = 4 if done else 4 + NLMSGHDR.size
        if not done and not flags & NLM_F_CAPPED and len(payload) >= start:
            (size,) = struct.unpack_from("=I", payload, 4)
            start = 4 + ((size + 3) & ~3)
        detail = attributes.string(attributes.parse(payload, start), NLMSGERR_ATTR_MSG)
    return refusal(message.operation, str(message.subject), -code, detail)
