"""The loop of controllers that compare a cloud with the cluster.

Guarantees: 1. a change of the cluster is followed by a run within :data:`QUIET_S`, and without a change a run follows
every :data:`RESYNC_S`, which restores what another program changed; 2. each run reads the cloud and changes what
differs, so several controllers at once, or one that was killed, leave the same state; 3. after changes another run
reads what the cloud made of them; 4. a failed run is repeated with a backoff from 1 to 60 s, and nothing is deleted
meanwhile; 5. a problem of the cloud itself is an Event of the controller's namespace.
"""

import asyncio
from collections.abc import Awaitable, Callable

from podwire.controllers.cloudroutes.execution import SyncOutcome
from podwire.kube.events import EventRecorder
from podwire.model.meta import ObjectReference
from podwire.observe.log import Log
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock
from podwire.runtime.workqueue import wait_first

UNAVAILABLE, REFUSED = "CloudUnavailable", "CloudChangeRefused"
QUIET_S, RESYNC_S = 1.0, 60.0
_BACKOFF_S = (1.0, 60.0)


class CloudLoop:
    """Runs a comparison again and again; ``changed`` is set when the cluster has changed."""

    def __init__(self, clock: Clock, events: EventRecorder, namespace: str) -> None:
        self.changed = asyncio.Event()
        self._clock = clock
        self._events = events
        self._namespace = namespace
        self._reported = ""
        self._log = Log("cloud")

    async def run(self, synchronize: Callable[[], Awaitable[SyncOutcome]]) -> None:
        """Runs until cancelled."""
        backoff = Backoff(*_BACKOFF_S)
        while True:
            self.changed.clear()
            outcome = await synchronize()
            if outcome.unavailable:
                await self._clock.sleep(backoff.next_delay_s())
            elif outcome.changes:
                await self._clock.sleep(QUIET_S)
            elif outcome.problems or outcome.failures:
                await self._wait(backoff.next_delay_s())
            else:
                backoff.reset()
                await self._clock.sleep(QUIET_S)
                await self._wait(RESYNC_S)

    async def _wait(self, longest_s: float) -> None:
        """Returns after a change of the cluster, at the latest after ``longest_s``."""
        await wait_first(self.changed, self._clock.sleep(longest_s))

    def report(self, outcome: SyncOutcome) -> None:
        """Records a failure that concerns no single Node, once for each reason."""
        text = outcome.unavailable or "; ".join(outcome.failures)
        if text and text != self._reported:
            reason = UNAVAILABLE if outcome.unavailable else REFUSED
            self._log.warning("the cloud's network differs from the plan", reason=reason, problem=text)
            subject = ObjectReference(api_version="v1", kind="Namespace", name=self._namespace)
            self._events.event(subject, "Warning", reason, f"{text}; the last state stays in force")
        self._reported = text
