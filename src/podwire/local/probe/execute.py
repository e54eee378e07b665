"""Tries the attempts of a plan, with sockets that are opened inside the sources' namespaces.

A socket stays in the network namespace in which its thread created it. So all sockets of a source are created in one
visit to its namespace, and one event loop uses them all; a source needs no process or thread of its own. 324 attempts
take about 0.2 s.

The probe sends one line on each connection. The stand-in server answers with one line of JSON: its identity and the
client's address. Other servers may send any answer or none: TCP counts as reached when the connection is accepted, UDP
when a datagram comes back. A datagram is sent again after 0.3 s, because UDP does not retransmit.

A dropped packet causes no answer at all. When policies deny a connection, the probe waits only :data:`DENIED_S` for an
unexpected answer, not the whole time limit. For TCP this is enough, because the kernel answers without any program.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from podwire.kernel import netns
from podwire.local.probe.plan import Attempt, PacketSource
from podwire.local.probe.result import ProbeResult
from podwire.runtime.clock import Clock

HELLO = b"podwire-probe\n"
_ANSWER_LIMIT = 4096
_ANSWER_WAIT_S = 0.5
_RESEND_S = 0.3
DENIED_S = {"TCP": 0.1, "UDP": 0.25}
"""Seconds to wait when policies deny a connection; about 100 times the usual response time."""
_AT_ONCE = 32
"""Attempts that run at the same time: more would only queue in this process and distort the measured times."""

NamespaceOf = Callable[[PacketSource], Path | None]
"""The namespace file of a source; None for the host's own namespace."""


class _ServerAnswer(msgspec.Struct):
    """The stand-in server's answer; unknown fields are ignored."""

    namespace: str = ""
    pod: str = ""
    client: str = ""


class Lookup(msgspec.Struct, frozen=True):
    """The DNS server's address, and the codec for queries and answers."""

    server: str
    query: Callable[[int, str, bool], bytes]
    """Transaction, name, whether IPv6 -> datagram."""
    addresses: Callable[[bytes], tuple[str, ...]]
    """Datagram -> addresses, empty when there are none."""


class ConnectionProber:
    """Runs attempts; ``timeout_s`` is the time limit of each."""

    def __init__(self, namespace_of: NamespaceOf, lookup: Lookup, clock: Clock, timeout_s: float = 1.0) -> None:
        self._namespace_of = namespace_of
        self._lookup = lookup
        self._clock = clock
        self._timeout_s = timeout_s

    async def run(self, attempts: Sequence[Attempt]) -> tuple[ProbeResult, ...]:
        """The results in the order of the attempts."""
        names = await self._resolve(attempts)
        sockets = self._open(attempts, names)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def try_one(number: int, attempt: Attempt) -> ProbeResult:
            async with gate:
                return await self._try(attempt, sockets.get(number), names.get(_question(attempt), attempt.address))

        return tuple(await asyncio.gather(*(try_one(number, attempt) for number, attempt in enumerate(attempts))))

    async def _resolve(self, attempts: Sequence[Attempt]) -> dict[tuple[PacketSource, str], str]:
        patience: dict[tuple[PacketSource, str], float] = {}
        for attempt in attempts:
            if attempt.named:
                question = _question(attempt)
                patience[question] = max(patience.get(question, 0.0), self._patience_s(attempt, "UDP"))
        by_source: dict[PacketSource, list[tuple[PacketSource, str]]] = {}
        for question in patience:
            by_source.setdefault(question[0], []).append(question)
        asking: list[tuple[tuple[PacketSource, str], socket.socket]] = []
        for source, questions_of_source in by_source.items():
            with netns.inside(self._namespace_of(source)):
                family = socket.AF_INET6 if ":" in self._lookup.server else socket.AF_INET
                asking += [(question, _socket(family, socket.SOCK_DGRAM)) for question in questions_of_source]
        answers = await asyncio.gather(
            *(
                self._ask(
                    s, self._lookup.query(n & 0xFFFF, question[1], ":" in self._lookup.server), patience[question]
                )
                for n, (question, s) in enumerate(asking)
            )
        )
        return {question: answer for (question, _), answer in zip(asking, answers, strict=True) if answer}

    def _patience_s(self, attempt: Attempt, protocol: str) -> float:
        denied = bool(attempt.because) and not attempt.either
        return min(DENIED_S[protocol], self._timeout_s) if denied else self._timeout_s

    async def _ask(self, sock: socket.socket, message: bytes, patience_s: float) -> str:
        with sock:
            try:
                await asyncio.get_running_loop().sock_connect(sock, (self._lookup.server, 53))
                reply = await self._exchange(sock, message, patience_s)
            except OSError:
                return ""
            addresses = self._lookup.addresses(reply) if reply else ()
            return addresses[0] if addresses else ""

    def _open(
        self, attempts: Sequence[Attempt], names: dict[tuple[PacketSource, str], str]
    ) -> dict[int, socket.socket]:
        by_source: dict[PacketSource, list[int]] = {}
        for number, attempt in enumerate(attempts):
            by_source.setdefault(attempt.source, []).append(number)
        opened: dict[int, socket.socket] = {}
        for source, numbers in by_source.items():
            with netns.inside(self._namespace_of(source)):
                for number in numbers:
                    attempt = attempts[number]
                    address = names.get(_question(attempt), "" if attempt.named else attempt.address)
                    if address:
                        opened[number] = _socket_for(address, attempt.port.protocol)
                        if source.namespace:
                            opened[number].bind((source.address, 0))
        return opened

    async def _try(self, attempt: Attempt, sock: socket.socket | None, address: str) -> ProbeResult:
        if sock is None:
            return ProbeResult(attempt=attempt, reached=False, error=f"no DNS answer for {attempt.address}")
        started = self._clock.monotonic()
        with sock:
            try:
                reply, took_s = await self._converse(sock, attempt, address)
            except TimeoutError:
                return self._failed(attempt, started, "timed out")
            except ConnectionRefusedError:
                return self._failed(attempt, started, "refused")
            except OSError as failure:
                return self._failed(attempt, started, (failure.strerror or str(failure)).lower())
        answer = _read_answer(reply)
        return ProbeResult(
            attempt=attempt,
            reached=True,
            answered_by=f"{answer.namespace}/{answer.pod}" if answer.pod else "",
            source_seen=answer.client,
            ms=took_s * 1000,
        )

    def _failed(self, attempt: Attempt, started: float, error: str) -> ProbeResult:
        took_s = self._clock.monotonic() - started
        return ProbeResult(attempt=attempt, reached=False, ms=took_s * 1000, error=error)

    async def _converse(self, sock: socket.socket, attempt: Attempt, address: str) -> tuple[bytes, float]:
        loop = asyncio.get_running_loop()
        started = self._clock.monotonic()
        patience_s = self._patience_s(attempt, attempt.port.protocol)
        async with asyncio.timeout(patience_s):
            await loop.sock_connect(sock, (address, attempt.port.number))
            if attempt.port.protocol == "UDP":
                reply = await self._exchange(sock, HELLO, patience_s)
                if not reply:
                    raise TimeoutError
                return reply, self._clock.monotonic() - started
        took_s = self._clock.monotonic() - started
        try:
            async with asyncio.timeout(_ANSWER_WAIT_S):
                await loop.sock_sendall(sock, HELLO)
                return await loop.sock_recv(sock, _ANSWER_LIMIT), took_s
        except (TimeoutError, OSError):
            return b"", took_s

    async def _exchange(self, sock: socket.socket, message: bytes, patience_s: float) -> bytes:
        """Sends a datagram, again every ``_RESEND_S``, and returns the answer; empty when none comes in time."""
        loop = asyncio.get_running_loop()
        deadline = self._clock.monotonic() + patience_s
        while (left_s := deadline - self._clock.monotonic()) > 0:
            await loop.sock_sendall(sock, message)
            try:
                async with asyncio.timeout(min(_RESEND_S, left_s)):
                    return await loop.sock_recv(sock, _ANSWER_LIMIT)
            except TimeoutError:
                continue
        return b""


def _question(attempt: Attempt) -> tuple[PacketSource, str]:
    return attempt.source, attempt.address


def _socket_for(address: str, protocol: str) -> socket.socket:
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    return _socket(family, socket.SOCK_DGRAM if protocol == "UDP" else socket.SOCK_STREAM)


def _socket(family: int, kind: int) -> socket.socket:
    sock = socket.socket(family, kind)
    sock.setblocking(False)
    return sock


def _read_answer(reply: bytes) -> _ServerAnswer:
    try:
        return msgspec.json.decode(reply.partition(b"\n")[0], type=_ServerAnswer)
    except msgspec.DecodeError:
        return _ServerAnswer()
