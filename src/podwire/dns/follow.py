"""Reads the configuration again while the server runs.

Guarantees: 1. a configuration that is wrong is logged once, and the present one stays in force; 2. a valid one that
differs is saved for the next worker, and then the worker ends: the next one answers from the snapshot, and requests
wait for it in the sockets; 3. the worker ends when no request waits for upstream servers, or after 5 s; 4. addresses
and ports are those of the process that holds the sockets: a change of them needs a restart, which is logged.
"""

import os
from collections.abc import Callable
from typing import NoReturn

from podwire.dns.config import DnsConfig
from podwire.dns.snapshot import Snapshot
from podwire.errors import ConfigError
from podwire.observe.log import Log
from podwire.runtime.clock import Clock

LoadConfig = Callable[[], DnsConfig]
"""Reads the configuration; raises ConfigError when it is wrong."""

_STATUS = 75
_DRAIN_S = 5.0


async def follow_config(
    load: LoadConfig, present: DnsConfig, snapshot: Snapshot, pending: Callable[[], int], clock: Clock
) -> None:
    """Returns never; ends the process when the configuration has changed."""
    log, reported = Log("dns.reload"), ""
    while True:
        await clock.sleep(present.reload_seconds or 30.0)
        try:
            config = load()
            if _sockets(config) != _sockets(present):
                raise ConfigError("Corefile", "bind", "a change of addresses or ports needs a restart")
        except ConfigError as failure:
            if str(failure) != reported:
                log.error("the new configuration has an error; the old one stays in force", problem=failure)
            reported = str(failure)
            continue
        reported = ""
        if config != present:
            log.info("the configuration has changed")
            snapshot.save_config(config)
            await _leave(pending, clock)


def _sockets(config: DnsConfig) -> tuple[tuple[str, ...], int, int]:
    return config.listen, config.port, config.tls_port


async def _leave(pending: Callable[[], int], clock: Clock) -> NoReturn:
    deadline_s = clock.monotonic() + _DRAIN_S
    while pending() and clock.monotonic() < deadline_s:
        await clock.sleep(0.05)
    # Closing would shut down the sockets, which belong to the next worker too.
    os._exit(_STATUS)
