"""Forwards requests for names outside the cluster to upstream name servers.

How it works: a request is forwarded unchanged except for a new random ID, from a new socket (so from a random port),
over the transport on which it arrived. Guarantees: 1. a reply, or None when no server replied, within ``deadline_s``;
2. each server gets ``attempt_s`` before the next one is asked; 3. a server that failed twice in a row is asked at most
once in ``hold_s``, after the other servers; while all servers are in that state, one request in ``hold_s`` waits for
them and the others fail at once; 4. at most ``max_pending`` requests wait, more are refused; 5. a reply counts only if
it comes from the asked server and has the ID and question of the request.
"""

import asyncio
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from podwire.dns import wire
from podwire.errors import ConfigError, ProtocolError
from podwire.runtime.clock import Clock

_FAILURES = 2


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    """The times and limits of forwarding, in seconds."""

    deadline_s: float = 3.0
    attempt_s: float = 1.2
    hold_s: float = 2.0
    max_pending: int = 1000


@dataclass(slots=True)
class _Upstream:
    address: tuple[str, int]
    failures: int = 0
    asked_s: float = field(default=-1e9)

    @property
    def family(self) -> int:
        return socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET


class Overloaded(Exception):
    """Too many requests wait for upstream servers."""


class Forwarder:
    """Forwards requests to the upstream name servers; without any server each request fails at once."""

    def __init__(self, upstreams: tuple[tuple[str, int], ...], clock: Clock, options: ForwardOptions) -> None:
        self._upstreams = [_Upstream(address) for address in upstreams]
        self._clock = clock
        self._options = options
        self.pending = 0
        self.sent = 0
        self.failed = 0
        self.rejected = 0

    async def ask(self, request: bytes, *, tcp: bool) -> bytes | None:
        """The reply to ``request`` under the ID of the request, or None when no server answered.

        Raises: Overloaded.
        """
        if self.pending >= self._options.max_pending:
            self.rejected += 1
            raise Overloaded
        self.pending += 1
        try:
            async with asyncio.timeout(self._options.deadline_s):
                return await self._try_each(request, tcp)
        except TimeoutError:
            return None
        finally:
            self.pending -= 1

    async def _try_each(self, request: bytes, tcp: bool) -> bytes | None:
        for upstream in self._choose():
            upstream.asked_s = self._clock.monotonic()
            self.sent += 1
            try:
                async with asyncio.timeout(self._options.attempt_s):
                    reply = await (_ask_tcp if tcp else _ask_udp)(upstream, request)
            except (TimeoutError, OSError, EOFError):
                upstream.failures += 1
                self.failed += 1
                continue
            upstream.failures = 0
            return request[:2] + reply[2:]
        return None

    def _choose(self) -> list[_Upstream]:
        """The servers to ask, in order: working servers first, then failing servers that are due for another try."""
        now = self._clock.monotonic()
        working = [u for u in self._upstreams if u.failures < _FAILURES]
        due = [u for u in self._upstreams if u.failures >= _FAILURES and now - u.asked_s >= self._options.hold_s]
        return working + due


def _prepare(request: bytes) -> bytes:
    return secrets.token_bytes(2) + request[2:]


def _matches(sent: bytes, reply: bytes) -> bool:
    if len(reply) < wire.HEADER_BYTES or reply[:2] != sent[:2] or not reply[2] & 0x80:
        return False
    try:
        asked, answered = wire.parse_query(sent), wire.parse_query(reply)
    except ProtocolError:
        # A server that refuses (FORMERR, REFUSED) may omit the question.
        return reply[4:6] == b"\x00\x00" and reply[3] & 0xF != 0
    return (asked.name.lower(), asked.qtype) == (answered.name.lower(), answered.qtype)


async def _ask_udp(upstream: _Upstream, request: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    sent = _prepare(request)
    with socket.socket(upstream.family, socket.SOCK_DGRAM) as link:
        link.setblocking(False)
        # Connected: the kernel drops datagrams of other senders and reports an unreachable port as an error.
        link.connect(upstream.address)
        link.send(sent)
        while True:
            reply = await loop.sock_recv(link, 65535)
            if _matches(sent, reply):
                return reply


async def _ask_tcp(upstream: _Upstream, request: bytes) -> bytes:
    sent = _prepare(request)
    reader, writer = await asyncio.open_connection(*upstream.address)
    try:
        writer.write(len(sent).to_bytes(2, "big") + sent)
        size = int.from_bytes(await reader.readexactly(2), "big")
        reply = await reader.readexactly(size)
    finally:
        writer.close()
    if not _matches(sent, reply):
        raise EOFError("not the reply to this request")
    return reply


def parse_upstream(text: str, source: str) -> tuple[str, int]:
    """Address and port of ``address``, ``address:port`` or ``[address]:port``.

    Raises: ConfigError.
    """
    host, port = text, "53"
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or "53"
    elif text.count(":") == 1:
        host, port = text.split(":")
    try:
        number = int(port)
        ipaddress.ip_address(host.partition("%")[0])
        if not 0 < number < 65536:
            raise ValueError("port out of range")
    except ValueError as failure:
        raise ConfigError(source, "upstreams", f"expected address or address:port, got {text!r}") from failure
    return host, number


def read_resolv_conf(path: str, *, loopback: bool = False) -> tuple[tuple[str, int], ...]:
    """The name servers of a resolver configuration, in order; none when the file cannot be read.

    Without ``loopback``, loopback addresses are left out: in a pod, they would lead to this server itself.
    """
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    servers = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == "nameserver":
            try:
                address = ipaddress.ip_address(fields[1].partition("%")[0])
            except ValueError:
                continue
            if loopback or not address.is_loopback:
                servers.append((fields[1], 53))
    return tuple(dict.fromkeys(servers))
