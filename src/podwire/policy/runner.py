"""Keeps a policy data plane equal to the API, and cuts pods off until their policies are in force.

Guarantees: 1. nothing is written before pods, namespaces, nodes and policies of both kinds are known, so a start never
opens what is closed; 2. a change is in force 5 ms after it arrived, or 30 ms after the first change of a burst; 3. a
pod gets its device only by :meth:`Enforcement.attach`, which returns when the policies of the pod are in the kernel; a
pod without rules in the kernel can neither send nor receive; 4. a refused commit leaves the last good rules in force
and is tried again after a backoff from 0.1 s to 10 s, together with later changes; 5. rules that another program
changed are restored within 0.1 s; 6. while another process holds a lock that a change needs, other work goes on, for
10 s at most.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from podwire.cluster.addresses import pod_side_addresses
from podwire.cluster.ranges import ClusterRanges
from podwire.dataplane.follower import Follower, Source
from podwire.errors import KernelError
from podwire.model.changed import Changed
from podwire.model.meta import Object, ObjectMeta
from podwire.model.node import Node
from podwire.model.pod import Pod, PodIP, PodSpec
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.observe.log import Log
from podwire.policy.compile import Compiler, PolicyDelta
from podwire.policy.dataplane import Locking, PolicyDataPlane, PolicyFacts
from podwire.policy.settings import ENCAPSULATION_PORTS, PolicySettings
from podwire.policy.status.digest import same
from podwire.runtime.clock import Clock

_QUIET_S = 0.005
_BURST_S = 0.03
_HEAL_S = 0.05
_LOCKED_S = 10.0
_LOOK_S = 0.005


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the objects come from."""

    pods: Source[Pod]
    namespaces: Source[Object]
    nodes: Source[Node]
    policies: Source[NetworkPolicy]
    cluster_policies: Source[ClusterNetworkPolicy]

    async def synced(self) -> None:
        """Waits until all of them are known."""
        for source in (self.pods, self.namespaces, self.nodes, self.policies, self.cluster_policies):
            await source.synced.wait()


class AttachedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's device on this node."""

    pod: str
    """``namespace/name``; empty for a container that is no pod, which no policy selects by its labels."""
    device: str
    addresses: tuple[str, ...]
    uid: str = ""
    """Of the pod; empty where the runtime does not tell."""
    port: str = ""
    """The pod's port, where ``device`` is a bridge that it shares with others."""

    @property
    def link(self) -> str:
        """The device that is the pod's alone."""
        return self.port or self.device


class Reporter(Protocol):
    """Who is told what becomes of policies."""

    def committed(self, delta: PolicyDelta, duration_s: float, changed: Mapping[Changed, float], *, full: bool) -> None:
        """A change is in force; ``changed`` has what it follows from, and when that was heard."""
        ...

    def refused(self, failure: KernelError) -> None:
        """A change is not in force."""
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
        self._attached: dict[str, AttachedPod] = {}
        self._strangers: dict[str, Pod] = {}
        self._facts = PolicyFacts()
        self._ranges = ClusterRanges()
        self._full = True
        self._moved = False
        self._subscribed = False
        self._changed: dict[Changed, float] = {}
        self._arrived: dict[str, asyncio.Event] = {}
        self._log = Log("policy")
        self.compiler = compiler
        self._follower = Follower(plane, clock, "policies are not in force", self._refused)
        self.programmed = self._follower.programmed
        """Set while the kernel holds everything known."""
        self.loaded = self._follower.loaded
        """Set once the kernel held everything known."""

    @property
    def problem(self) -> str:
        """Why this node is not fit for pods; empty: it is.

        A change that is on its way is no reason: a pod waits for its own, and others come all the time.
        """
        return self._follower.problem

    @property
    def attached(self) -> Mapping[str, AttachedPod]:
        """The pods by the names of their own devices."""
        return self._attached

    def configure(
        self, settings: PolicySettings, tunnel_ports: Iterable[int] = (), ranges: tuple[str, ...] = ()
    ) -> None:
        """Takes over settings, while policies are enforced too.

        ``tunnel_ports`` are UDP ports at which nodes unpack packets, beside the usual ones. ``ranges`` are those of
        the cluster's pods where nodes have none.
        """
        self.compiler.set_own_node_egress(reaches=settings.own_node_egress)
        guarded = settings.encapsulation == "drop"
        ports = tuple(sorted({*ENCAPSULATION_PORTS, *tunnel_ports})) if guarded else ()
        self._ranges.configure(ranges)
        keep = settings.established == "keep"
        self._adopt(encapsulation_ports=ports, keep=keep, log=settings.log, marks=settings.marks)
        self._mark("Settings", "")

    def look_again(self) -> None:
        """Has everything loaded anew: something that rules depend on has changed in the kernel."""
        self._full = True
        self._mark("Kernel", "")

    def _adopt(self, **facts: object) -> None:
        """Takes over facts of the node; where they make other rules, everything is loaded anew."""
        changed = msgspec.structs.replace(self._facts, **facts)
        if changed != self._facts:
            self._full = self._full or not changed.alike(self._facts)
            self._facts, self._moved = changed, True

    async def known(self, pod: str, uid: str = "") -> None:
        """Waits until the first load is done and a pod is known; with ``uid``, this very pod."""
        await self.loaded.wait()
        while not self._is_known(pod, uid):
            event = self._arrived.setdefault(pod, asyncio.Event())
            await event.wait()
        await self._unlocked()

    @property
    def locked(self) -> bool:
        """Whether somebody else holds a lock that a change of the kernel takes."""
        return isinstance(self._plane, Locking) and self._plane.locked()

    async def _unlocked(self) -> None:
        """Waits until nobody else holds the lock; the data plane itself would have everything wait for it."""
        until = self._clock.monotonic() + _LOCKED_S
        while self.locked and self._clock.monotonic() < until:
            await self._clock.sleep(_LOOK_S)

    def _is_known(self, pod: str, uid: str) -> bool:
        found = self._pod(pod)
        return found is not None and uid in ("", found.metadata.uid)

    def attach(self, one: AttachedPod) -> None:
        """Puts the policies of a pod into the kernel, before its device is there.

        Raises: KernelError; the pod is shut off.
        """
        self._keep(one)
        self._mark("Pod", self._attached[one.link].pod)
        if self.loaded.is_set():
            self._take_over()
            try:
                self._commit()
            except KernelError as failure:
                self._follower.refuse(failure)
                raise

    def detach(self, link: str) -> None:
        """Forgets a pod's own device; what remains of it in the kernel is harmless, and goes soon."""
        one = self._attached.pop(link, None)
        if one is not None:
            self._strangers.pop(one.pod, None)
            self._pod_changed(one.pod, None, None)

    def _keep(self, one: AttachedPod) -> None:
        if not one.pod:
            one = msgspec.structs.replace(one, pod=f"/{one.link}")
            meta = ObjectMeta(name=one.link)
            self._strangers[one.pod] = Pod(metadata=meta, spec=PodSpec(node_name=self.compiler.node))
        self._attached[one.link] = one
        if one.port:
            self._adopt(bridges=tuple(sorted({*self._facts.bridges, one.device})))

    def _pod(self, key: str) -> Pod | None:
        return self._sources.pods.objects.get(key) or self._strangers.get(key)

    def restore(self, ones: tuple[AttachedPod, ...]) -> None:
        """The devices that are there at the start."""
        for one in ones:
            self._keep(one)

    def devices(self) -> dict[str, str]:
        """The device of each pod of this node that is known; a pod that is not is shut off."""
        return {one.pod: one.device for one in self._attached.values() if self._is_known(one.pod, one.uid)}

    async def run(self) -> None:
        """Enforces until cancelled; what is in force stays."""
        sources = self._sources
        if not self._subscribed:
            self._subscribe(sources)
        await sources.synced()
        await self._follower.run(self._step, self._settle)

    def _subscribe(self, sources: Sources) -> None:
        self._subscribed = True
        sources.pods.subscribe(self._pod_changed)
        sources.namespaces.subscribe(self._namespace_changed)
        sources.nodes.subscribe(self._node_changed)
        sources.policies.subscribe(self._policy_changed)
        sources.cluster_policies.subscribe(self._cluster_policy_changed)

    @property
    def waiting_s(self) -> float:
        """For how many seconds the oldest change waits to be in force; 0: all are."""
        return self._clock.monotonic() - min(self._changed.values()) if self._changed else 0.0

    async def _step(self) -> None:
        await self._unlocked()
        if self._follower.disturbed and not self._full:
            self._follower.disturbed = False
            self._heal()
        self._take_over()
        self._commit()

    def _heal(self) -> None:
        """Puts right what somebody else changed.

        Raises: KernelError; everything is loaded again by the next call.
        """
        try:
            healed = any(self._plane.heal())
        except KernelError:
            self._full = True
            raise
        if healed:
            self._log.warning("restored rules that another program changed", plane=self._plane.name)

    def _refused(self, failure: KernelError) -> None:
        self._log.error("cannot program policies", failure=failure, plane=self._plane.name)
        if self._reporter is not None:
            self._reporter.refused(failure)

    async def _settle(self) -> None:
        """Waits until a burst of changes is over."""
        wake, started = self._follower.wake, self._clock.monotonic()
        while wake.is_set():
            wake.clear()
            await self._clock.sleep(_HEAL_S if self._follower.disturbed and not self._changed else _QUIET_S)
            if self._clock.monotonic() - started >= _BURST_S:
                wake.clear()

    def _pod_changed(self, key: str, _old: Pod | None, _new: Pod | None) -> None:
        self._mark("Pod", key)
        waiting = self._arrived.pop(key, None)
        if waiting is not None:
            waiting.set()

    def _namespace_changed(self, key: str, _old: Object | None, new: Object | None) -> None:
        self.compiler.set_namespace(key, new.metadata.labels if new is not None else None)
        self._mark("Namespace", key)

    def _node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _alike(old, new):
            return  # a node tells of itself all the time
        self.compiler.set_node(key, new)
        self._ranges.follow(key, new)
        if key == self.compiler.node and new is not None:
            self._adopt(pod_ranges=new.pod_cidrs, addresses=(*new.internal_ips, *pod_side_addresses(new)))
        self._mark("Node", key)

    def _policy_changed(self, key: str, old: NetworkPolicy | None, new: NetworkPolicy | None) -> None:
        if old is not None and new is not None and same(old, new):
            return  # somebody noted something on it
        self.compiler.set_policy(key, new)
        self._mark("NetworkPolicy", key)

    def _cluster_policy_changed(
        self, key: str, old: ClusterNetworkPolicy | None, new: ClusterNetworkPolicy | None
    ) -> None:
        if old is not None and new is not None and same(old, new):
            return
        self.compiler.set_cluster_policy(key, new)
        self._mark("ClusterNetworkPolicy", key)

    def _mark(self, kind: str, key: str) -> None:
        self._changed.setdefault(Changed(kind, key), self._clock.monotonic())
        self._follower.change()

    def _take_over(self) -> None:
        """Gives the compiler the pods that changed, with the addresses that this node gave them."""
        self._adopt(cluster_ranges=self._ranges.ranges)
        pods = [what.key for what in self._changed if what.kind == "Pod"]
        if self._full:
            pods = [*self._sources.pods.objects, *self._strangers, *pods]
        own = {one.pod: one for one in self._attached.values()}
        for key in pods:
            pod = self._pod(key)
            one = own.get(key)
            if pod is not None and one is not None and one.uid in ("", pod.metadata.uid):
                pod = _with_addresses(pod, one.addresses)
            self.compiler.set_pod(key, pod)

    def _commit(self) -> None:
        """Has the kernel hold what changed.

        Raises: KernelError; everything is loaded again by the next call.
        """
        full, changed = self._full, [what.key for what in self._changed if what.kind == "Pod"]
        self._full = True
        started = self._clock.monotonic()
        delta = self.compiler.flush()
        if full:
            self._plane.load(self.compiler, self.devices(), self._facts)
        else:
            for key in changed:
                delta.pods.setdefault(key, self.compiler.pods.get(key))
            if delta or self._moved:
                self._plane.update(self.compiler, self.devices(), delta, self._facts if self._moved else None)
        self._full, self._moved, self._follower.refusal = False, False, ""
        self._changed, followed = {}, self._changed
        self.programmed.set()
        self.loaded.set()
        self._follower.look()
        if self._reporter is not None:
            self._reporter.committed(delta, self._clock.monotonic() - started, followed, full=full)


def _with_addresses(pod: Pod, addresses: tuple[str, ...]) -> Pod:
    """A pod with the addresses that it has here; its status tells them later, or those of before a restart."""
    if pod.addresses == addresses:
        return pod
    ips = tuple(PodIP(ip=address) for address in addresses)
    return msgspec.structs.replace(
        pod, status=msgspec.structs.replace(pod.status, pod_ip=addresses[0] if addresses else "", pod_ips=ips)
    )


def _alike(old: Node, new: Node) -> bool:
    """Whether a node is for policies what it was."""

    def told(node: Node) -> tuple[object, ...]:
        return node.metadata.labels, node.status.addresses, node.pod_cidrs

    return told(old) == told(new)
