"""Reports while the address ledger cannot be written, and writes what is missing when it can be written again.

1. The ledger is written every :data:`CHECK_S` to see whether it can be, and at once behind a write that failed.
2. While it cannot be written, it is tried every :data:`RETRY_S`. 3. The facts of the node have effect at once, whether
they can be written or not; the last ones are written when there is room.
"""

import asyncio
from collections.abc import Callable

import msgspec

from podwire.cni.ipam.leases import Leases
from podwire.cni.ipam.ledger import Ledger
from podwire.cni.wiring import WiringFacts
from podwire.errors import CniError
from podwire.runtime.clock import Clock
from podwire.runtime.workqueue import wait_first

NODE = "node"
"""The name of the facts of the node in the ledger."""
CHECK_S = 30.0
RETRY_S = 2.0


class LedgerWatch:
    """Watches the ledger of one node."""

    def __init__(self, ledger: Ledger, leases: Leases, clock: Clock) -> None:
        self._ledger = ledger
        self._leases = leases
        self._clock = clock
        self._unwritten: WiringFacts | None = None
        self.failed = asyncio.Event()
        """Set when a write failed."""
        self.report: Callable[[str], None] = lambda _text: None
        """Called with the reason why the ledger cannot be written; empty: it can."""

    def remember(self, node: WiringFacts) -> None:
        """Writes the facts of the node, now or when there is room."""
        self._unwritten = node
        try:
            self._write()
        except CniError:
            self.failed.set()

    async def run(self) -> None:
        """Watches until cancelled."""
        while True:
            await wait_first(self.failed, self._clock.sleep(CHECK_S))
            self.failed.clear()
            while problem := self._problem():
                self.report(f"{problem}; pods keep their network, but none can be added or deleted")
                await self._clock.sleep(RETRY_S)
            self.report("")

    def _problem(self) -> str:
        try:
            self._write()
            self._leases.check_disk()
        except CniError as failure:
            return f"{failure.message}: {failure.details}"
        return ""

    def _write(self) -> None:
        if self._unwritten is not None:
            self._ledger.remember(NODE, msgspec.json.encode(self._unwritten))
            self._unwritten = None
