"""Keeps a policy data plane equal to the API, and isolates pods until their policies are in force.

Guarantees: 1. nothing is written before pods, namespaces, nodes and policies of both kinds are known, so a start never
allows traffic that policies deny; 2. a change is in force 5 ms after it arrived, or 30 ms after the first change of a
burst; 3. a pod gets its device only by :meth:`Enforcement.attach`, which returns when the policies of the pod are in
the kernel; a pod without rules in the kernel can neither send nor receive; 4. a refused commit leaves the last good
rules in force and is tried again after a backoff from 0.1 s to 10 s, together with later changes; 5. what another
program changed, by the kernel's notifications, is written at once where the data plane can do that, and everything is
compared within 0.1 s; 6. while another process holds a lock that a change needs, other work goes
on, for 10 s at most.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from podwire.cluster.addresses import pod_side_addresses
from podwire.dataplane.follower import Follower
from podwire.errors import KernelError
from podwire.model.changed import Changed
from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.policy.admission import PodAdmission
from podwire.policy.attached import AttachedPod, AttachedPods
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyDataPlane, PolicyFacts
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.objects import ObjectFeed, Sources
from podwire.policy.restoration import RuleRestoration
from podwire.policy.settings import ENCAPSULATION_PORTS, PolicySettings
from podwire.runtime.clock import Clock
from podwire.runtime.workqueue import wait_first

_QUIET_S = 0.005
_BURST_S = 0.03
_HEAL_S = 0.05
_REST_S = 0.25
"""The longest pause between two commits, in seconds."""


class Reporter(Protocol):
    """Receives the results of commits."""

    def committed(self, delta: PolicyDelta, duration_s: float, changed: Mapping[Changed, float], *, full: bool) -> None:
        """A change is in force; ``changed`` has the changed objects, and when each change was received."""
        ...

    def refused(self, failure: KernelError) -> None:
        """A change is not in force."""
        ...


class Shortcut(Protocol):
    """Answers packets of pods before policies see them, so only of pods to which no egress policy applies.

    Both methods get the addresses of these pods by device.
    """

    def narrow(self, free: Mapping[str, tuple[str, ...]]) -> None:
        """Called before a change: from now on no pod but these may use the shortcut.

        Raises: KernelError; the change does not come into force then.
        """
        ...

    def widen(self, free: Mapping[str, tuple[str, ...]]) -> None:
        """Called when the change is in force: these pods may use the shortcut."""
        ...


class Enforcement:
    """The part of an agent that enforces policies."""

    def __init__(
        self,
        sources: Sources,
        plane: PolicyDataPlane,
        compiler: Compiler,
        clock: Clock,
        reporter: Reporter | None = None,
    ) -> None:
        self._sources = sources
        self._plane = plane
        self._clock = clock
        self._reporter = reporter
        self._attached = AttachedPods(sources.pods, compiler.node)
        self._facts = PolicyFacts()
        self._full = True
        self._moved = False
        self._changed: dict[Changed, float] = {}
        self._rested_at = 0.0
        """When the next commit may follow the last one, in the clock's monotonic seconds."""
        self._log = Log("policy")
        self._restoration = RuleRestoration(plane, clock, self._log)
        self._objects = ObjectFeed(sources, compiler, self._mark, self._own_node_changed)
        self.compiler = compiler
        self._follower = Follower(plane, clock, "policies are not in force", self._refused, self._restoration.put_back)
        self.programmed = self._follower.programmed
        """Set while the kernel holds all known changes."""
        self.loaded = self._follower.loaded
        """Set after the first load of the kernel."""
        self.shortcuts: list[Shortcut] = []
        """What answers packets in front of the policies."""
        self.admission = PodAdmission(self._attached, plane, self.loaded, clock)
        """Waits until a pod may get its device."""

    @property
    def problem(self) -> str:
        """Why this node cannot run pods; empty when it can.

        A pending change is no reason: each pod waits for its own policies, and changes arrive all the time.
        """
        return self._follower.problem

    @property
    def attached(self) -> Mapping[str, AttachedPod]:
        """The pods by the names of their own devices."""
        return self._attached.by_link

    def configure(
        self, settings: PolicySettings, tunnel_ports: Iterable[int] = (), ranges: tuple[str, ...] = ()
    ) -> None:
        """Takes over settings, also while policies are enforced.

        ``tunnel_ports`` are UDP ports on which nodes decapsulate packets, in addition to the default ones. ``ranges``
        are the pod ranges of the cluster, used when the nodes have none.
        """
        self.compiler.set_own_node_egress(reaches=settings.own_node_egress)
        guarded = settings.encapsulation == "drop"
        ports = tuple(sorted({*ENCAPSULATION_PORTS, *tunnel_ports})) if guarded else ()
        self._objects.ranges.configure(ranges)
        keep = settings.established == "keep"
        self._adopt(encapsulation_ports=ports, keep=keep, log=settings.log, marks=settings.marks)
        self._mark("Settings", "")

    def look_again(self) -> None:
        """Requests a full load, because a kernel setting that rules depend on has changed."""
        self._full = True
        self._mark("Kernel", "")

    def _adopt(self, **facts: object) -> None:
        """Takes over facts of the node; facts that need other rules cause a full load."""
        changed = msgspec.structs.replace(self._facts, **facts)
        if changed != self._facts:
            self._full = self._full or not changed.alike(self._facts)
            self._facts, self._moved = changed, True

    def attach(self, *pods: AttachedPod) -> None:
        """Puts the policies of pods into the kernel in one commit, before the pods get their devices.

        Raises: KernelError; the pods are isolated.
        """
        for pod in pods:
            self._mark("Pod", self._keep(pod))
        if self.loaded.is_set():
            self._take_over()
            try:
                self._commit()
            except KernelError as failure:
                self._follower.refuse(failure)
                raise

    def detach(self, link: str) -> None:
        """Forgets a pod's own device; the next commit deletes its elements in the kernel."""
        pod = self._attached.remove(link)
        if pod is not None:
            self._mark("Pod", pod.pod)

    def _keep(self, pod: AttachedPod) -> str:
        if pod.port:
            self._adopt(bridges=tuple(sorted({*self._facts.bridges, pod.device})))
        return self._attached.add(pod)

    def restore(self, pods: tuple[AttachedPod, ...]) -> None:
        """Takes over the pods that have devices at the start."""
        for pod in pods:
            self._keep(pod)

    async def run(self) -> None:
        """Enforces policies until cancelled; the rules in force stay."""
        self._objects.subscribe()
        await self._sources.synced()
        await self._follower.run(self._step, self._settle)

    @property
    def waiting_s(self) -> float:
        """The age of the oldest pending change in seconds; 0 when there is none."""
        return self._clock.monotonic() - min(self._changed.values()) if self._changed else 0.0

    async def _step(self) -> None:
        await self.admission.unlocked()
        if self._follower.disturbed.is_set() and not self._full:
            self._follower.disturbed.clear()
            try:
                self._restoration.heal()
            except KernelError:
                self._full = True
                raise
        self._take_over()
        self._commit()

    def _refused(self, failure: KernelError) -> None:
        self._log.error("cannot program policies", failure=failure, plane=self._plane.name)
        if self._reporter is not None:
            self._reporter.refused(failure)

    async def _settle(self) -> None:
        """Waits until a burst of changes is over, and since the last commit for as long as that commit took.

        So changes that arrive all the time use at most half of the time for commits; a single change does not wait.
        """
        disturbed = self._follower.disturbed
        if not disturbed.is_set():
            await wait_first(disturbed, self._clock.sleep(self._rested_at - self._clock.monotonic()))
        wake, started = self._follower.wake, self._clock.monotonic()
        while wake.is_set():
            wake.clear()
            await self._clock.sleep(_HEAL_S if disturbed.is_set() and not self._changed else _QUIET_S)
            if self._clock.monotonic() - started >= _BURST_S:
                wake.clear()

    def _own_node_changed(self, node: Node) -> None:
        self._adopt(
            pod_ranges=self._objects.pod_ranges(node), addresses=(*node.internal_ips, *pod_side_addresses(node))
        )

    def _mark(self, kind: str, key: str) -> None:
        self._changed.setdefault(Changed(kind, key), self._clock.monotonic())
        self._follower.change()
        if kind == "Pod":
            self.admission.arrived(key)

    def _take_over(self) -> None:
        """Passes the changed pods to the compiler, with the addresses that this node assigned to them."""
        self._adopt(cluster_ranges=self._objects.ranges.ranges)
        pods = [change.key for change in self._changed if change.kind == "Pod"]
        if self._full:
            pods = [*self._attached.keys(), *pods]
        for key, pod in self._attached.objects(pods).items():
            self.compiler.set_pod(key, pod)

    def _commit(self) -> None:
        """Writes all pending changes to the kernel.

        Raises: KernelError; everything is loaded again by the next call.
        """
        full, changed = self._full, [change.key for change in self._changed if change.kind == "Pod"]
        self._full = True
        started = self._clock.monotonic()
        delta = self.compiler.flush()
        free = self._free() if self.shortcuts else {}
        for shortcut in self.shortcuts:
            shortcut.narrow(free)
        if full:
            self._plane.load(self.compiler, self._attached.devices(), self._facts)
        else:
            for key in changed:
                delta.pods.setdefault(key, self.compiler.pods.get(key))
            if delta or self._moved:
                self._plane.update(self.compiler, self._attached.devices(), delta, self._facts if self._moved else None)
        self._full, self._moved, self._follower.refusal = False, False, ""
        ended = self._clock.monotonic()
        self._rested_at = ended if full else ended + min(ended - started, _REST_S)
        self._changed, followed = {}, self._changed
        self.programmed.set()
        self.loaded.set()
        self._follower.look()
        free = self._free() if self.shortcuts else {}
        for shortcut in self.shortcuts:
            shortcut.widen(free)
        if self._reporter is not None:
            self._reporter.committed(delta, ended - started, followed, full=full)

    def _free(self) -> dict[str, tuple[str, ...]]:
        """The addresses of the attached pods to which no egress policy applies, by device."""
        profiles = self.compiler.pods
        known = self._attached.devices()
        return {
            link: pod.addresses
            for link, pod in self._attached.by_link.items()
            if pod.pod in known and not pod.port and pod.pod in profiles and profiles[pod.pod].egress is None
        }
