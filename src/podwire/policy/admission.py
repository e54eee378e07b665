"""Decides when a pod may get its device: policies are loaded, the pod's object is known, and no lock blocks changes.

While another process holds a lock that a change of the kernel needs (``/run/xtables.lock``), other work continues, and
the wait ends after :data:`LOCKED_S`.
"""

import asyncio

from podwire.policy.attached import AttachedPods
from podwire.policy.dataplane import Locking, PolicyDataPlane
from podwire.runtime.clock import Clock

LOCKED_S = 10.0
_POLL_S = 0.005


class PodAdmission:
    """Waits until the policies of a pod can be enforced; ``loaded`` is set after the first load of policies."""

    def __init__(self, attached: AttachedPods, plane: PolicyDataPlane, loaded: asyncio.Event, clock: Clock) -> None:
        self._attached = attached
        self._plane = plane
        self._loaded = loaded
        self._clock = clock
        self._arrivals: dict[str, asyncio.Event] = {}

    def admits(self, pod: str, uid: str = "") -> bool:
        """Whether :meth:`known` would return at once."""
        return self._loaded.is_set() and self._attached.is_known(pod, uid) and not self.locked

    async def known(self, pod: str, uid: str = "") -> None:
        """Waits until the first load is done and a pod is known; with ``uid``, a pod with this uid."""
        await self._loaded.wait()
        while not self._attached.is_known(pod, uid):
            await self._arrivals.setdefault(pod, asyncio.Event()).wait()
        await self.unlocked()

    def arrived(self, pod: str) -> None:
        """Wakes the requests that wait for a pod, because its object changed."""
        waiting = self._arrivals.pop(pod, None)
        if waiting is not None:
            waiting.set()

    @property
    def locked(self) -> bool:
        """Whether another process holds a lock that a change of the kernel takes."""
        return isinstance(self._plane, Locking) and self._plane.locked()

    async def unlocked(self) -> None:
        """Waits until no other process holds the lock; a change of the data plane would block all other work."""
        deadline = self._clock.monotonic() + LOCKED_S
        while self.locked and self._clock.monotonic() < deadline:
            await self._clock.sleep(_POLL_S)

    def waits_for(self) -> tuple[str, str]:
        """The reason for which :meth:`known` waits, and a hint where to look."""
        if self.locked:
            return "policies wait for the xtables lock", "another process holds /run/xtables.lock"
        reason = "the pod is not known yet" if self._loaded.is_set() else "policies are not in force yet"
        return reason, "check that the API server answers"
