"""Leader election by a Lease: of several processes with one election, at most one leads.

How it works: the process whose name is in the Lease leads until ``duration_s`` after its last renewal. When two
processes write at once, optimistic concurrency lets one write succeed. Each process measures expiry by its own clock
from the moment at which it observed a change of the Lease, so clocks need not agree. A leader that cannot renew stops
leading after ``renew_deadline_s``, before another process may start.

Guarantees: 1. the body runs only while this process leads; 2. the body is cancelled at the latest ``renew_deadline_s``
after the last successful renewal; 3. the Lease is released on a clean end, so a successor starts at once; 4. one write
every ``retry_s`` while leading, one read every ``retry_s`` while waiting.
Source: ``k8s.io/client-go/tools/leaderelection``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from podwire.errors import AlreadyExists, ApiError, ApiUnreachable, ClusterError, Conflict, NotFound, ProtocolError
from podwire.kube.client import Client
from podwire.kube.resources import LEASES, Json
from podwire.observe.log import Log
from podwire.runtime.clock import rfc3339_micro
from podwire.runtime.supervise import Supervisor


@dataclass(frozen=True, slots=True)
class Election:
    """The Lease that decides, and the identity of this process."""

    namespace: str
    name: str
    identity: str
    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


class LeaderElection:
    """Runs a body whenever this process leads."""

    def __init__(self, client: Client, election: Election) -> None:
        self._client = client
        self._clock = client.clock
        self._election = election
        self._log = Log("lease")
        self._observed: tuple[str, str] = ("", "")
        self._observed_at = 0.0
        self.leading = False

    async def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Waits to lead, then runs ``body``; returns when the body does or the lead is lost."""
        while not await self._attempt():
            await self._clock.sleep(self._election.retry_s)
        await self._lead(body)

    async def run_alone(self, body: Callable[[], Awaitable[None]]) -> None:
        """As :meth:`run`, but does not wait for a process that goes on leading.

        A process that was killed still holds the Lease for ``duration_s``; a renewal shows that it is alive.

        Raises: ClusterError naming the holder.
        """
        before = ("", "")
        while not await self._attempt():
            if before[0] and self._observed != before:
                name = f"Lease {self._election.namespace}/{self._election.name}"
                raise ClusterError(f"{name} is held by {self._observed[0]}, which is still running; wait until it ends")
            before = self._observed
            await self._clock.sleep(self._election.retry_s)
        await self._lead(body)

    async def _lead(self, body: Callable[[], Awaitable[None]]) -> None:
        self._log.info("started leading", lease=self._election.name, identity=self._election.identity)
        self.leading = True
        try:
            async with Supervisor(self._clock, self._report) as supervisor:
                work = supervisor.start("leader", body)
                renewal = supervisor.start("renewal", lambda: self._renew(work))
                work.add_done_callback(lambda _: renewal.cancel())
        finally:
            self.leading = False
            await self._release()

    async def _renew(self, work: asyncio.Task[None]) -> None:
        until = self._clock.monotonic() + self._election.renew_deadline_s
        while True:
            await self._clock.sleep(min(self._election.retry_s, until - self._clock.monotonic()))
            asked_at = self._clock.monotonic()
            if await self._attempt_within(until - asked_at):
                until = asked_at + self._election.renew_deadline_s
            elif self._observed[0] not in ("", self._election.identity):
                self._log.warning("another replica took over the lease", by=self._observed[0])
                break
            elif self._clock.monotonic() >= until:
                self._log.warning("stopped leading: could not renew the lease in time", lease=self._election.name)
                break
        work.cancel()

    async def _attempt_within(self, seconds: float) -> bool:
        """As :meth:`_attempt`; False when the API does not answer within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                return await self._attempt()
        except TimeoutError:
            return False

    async def _attempt(self) -> bool:
        """Writes the Lease if it is free or held by this process; whether this process holds it now."""
        try:
            return await self._write()
        except (Conflict, AlreadyExists):
            return False
        except (ApiError, ApiUnreachable, ProtocolError) as failure:
            self._log.debug("lease not written", problem=failure)
            return False

    async def _write(self) -> bool:
        election = self._election
        try:
            lease = await self._client.get(LEASES, election.name, election.namespace)
        except NotFound:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": election.name, "namespace": election.namespace},
            }
            await self._client.create(LEASES, self._with_claim(lease, transitions=0), election.namespace)
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", election.identity) and not self._expired(holder, spec.get("renewTime") or ""):
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != election.identity)
        claimed = self._with_claim(lease, transitions=transitions)
        await self._client.update(LEASES, claimed, election.namespace, name=election.name)
        self._observed = (election.identity, "")
        return True

    def _expired(self, holder: str, renewed: str) -> bool:
        if (holder, renewed) != self._observed:
            self._observed, self._observed_at = (holder, renewed), self._clock.monotonic()
            return False
        return self._clock.monotonic() - self._observed_at > self._election.duration_s

    def _with_claim(self, lease: Json, *, transitions: int) -> Json:
        now = rfc3339_micro(self._clock.now())
        old = lease.get("spec") or {}
        held = old.get("holderIdentity") == self._election.identity
        spec = {
            "holderIdentity": self._election.identity,
            "leaseDurationSeconds": int(self._election.duration_s),
            "acquireTime": old.get("acquireTime", now) if held else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        return lease | {"spec": spec}

    async def _release(self) -> None:
        """Releases the Lease; tries twice, because a renewal may be under way when this process ends."""
        for last in (False, True):
            try:
                lease = await self._client.get(LEASES, self._election.name, self._election.namespace)
                if (lease.get("spec") or {}).get("holderIdentity") == self._election.identity:
                    free = lease | {"spec": lease["spec"] | {"holderIdentity": "", "leaseDurationSeconds": 1}}
                    await self._client.update(LEASES, free, self._election.namespace, name=self._election.name)
                return
            except (ApiError, ApiUnreachable, ProtocolError) as failure:
                if last or not isinstance(failure, Conflict):
                    self._log.debug("lease not released", problem=failure)
                    return

    def _report(self, name: str, failure: BaseException) -> None:
        self._log.error("task failed", failure=failure, task=name)
