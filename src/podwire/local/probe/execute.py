"""Tries the attempts of a plan, with sockets that are opened inside the sources' namespaces.

A socket stays in the network namespace in which its thread created it. So one thread visits the namespace of the source
for each socket, and one event loop uses all sockets; a source needs no process or thread of its own. Sockets are open
only while their attempt is under way, so a probe of any size has at most about 300 of them. 324 attempts take about
0.2 s.

The probe sends one line on each connection. The stand-in server answers with one line of JSON: its identity and the
client's address. Other servers may send any answer or none: TCP counts as reached when the connection is accepted, UDP
when a datagram comes back. A datagram is sent again after 0.3 s, because UDP does not retransmit.

A dropped packet causes no answer at all. When policies deny a connection, the probe waits only :data:`DENIED_S` for an
unexpected answer, not the whole time limit. For TCP this is enough, because the kernel answers without any program.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from podwire.errors import KernelNotFound
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
_SILENT_AT_ONCE = 256
"""Attempts in progress at the same time from which no answer is expected: they only wait."""

Progress = Callable[[ProbeResult], None]
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


def no_progress(_result: ProbeResult) -> None:
    """Shows nothing."""


class ConnectionProber:
    """Runs attempts; ``timeout_s`` is the time limit of each."""

    def __init__(self, namespace_of: NamespaceOf, lookup: Lookup, clock: Clock, timeout_s: float = 1.0) -> None:
        self._namespace_of = namespace_of
        self._lookup = lookup
        self._clock = clock
        self._timeout_s = timeout_s

    async def run(self, attempts: Sequence[Attempt], progress: Progress = no_progress) -> tuple[ProbeResult, ...]:
        """The results in the order of the attempts; ``progress`` gets each result when it is there."""
        names = await self._resolve(attempts)
        results: dict[int, ProbeResult] = {}

        async def try_one(number: int) -> None:
            attempt = attempts[number]
            address = names.get(_question(attempt), "") if attempt.named else attempt.address
            results[number] = await self._try(attempt, address)
            progress(results[number])

        silent = [number for number, attempt in enumerate(attempts) if self._expects_silence(attempt)]
        answered = sorted(set(range(len(attempts))) - set(silent))
        await asyncio.gather(_in_turn(try_one, answered, _AT_ONCE), _in_turn(try_one, silent, _SILENT_AT_ONCE))
        return tuple(results[number] for number in range(len(attempts)))

    async def _resolve(self, attempts: Sequence[Attempt]) -> dict[tuple[PacketSource, str], str]:
        """The addresses of the DNS names by source and name; those that were answered."""
        patience: dict[tuple[PacketSource, str], float] = {}
        for attempt in attempts:
            if attempt.named:
                question = _question(attempt)
                patience[question] = max(patience.get(question, 0.0), self._patience_s(attempt, "UDP"))
        questions = tuple(patience)
        answers: dict[tuple[PacketSource, str], str] = {}

        async def ask_one(number: int) -> None:
            source, name = question = questions[number]
            if answer := await self._ask(source, number & 0xFFFF, name, patience[question]):
                answers[question] = answer

        await _in_turn(ask_one, range(len(questions)), _SILENT_AT_ONCE)
        return answers

    def _expects_silence(self, attempt: Attempt) -> bool:
        return bool(attempt.because) and not attempt.either

    def _patience_s(self, attempt: Attempt, protocol: str) -> float:
        return min(DENIED_S[protocol], self._timeout_s) if self._expects_silence(attempt) else self._timeout_s

    async def _ask(self, source: PacketSource, number: int, name: str, patience_s: float) -> str:
        """The first address that cluster DNS gives to a source; empty when it gives none."""
        server = self._lookup.server
        try:
            opened = self._open(source, server, socket.SOCK_DGRAM)
        except KernelNotFound:
            return ""
        with opened as sock:
            try:
                await asyncio.get_running_loop().sock_connect(sock, (server, 53))
                reply = await self._exchange(sock, self._lookup.query(number, name, ":" in server), patience_s)
            except OSError:
                return ""
            addresses = self._lookup.addresses(reply) if reply else ()
            return addresses[0] if addresses else ""

    def _open(self, source: PacketSource, address: str, kind: int) -> socket.socket:
        """A socket of the source's namespace, for a peer with this address."""
        with netns.inside(self._namespace_of(source)):
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
        sock.setblocking(False)
        if source.namespace:
            sock.bind((source.address, 0))
        return sock

    async def _try(self, attempt: Attempt, address: str) -> ProbeResult:
        if not address:
            return ProbeResult(attempt=attempt, reached=False, error=f"no DNS answer for {attempt.address}")
        started = self._clock.monotonic()
        kind = socket.SOCK_DGRAM if attempt.port.protocol == "UDP" else socket.SOCK_STREAM
        try:
            opened = self._open(attempt.source, address, kind)
        except KernelNotFound:
            return ProbeResult(attempt=attempt, reached=False, error="the source has ended")
        with opened as sock:
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


async def _in_turn(work: Callable[[int], Awaitable[None]], numbers: Iterable[int], at_once: int) -> None:
    """Runs ``work`` for each number, for at most ``at_once`` at a time."""
    pending = iter(numbers)

    async def take() -> None:
        for number in pending:
            await work(number)

    await asyncio.gather(*(take() for _ in range(at_once)))


def _read_answer(reply: bytes) -> _ServerAnswer:
    try:
        return msgspec.json.decode(reply.partition(b"\n")[0], type=_ServerAnswer)
    except msgspec.DecodeError:
        return _ServerAnswer()
