"""When a pod may get its device: after the first load of policies, when its object is known and no lock is in the way.

While another process holds a lock that a change of the kernel needs (``/run/xtables.lock``), waiting costs no other
work, and ends after :data:`LOCKED_S`.
"""

import asyncio

from podwire.policy.attached import AttachedPods
from podwire.policy.dataplane import Locking, PolicyDataPlane
from podwire.runtime.clock import Clock

LOCKED_S = 10.0
_LOOK_S = 0.005


class PodAdmission:
    """Waits for what a pod's policies need; ``loaded`` is set after the first load of policies."""

    def __init__(self, attached: AttachedPods, plane: PolicyDataPlane, loaded: asyncio.Event, clock: Clock) -> None:
        self._attached = attached
        self._plane = plane
        self._loaded = loaded
        self._clock = clock
        self._arrivals: dict[str, asyncio.Event] = {}

    async def known(self, pod: str, uid: str = "") -> None:
        """Waits until the first load is done and a pod is known; with ``uid``, this very pod."""
        await self._loaded.wait()
        while not self._attached.is_known(pod, uid):
            await self._arrivals.setdefault(pod, asyncio.Event()).wait()
        await self.unlocked()

    def arrived(self, pod: str) -> None:
        """Wakes those that wait for a pod: its object changed."""
        waiting = self._arrivals.pop(pod, None)
        if waiting is not None:
            waiting.set()

    @property
    def locked(self) -> bool:
        """Whether another process holds a lock that a change of the kernel takes."""
        return isinstance(self._plane, Locking) and self._plane.locked()

    async def unlocked(self) -> None:
        """Waits until no other process holds the lock; the data plane itself would have everything wait for it."""
        until = self._clock.monotonic() + LOCKED_S
        while self.locked and self._clock.monotonic() < until:
            await self._clock.sleep(_LOOK_S)

    def waits_for(self) -> tuple[str, str]:
        """What :meth:`known` waits for, and what to look at."""
        if self.locked:
            return "policies wait for the xtables lock", "another process holds /run/xtables.lock"
        what = "the pod is not known yet" if self._loaded.is_set() else "policies are not in force yet"
        return what, "check that the API server answers"
