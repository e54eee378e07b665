"""Notifies other name servers that a zone has changed (NOTIFY, RFC 1996), so that they copy it at once.

How it works: the servers are the addresses of ``to`` in ``transfer``, networks left out. A zone of a file is new when
the process starts, because a changed file is read by a new process; a copied zone is new when a transfer brought
another serial. Each server is notified up to three times, as in CoreDNS; a server that does not answer still asks by
the times of the SOA record. Requests carry a random ID and source port, and only the reply to them ends the attempts.
"""

from podwire.dns import wire
from podwire.dns.exchange import ask_once
from podwire.dns.names import decode_name
from podwire.dns.plugins.chain import PluginChain
from podwire.observe.log import Log
from podwire.runtime.tasks import TaskSet

_ATTEMPTS = 3
_ATTEMPT_S = 2.0


class ZoneNotices:
    """The notices of one configuration."""

    def __init__(self, chain: PluginChain) -> None:
        self._chain = chain
        self._log = Log("dns.transfer")
        self._sending = TaskSet(lambda name, error: self._log.error("task failed", task=name, failure=error))

    def start(self) -> None:
        """Notifies the servers of all zones of files; to be called on the loop when the server answers."""
        for zone in self._chain.file_zones():
            self.changed(zone)

    def changed(self, zone: bytes) -> None:
        """Notifies the servers of a zone."""
        for server in self._chain.notice_targets(zone):
            self._sending.start("notify", self._notify(zone, server))

    async def close(self) -> None:
        """Ends the notices under way."""
        await self._sending.close()

    async def _notify(self, zone: bytes, server: tuple[str, int]) -> None:
        request = wire.encode(wire.DnsMessage(0, wire.NOTIFY | wire.AA, zone, wire.SOA))
        for _ in range(_ATTEMPTS):
            reply = await ask_once(server, request, _ATTEMPT_S)
            if reply is not None and reply[3] & 0xF == wire.NOERROR:
                return
        self._log.warning(
            "a name server did not take the notice of a changed zone",
            zone=decode_name(zone),
            server=f"{server[0]}:{server[1]}",
        )
