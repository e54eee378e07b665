"""Finds the pods that other CNI plugins wired on this node, and reports them to the enforcement of policies.

Guarantees: 1. nothing is reported before the pods are known; all pods on the node are reported before
:attr:`PodDiscovery.scanned` is set, so a start that waits for it isolates no pod; 2. a pod that is
added, changed or deleted in the API, and a device or route that is added or deleted on the node, leads to a scan 20 ms
later; 3. scans are 0.1 s apart; 4. a pod without a known link is searched again with the next change of devices,
routes, addresses or neighbours, and reported after 2 to 4 s; 5. pods that another source reported (the chained plugin)
are left alone; 6. bridges are checked with each scan and every 2 s, since the kernel sends no event when netfilter is
turned off for a bridge.

A scan is one dump of devices and routes, and one dump of addresses for each port of a bridge.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from podwire.cluster.addresses import pods_by_address
from podwire.dataplane.follower import Source
from podwire.errors import KernelError
from podwire.kernel.monitor import Event
from podwire.model.meta import key_of
from podwire.model.pod import Pod
from podwire.observe.health import Metric, Sample
from podwire.observe.log import Log
from podwire.policy.attached import AttachedPod
from podwire.policy.foreign.kernel import PortAddresses
from podwire.policy.foreign.locate import PodLink, locate
from podwire.runtime.clock import Clock
from podwire.state.network import NetworkState

_SETTLE_S = 0.02
_REST_S = 0.1
_CHECK_S = 2.0


class NodeLinks(Protocol):
    """Reads the links of the node; :class:`podwire.policy.foreign.kernel.KernelLinks` is the real one."""

    def watch(self, changed: Callable[[Sequence[Event]], None]) -> AbstractContextManager[None]:
        """Calls ``changed`` with each batch of kernel events, within the block."""
        ...

    def read(self) -> tuple[NetworkState, PortAddresses]:
        """Devices, addresses and routes, and the addresses behind bridge ports.

        Raises: KernelError.
        """
        ...


class Enforcer(Protocol):
    """Receives the discovered pods; the enforcement of ``policy.runner``."""

    @property
    def attached(self) -> Mapping[str, AttachedPod]:
        """The pods by the names of their own devices."""
        ...

    def attach(self, pod: AttachedPod) -> None:
        """Reports a pod on this node.

        Raises: KernelError; the enforcement tries again.
        """
        ...

    def detach(self, link: str) -> None:
        """Reports that the pod on a link is gone."""
        ...

    def look_again(self) -> None:
        """Reports that a kernel setting which rules depend on has changed."""
        ...


class PodDiscovery:
    """Follows one node's pods and devices."""

    def __init__(self, node: str, pods: Source[Pod], enforcer: Enforcer, links: NodeLinks, clock: Clock) -> None:
        self._node = node
        self._pods = pods
        self._enforcer = enforcer
        self._links = links
        self._clock = clock
        self._wake = asyncio.Event()
        self._log = Log("policy")
        self._own: dict[str, AttachedPod] = {}
        self.scanned = asyncio.Event()
        """Set when all pods that are on the node have been reported."""
        self.unlocated: frozenset[str] = frozenset()
        """The pods that have an address and no known link: they are isolated."""
        self.stuck: Callable[[frozenset[str]], None] = lambda _: None
        """Called with the pods whose link was not found for 2 s."""
        self.bridges_changed: Callable[[], bool] = lambda: False
        """Returns whether netfilter was turned on or off for a bridge."""

    async def run(self) -> None:
        """Follows until cancelled."""
        with self._links.watch(self._kernel_changed):
            self._pods.subscribe(self._pod_changed)
            await self._pods.synced.wait()
            self._wake.set()
            while True:
                await self._wake.wait()
                await self._clock.sleep(_SETTLE_S)
                self._wake.clear()
                self._scan()
                self._check_bridges()
                await self._clock.sleep(_REST_S)

    async def watch(self) -> None:
        """Checks bridges and reports pods whose link is not found, until cancelled."""
        while True:
            previous = self.unlocated
            await self._clock.sleep(_CHECK_S)
            self.stuck(previous & self.unlocated)
            self._check_bridges()

    def samples(self) -> list[Metric]:
        """The metrics."""
        text = "Pods of this node with an address and no device that is known; they are shut off."
        return [Sample("podwire_policy_pods_sought", text, len(self.unlocated))]

    def _check_bridges(self) -> None:
        with suppress(KernelError):
            if self.bridges_changed():
                self._enforcer.look_again()

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if any(pod is not None and pod.spec.node_name == self._node for pod in (old, new)):
            self._wake.set()

    def _kernel_changed(self, events: Sequence[Event]) -> None:
        if any(event.kind not in ("neighbour", "address") or self.unlocated for event in events):
            self._wake.set()

    def _unreported_pods(self) -> Mapping[str, Pod]:
        """The pods of this node that have addresses, without those that another source reported."""
        reported = {attached.pod for link, attached in self._enforcer.attached.items() if link not in self._own}
        local = (pod for pod in self._pods.objects.values() if pod.spec.node_name == self._node)
        pods = {key_of(pod.metadata): pod for pod in pods_by_address(local).values()}
        return {key: pod for key, pod in pods.items() if key not in reported}

    def _scan(self) -> None:
        pods = self._unreported_pods()
        previous = {attached.pod: PodLink(attached.device, attached.port) for attached in self._own.values()}
        try:
            state, ports = self._links.read()
        except KernelError as failure:
            self._log.warning("cannot read the devices of pods", problem=failure)
            self._wake.set()
            return
        links = locate({key: pod.addresses for key, pod in pods.items()}, state, ports, previous)
        self._log_unlocated(frozenset(pods) - links.keys())
        self._report(dict(_attachments(pods, links)))
        self.scanned.set()

    def _log_unlocated(self, unlocated: frozenset[str]) -> None:
        if new := sorted(unlocated - self.unlocated):
            self._log.warning("isolated pods whose device is not known", pods=", ".join(new[:10]))
        self.unlocated = unlocated

    def _report(self, current: Mapping[str, AttachedPod]) -> None:
        for link in [link for link in self._own if link not in current]:
            del self._own[link]
            self._enforcer.detach(link)
        for link, attached in current.items():
            if self._own.get(link) != attached:
                self._own[link] = attached
                with suppress(KernelError):  # the enforcement logs the failure and tries again
                    self._enforcer.attach(attached)


def not_located(pods: frozenset[str]) -> str:
    """A sentence that names the first three pods whose device is not known; empty without pods."""
    if not pods:
        return ""
    names = ", ".join(sorted(pods)[:3]) + (", ..." if len(pods) > 3 else "")
    return f"policy: no device of {names} is known; they are shut off"


def _attachments(pods: Mapping[str, Pod], links: Mapping[str, PodLink]) -> Iterator[tuple[str, AttachedPod]]:
    for key, link in links.items():
        pod = pods[key]
        attached = AttachedPod(
            pod=key, device=link.device, port=link.port, addresses=pod.addresses, uid=pod.metadata.uid or ""
        )
        yield attached.link, attached
