"""Keeps the EgressPolicies of one node current: from API objects to the router, and the node's own Lease.

Guarantees: 1. before all objects are listed nothing is changed, so a restart removes nothing; 2. a change is followed
within :data:`_QUIET_S`, a node that no longer renews its Lease within :data:`_CHECK_S` after its expiry; 3. addresses
that this node has taken over are announced to the link at once and three times more, a second apart; 4. connections of
pods whose source changes are forgotten after the kernel holds the change. Cost: one write a second on nodes that a
policy selects; nothing while there is no policy.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from podwire.cluster.names import EGRESS_LEASE
from podwire.errors import ApiError, ApiUnreachable, KernelError, NotFound, ProtocolError
from podwire.kernel.neighbour_announcement import announce
from podwire.kube.client import Client
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import LEASES
from podwire.model.meta import Object
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.observe.log import Log
from podwire.routing.egress.flows import forget_connections, outdated_pods
from podwire.routing.egress.holder import EgressAssignment, known_pods
from podwire.routing.egress.plan import held_addresses
from podwire.routing.egress.view import EXPIRY_S, LEASE_PREFIX, NAMESPACE, RENEW_S, EgressView
from podwire.routing.router import Router
from podwire.runtime.clock import rfc3339_micro

_QUIET_S = 0.05
_CHECK_S = 0.25
_ANNOUNCEMENTS = 4
_FORBIDDEN_S = 30.0


class EgressFollower:
    """The EgressPolicies of one node."""

    def __init__(
        self,
        client: Client,
        router: Router,
        nodes: Informer[Node],
        pods: Informer[Pod],
        namespaces: Informer[Object],
    ) -> None:
        self.view = EgressView(client)
        self.known = asyncio.Event()
        """Set when the assignments are known for the first time."""
        self._client = client
        self._router = router
        self._node = router.node
        self._nodes, self._pods, self._namespaces = nodes, pods, namespaces
        self._changed = asyncio.Event()
        self._needed = asyncio.Event()
        self._applied: tuple[EgressAssignment, ...] | None = None
        self._to_announce: dict[str, int] = {}
        self._log = Log("egress")
        for informer in (self.view.policies, self.view.leases, nodes, pods, namespaces):
            informer.subscribe(lambda *_: self._changed.set())
        self.view.policies.subscribe(lambda *_: self._needed.set())

    def tasks(self, *, alone: bool) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name; ``alone``: no other part runs the informers of pods and namespaces."""
        own: dict[str, Informer[Any]] = {"pods": self._pods, "namespaces": self._namespaces} if alone else {}
        return {name: partial(self._run_when_needed, informer.run) for name, informer in own.items()} | {
            "egresspolicies": self._follow_policies,
            "egress leases": partial(self._run_when_needed, self.view.leases.run),
            "egress": self.run,
            "egress lease": partial(self._run_when_needed, self.renew),
            "egress announcements": partial(self._run_when_needed, self.announce_again),
        }

    async def run(self) -> None:
        """Hands assignments to the router whenever they change, until cancelled."""
        await self.view.policies.synced.wait()
        await self._nodes.synced.wait()
        while True:
            self._changed.clear()
            if self.view.rules:
                for informer in (self.view.leases, self._pods, self._namespaces):
                    await informer.synced.wait()
            self._router.lead_out(*self._assignments())
            self.known.set()
            await self._client.clock.sleep(_QUIET_S if self.view.rules else _CHECK_S)
            try:
                async with asyncio.timeout(_CHECK_S if self.view.rules else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _follow_policies(self) -> None:
        """Follows the policies, if the cluster has the kind and this agent may read it; else there are none."""
        while True:
            try:
                await follow_when_served(self._client, self.view.policies)
            except ApiError as failure:
                if failure.code != HTTPStatus.FORBIDDEN:
                    raise
                self._log.warning("may not read EgressPolicies; they are ignored", problem=failure)
                self.view.policies.synced.set()
                await self._client.clock.sleep(_FORBIDDEN_S)

    async def _run_when_needed(self, body: Callable[[], Awaitable[None]]) -> None:
        """Runs a task from the moment when there is a policy."""
        await self._needed.wait()
        await body()

    def _assignments(self) -> tuple[tuple[EgressAssignment, ...], frozenset[str]]:
        """The assignments, and the addresses of this node's pods that are known; none while there is no policy."""
        if not self.view.rules:
            return (), frozenset()
        namespaces: Mapping[str, Mapping[str, str]] = {
            name: namespace.metadata.labels for name, namespace in self._namespaces.objects.items()
        }
        pods = tuple(self._pods.objects.values())
        known = known_pods(self._node, pods, namespaces)
        return self.view.assignments(self._nodes.objects, pods, namespaces), known

    async def applied(self) -> None:
        """Called when the kernel holds the plan of the router: announces addresses and forgets connections."""
        now, before = self._router.egress, self._applied
        if now == before or self._router.plan is None:
            return
        self._applied = now
        held = held_addresses(self._node, now)
        fresh = [address for address in held if address not in held_addresses(self._node, before or ())]
        remaining = {address: times for address, times in self._to_announce.items() if address in held}
        self._to_announce = remaining | dict.fromkeys(fresh, _ANNOUNCEMENTS)
        if fresh:
            self._log.info("this node has egress addresses", addresses=",".join(held))
            self._announce()
        if before is None:
            return
        pods = outdated_pods(before, now)
        inside = self._router.plan.inside
        addresses = {str(address) for assignment in now for address in assignment.addresses}
        try:
            await asyncio.to_thread(forget_connections, pods, addresses, inside)
        except KernelError as failure:
            self._log.warning("cannot delete the tracked connections of pods", problem=failure)

    def _announce(self) -> None:
        me, _ = self._router.own.look()
        if me is None or not self._to_announce:
            return
        try:
            announce(me.underlay.link, self._to_announce)
        except KernelError as failure:
            self._log.warning("cannot announce addresses", problem=failure)
        self._to_announce = {address: times - 1 for address, times in self._to_announce.items() if times > 1}

    async def announce_again(self) -> None:
        """Repeats announcements, until cancelled."""
        while True:
            await self._client.clock.sleep(1.0)
            self._announce()

    async def renew(self) -> None:
        """Renews this node's Lease while a policy selects the node, and deletes it then; until cancelled."""
        name = f"{LEASE_PREFIX}{self._node}"
        while True:
            is_candidate = self.view.is_candidate(self._node, self._nodes.objects)
            if is_candidate or f"{NAMESPACE}/{name}" in self.view.leases.objects:
                try:
                    async with asyncio.timeout(EXPIRY_S):
                        await (self._renew(name) if is_candidate else self._client.delete(LEASES, name, NAMESPACE))
                except (TimeoutError, ApiError, ApiUnreachable, ProtocolError) as failure:
                    self._log.debug("cannot renew the lease", problem=failure)
            await self._client.clock.sleep(RENEW_S)

    async def _renew(self, name: str) -> None:
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": int(EXPIRY_S),
            "renewTime": rfc3339_micro(self._client.clock.now()),
        }
        try:
            await self._client.patch(LEASES, name, {"spec": spec}, NAMESPACE)
        except NotFound:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": {EGRESS_LEASE: self._node}},
                "spec": spec,
            }
            await self._client.create(LEASES, lease, NAMESPACE)
