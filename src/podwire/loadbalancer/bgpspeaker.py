"""The routes of load balancers that this node announces by BGP: from objects to the engine.

Guarantees: 1. before all objects and Secrets are listed nothing is changed, so a restart of the agent withdraws
nothing, and the engine runs on meanwhile; 2. a change is followed within :data:`_QUIET_S`; further changes wait until
the engine has read the one before. An engine that cannot be configured is tried again after :data:`_RETRY_S`; 3. a peer
whose Secret is missing, not readable or of another type is refused with an Event, and its last good form stays, with
the password that it had.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from podwire.bgp.configuration import Community, ServiceRoutes
from podwire.errors import ConfigError
from podwire.kube.informer import Informer
from podwire.kube.namedsecrets import NamedSecrets
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import BFDPROFILES, BGPADVERTISEMENTS, METALLB_COMMUNITIES, METALLB_PEERS
from podwire.loadbalancer.bgppeers import (
    BgpScope,
    PasswordSecrets,
    RouterPeer,
    Vocabulary,
    read_advertisement,
    read_communities,
    read_each,
    read_peer,
    read_profile,
)
from podwire.loadbalancer.bgproutes import BalancedRoutes, BgpFacts, plan_routes
from podwire.loadbalancer.view import BalancerView
from podwire.model.metallb import METALLB_NAMESPACE
from podwire.observe.log import Log
from podwire.runtime.supervise import Supervisor

_QUIET_S = 0.1
_RETRY_S = 5.0
Deliver = Callable[[ServiceRoutes], Awaitable[None]]
"""Hands routes to the engine. Raises: ConfigError, OSError when the engine refuses them."""


class BgpSpeaker:
    """The routes of one node."""

    def __init__(
        self, node: str, view: BalancerView, secrets_namespace: str, deliver: Deliver, supervisor: Supervisor
    ) -> None:
        """Passwords are read from Secrets of ``secrets_namespace``; ``supervisor`` runs the watches of them."""
        client = self._client = view.client
        self._supervisor = supervisor
        self._node = node
        self._view = view
        self._deliver = deliver
        self._log = Log("loadbalancer")
        self.current = BalancedRoutes()
        self.peers: dict[str, RouterPeer] = {}
        self.problem = ""
        """Why the engine does not announce; empty: it does."""
        self.announced: Callable[[BalancedRoutes, BalancedRoutes], None] = lambda _before, _now: None
        """Called when the routes have changed, with those before and now."""
        self._scopes: dict[str, BgpScope] = {}
        self._names = Vocabulary()
        self._aliases: dict[str, dict[str, Community]] = {}
        self._changed = asyncio.Event()
        self._secrets = NamedSecrets(client, secrets_namespace, self.disturbed)
        self._informers: tuple[Informer[Any], ...] = tuple(
            Informer(client, resource, namespace=METALLB_NAMESPACE)
            for resource in (METALLB_COMMUNITIES, BFDPROFILES, METALLB_PEERS, BGPADVERTISEMENTS)
        )
        view.events.follow_rejected(*self._informers)
        for informer in self._informers:
            informer.subscribe(lambda *_: self.disturbed())
        view.subscribe(self.disturbed)

    def disturbed(self) -> None:
        """Called when something has changed on which the routes may depend."""
        self._changed.set()

    def tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to run, by name."""

        def follow(informer: Informer[Any]) -> Callable[[], Awaitable[None]]:
            return lambda: follow_when_served(self._client, informer)

        return {f"load balancer {i.resource.plural}": follow(i) for i in self._informers} | {
            "load balancer routes": self.run
        }

    async def run(self) -> None:
        """Keeps the engine current until cancelled."""
        for informer in self._informers:
            await informer.synced.wait()
        while not self._view.is_known:
            await self._client.clock.sleep(_QUIET_S)
        names = set(self._secret_names())
        await self._secrets.follow(names, self._supervisor)
        await self._secrets.answered(names)
        before: BalancedRoutes | None = None
        while True:
            self._changed.clear()
            await self._secrets.follow(set(self._secret_names()), self._supervisor)
            self._read()
            now = self._plan()
            if now != before or self.problem:
                try:
                    await self._deliver(now.routes)
                    self.problem = ""
                    self.current = now
                    self.announced(before or BalancedRoutes(), now)
                    before = now
                except (ConfigError, OSError) as failure:
                    self.problem = str(failure)
                    self._log.warning("cannot announce addresses by BGP", problem=failure)
                    await self._client.clock.sleep(_RETRY_S)
                    continue
            await self._changed.wait()
            await self._client.clock.sleep(_QUIET_S)

    def again(self) -> None:
        """Delivers the routes once more, because the engine has changed."""
        self.problem = self.problem or "the engine has changed"
        self._changed.set()

    def _plan(self) -> BalancedRoutes:
        node, view = self._view.nodes.objects.get(self._node), self._view
        if node is None:
            return BalancedRoutes()
        facts = BgpFacts(
            services=view.balanced,
            endpoints={key: view.endpoints(key) for key in view.balanced},
            pools=view.current_pools,
            scopes=self._scopes,
            peers=self.peers,
        )
        return plan_routes(facts, node)

    def _secret_names(self) -> Iterator[str]:
        _, _, peers, _ = self._informers
        for peer in peers.objects.values():
            if peer.spec.password_secret.name and not peer.spec.password:
                yield peer.spec.password_secret.name

    def _read(self) -> None:
        """Reads all objects; one that is wrong gets an Event, and its last good form stays."""
        communities, profiles, peers, advertisements = self._informers
        self._aliases, problems = read_each(communities.objects.values(), self._aliases, read_communities)
        self._view.report(METALLB_COMMUNITIES, communities, problems)
        times, problems = read_each(profiles.objects.values(), self._names.profiles, read_profile)
        self._view.report(BFDPROFILES, profiles, problems)
        aliases = {name: number for names in self._aliases.values() for name, number in names.items()}
        self._names = Vocabulary(aliases, times, PasswordSecrets(self._secrets.namespace, self._secrets.find))
        self.peers, problems = read_each(peers.objects.values(), self.peers, lambda o: read_peer(o, self._names))
        self._view.report(METALLB_PEERS, peers, problems)
        self._scopes, problems = read_each(
            advertisements.objects.values(), self._scopes, lambda o: read_advertisement(o, self._names)
        )
        self._view.report(BGPADVERTISEMENTS, advertisements, problems)
