"""The nfnetlink socket: batches in one send, dumps, generation numbers.

A batch must be one datagram, so the send buffer is made large with SO_SNDBUFFORCE (a full load of 10,000 Services is
about 7 MB). The kernel handles a batch inside ``sendmsg``: when the call returns, all answers are in the receive
buffer.

An answer to a request for objects, or for the generation number, can get lost. Such a request changes nothing, so it is
sent again, through a new socket. A batch is never sent again: nothing waits for answers to it.
"""

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from podwire.errors import KernelError
from podwire.kernel import nft_codec as nl
from podwire.kernel import uapi
from podwire.kernel.failure import refusal
from podwire.kernel.netns import inside

_SO_RCVTIMEO, _SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 20, 32, 33
ANSWER_S = 1.0
"""The kernel answers inside ``sendmsg`` and ``recvmsg``; an answer that does not come in this time never does."""
_REQUESTS = 5
"""How often a request is sent whose answer does not come."""
_SIOCGSKNS = 0x894C
"""linux/sockios.h: a descriptor of the network namespace of a socket."""
_BUFFER = 64 << 20
_RECEIVE = 8 << 20
_TRIES = 16


T = TypeVar("T")


class Refusal(Exception):
    """The kernel refused a message of a batch: sequence number, errno, error text, offset of the attribute."""

    def __init__(self, sequence: int, number: int, text: str, offset: int) -> None:
        super().__init__(text)
        self.sequence, self.number, self.text, self.offset = sequence, number, text, offset


def open_socket(netns: Path | str | int | None, answer_s: float = ANSWER_S) -> socket.socket:
    """An nfnetlink socket that lives in the namespace, and waits so long for an answer.

    Raises: KernelError when it cannot be opened.
    """
    with inside(netns):
        try:
            sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, uapi.NETLINK_NETFILTER)
        except OSError as failure:
            raise refusal("open", "nfnetlink socket", failure.errno or 0) from failure
    sock.bind((0, 0))
    sock.setsockopt(socket.SOL_SOCKET, _SO_RCVTIMEO, struct.pack("@ll", *divmod(int(answer_s * 1e6), 10**6)))
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

    def __init__(self, netns: Path | str | int | None = None, answer_s: float = ANSWER_S) -> None:
        self._sock = open_socket(netns, answer_s)
        self._reading = self._sock
        """The socket for requests that change nothing; the port of the other one stays the same."""
        self._answer_s = answer_s
        self._sequence = 0

    @property
    def port(self) -> int:
        """The port that notifications of this socket's transactions carry."""
        return int(self._sock.getsockname()[0])

    def close(self) -> None:
        """Closes the socket."""
        self._reading.close()
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
        self._send(self._sock, batch, f"nftables batch of {len(batch)} bytes")
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

    def _send(self, sock: socket.socket, data: bytes, operation: str) -> None:
        try:
            sock.send(data)
        except OSError as failure:
            raise refusal("send", operation, failure.errno or 0) from failure

    def _receive(self, operation: str) -> bytes:
        try:
            return self._reading.recv(1 << 18)
        except OSError as failure:
            number = errno.ETIMEDOUT if failure.errno == errno.EAGAIN else failure.errno or 0
            raise refusal("receive", operation, number) from failure

    def dump(self, kind: int, family: int, body: bytes = b"") -> list[bytes]:
        """The bodies (behind the nfnetlink header) of all answers to a dump request.

        Raises: KernelError; KernelNotFound when the object in the request does not exist.
        """
        for _ in range(_TRIES):
            bodies = self._answered(lambda: self._dump_once(kind, family, body))
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
        operation = f"nftables message {kind}"
        self._send(self._reading, nl.message(kind, uapi.NLM_F_DUMP, sequence, family, body), operation)
        bodies: list[bytes] = []
        interrupted = False
        while True:
            for answer, flags, number, payload in nl.messages(self._receive(operation)):
                if number != sequence:
                    continue
                interrupted = interrupted or bool(flags & uapi.NLM_F_DUMP_INTR)
                if answer == uapi.NLMSG_DONE:
                    return None if interrupted else bodies
                failure = _refusal(answer, flags, number, payload)
                if failure is not None:
                    if failure.number == errno.EINTR:
                        return None
                    raise refusal("dump", operation, failure.number, failure.text)
                bodies.append(payload[4:])

    def generation(self) -> int:
        """The number that grows with every committed transaction of the namespace.

        Raises: KernelError.
        """
        return self._answered(self._ask_generation)

    def _ask_generation(self) -> int:
        sequence = self.next_sequence()
        self._send(self._reading, nl.message(uapi.NFT_MSG_GETGEN, 0, sequence, 0, b""), "nftables generation")
        while True:
            for _, _, number, payload in nl.messages(self._receive("nftables generation")):
                if number == sequence:
                    return nl.number(nl.attributes(payload[4:]).get(uapi.NFTA_GEN_ID))

    def _answered(self, request: Callable[[], T]) -> T:
        """The result of a request that changes nothing; repeated while no answer comes."""
        for _ in range(_REQUESTS - 1):
            try:
                return request()
            except KernelError as failure:
                if failure.errno != errno.ETIMEDOUT:
                    raise
            self._renew()
        return request()

    def _renew(self) -> None:
        """Replaces the socket for requests that change nothing by a new one in the same namespace."""
        try:
            descriptor = fcntl.ioctl(self._sock, _SIOCGSKNS)
        except OSError as failure:
            raise refusal("find", "the namespace of an nfnetlink socket", failure.errno or 0) from failure
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, descriptor)
            if self._reading is not self._sock:
                self._reading.close()
            self._reading = open_socket(descriptor, self._answer_s)


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
