"""Keeps copies of zones of other name servers current (plugin ``secondary``), with dnspython's client of transfers.

Guarantees: 1. a zone is asked for at the start, then when its SOA record says so (refresh; after a failure, retry);
2. the servers are tried in order; 3. only changes are transferred when the server has them (IXFR); 4. a copy that could
not be compared with a server for the time ``expire`` is dropped; 5. between two attempts lies at least a second;
6. a notice of a server (NOTIFY) starts the next attempt. Sources: RFC 1034 section 4.3.5, RFC 1996.
"""

import asyncio
from collections.abc import Callable, Mapping

import dns.asyncquery
import dns.exception
import dns.name
import dns.xfr
import dns.zone

from podwire.dns.names import decode_name
from podwire.dns.plugins.staticzone import StaticZone
from podwire.dns.plugins.zonetext import zone_records
from podwire.errors import ProtocolError
from podwire.observe.log import Log
from podwire.runtime.clock import Clock
from podwire.runtime.workqueue import wait_first

Server = tuple[str, int]
_ATTEMPT_S = 10.0
_LEAST_S = 1.0
_RETRY_S = 30.0


class SecondaryZone:
    """One copied zone; ``copies`` gets the copy, and loses it when it expires; ``changed`` is called with its name."""

    def __init__(
        self,
        origin: bytes,
        servers: tuple[Server, ...],
        copies: dict[bytes, StaticZone],
        changed: Callable[[bytes], None],
    ) -> None:
        self._origin = origin
        self._servers = servers
        self._copies = copies
        self._changed = changed
        self._zone = dns.zone.Zone(dns.name.from_text(decode_name(origin)), relativize=False)
        self._noticed = asyncio.Event()
        self._log = Log("dns.secondary")

    @property
    def origin(self) -> bytes:
        """The name of the zone."""
        return self._origin

    def notice(self) -> None:
        """Starts the next attempt now; to be called on the loop."""
        self._noticed.set()

    async def follow(self, clock: Clock) -> None:
        """Returns never."""
        compared_s = clock.monotonic()
        while True:
            if await self._transfer():
                compared_s = clock.monotonic()
                wait_s = self._timer(4, _RETRY_S)
            else:
                wait_s = self._timer(8, _RETRY_S)
                expired = clock.monotonic() - compared_s > self._timer(12, 0.0)
                if expired and self._copies.pop(self._origin, None) is not None:
                    self._log.error("a copied zone has expired", zone=decode_name(self._origin))
                    self._changed(self._origin)
            await clock.sleep(_LEAST_S)
            await wait_first(self._noticed, clock.sleep(max(0.0, wait_s - _LEAST_S)))
            self._noticed.clear()

    def _timer(self, offset: int, default_s: float) -> float:
        """A time of the SOA record, in seconds."""
        copy = self._copies.get(self._origin)
        return float(int.from_bytes(copy.soa.tail[offset : offset + 4], "big")) if copy is not None else default_s

    async def _transfer(self) -> bool:
        """Whether a server confirmed the copy or gave a new one."""
        for host, port in self._servers:
            try:
                await dns.asyncquery.inbound_xfr(host, self._zone, port=port, lifetime=_ATTEMPT_S)
                copy = StaticZone(self._origin, zone_records(self._zone))
            except (OSError, EOFError, dns.exception.DNSException, dns.xfr.TransferError, ProtocolError) as failure:
                self._log.warning(
                    "a zone transfer failed", zone=decode_name(self._origin), server=f"{host}:{port}", failure=failure
                )
                continue
            present = self._copies.get(self._origin)
            if present is None or present.serial != copy.serial:
                self._copies[self._origin] = copy
                self._log.info("a zone was copied", zone=decode_name(self._origin), serial=copy.serial)
                self._changed(self._origin)
            return True
        return False


def secondary_zones(
    sources: Mapping[bytes, tuple[Server, ...]], copies: dict[bytes, StaticZone], changed: Callable[[bytes], None]
) -> tuple[SecondaryZone, ...]:
    """The followers of all zones."""
    return tuple(SecondaryZone(origin, servers, copies, changed) for origin, servers in sources.items())
