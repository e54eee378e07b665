"""One request and its reply over UDP: sent to upstream servers in turn until one of them replies.

How it works: no task waits; timers and arriving replies call the next step. The request goes to the first server, after
``resend_s`` without a reply to the next one (or again), and so on, with twice the time in each round. A late reply of
any server counts. Over TCP: :mod:`podwire.dns.streams`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence

from podwire.dns.links import Address, SentRequest, UdpLinks

OnEnd = Callable[["UdpRequest"], None]
"""Called once, when a request has its reply or gets none."""


class UdpRequest:
    """A request on its way; ``reply`` and ``server`` are set at the end, if there was a reply.

    A reply with one of the response codes ``unwanted`` counts only when no server has a better one. ``suspects`` is
    called with each server that did not reply in time or cannot be reached.
    """

    def __init__(
        self,
        request: bytes,
        links: Mapping[Address, UdpLinks],
        on_end: OnEnd,
        *,
        suspects: Callable[[Address], None] = lambda _server: None,
        unwanted: Collection[int] = (),
        left_out: Collection[Address] = (),
    ) -> None:
        self._request = request
        self._links = links
        self._on_end = on_end
        self._suspects = suspects
        self._unwanted = unwanted
        self._left_out = left_out
        self._servers: list[Address] = []
        self._next = 0
        self._wait_s = 0.0
        self._sent: dict[Address, SentRequest] = {}
        self._out: set[Address] = set()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._ended = False
        self.count = 0
        """How many datagrams were sent."""
        self.reply: bytes | None = None
        self.server: Address | None = None

    def start(self, servers: Sequence[Address], resend_s: float, deadline_s: float) -> None:
        """Sends the request to the first server; ``on_end`` may be called at once."""
        self._servers = list(servers)
        self._wait_s = resend_s
        self._deadline = self._loop.call_later(deadline_s, self._end)
        self._attempt()

    def _attempt(self) -> None:
        """Sends the request to the next server that can be reached."""
        while not self._ended:
            if self._next >= len(self._servers):
                self._servers = [s for s in self._servers if s not in self._out and s not in self._left_out]
                self._next = 0
                self._wait_s *= 2 if self._sent else 1
                if not self._servers:
                    self._end()
                    return
            server = self._servers[self._next]
            self._next += 1
            self.count += 1
            if server not in self._out and self._send(server):
                self._timer = self._loop.call_later(self._wait_s, self._time_out, server)
                return
            self._out.add(server)
            self._suspects(server)

    def _send(self, server: Address) -> bool:
        sent = self._sent.get(server)
        try:
            if sent is None:
                links = self._links[server]
                self._sent[server] = links.send(self._request, lambda data: self._receive(server, data))
            else:
                sent.repeat()
        except OSError:
            return False
        return True

    def _time_out(self, server: Address) -> None:
        self._suspects(server)
        self._attempt()

    def _receive(self, server: Address, data: bytes | None) -> None:
        if self._ended:
            return
        if data is not None:
            self.reply, self.server = self._request[:2] + data[2:], server
            if data[3] & 0xF not in self._unwanted:
                self._end()
                return
        self._out.add(server)
        if data is None:
            self._suspects(server)
        if self._timer is not None and self._next and self._servers[self._next - 1] == server:
            self._timer.cancel()
            self._attempt()

    def _end(self) -> None:
        if self._ended:
            return
        self.close()
        self._on_end(self)

    def close(self) -> None:
        """Ends the request; ``on_end`` is not called any more."""
        self._ended = True
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        for sent in self._sent.values():
            sent.cancel()


async def ask_once(server: Address, request: bytes, seconds: float) -> bytes | None:
    """The reply of one server within ``seconds``; the request is sent twice."""
    links = UdpLinks(server)
    future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def ended(asked: UdpRequest) -> None:
        if not future.done():
            future.set_result(asked.reply)

    asking = UdpRequest(request, {server: links}, ended)
    try:
        asking.start((server,), seconds / 2, seconds)
        return await future
    finally:
        asking.close()
        links.close()
