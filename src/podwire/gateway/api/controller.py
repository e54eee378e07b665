"""Follows the objects of Gateway API and hands engines the entry that follows from them.

Guarantees: 1. a change is served at once, further ones at most every 50 ms; a change of endpoints at once and
without a translation; 2. before the first lists nothing is published; 3. an API that does not serve these kinds has no
objects of them; 4. an object that engines refuse stays as it was, and all others continue to be served. The status is
written by :mod:`podwire.gateway.api.writer`.

Cost of a change of an object: a translation of all.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from podwire.gateway.api.compiler import CompilerMemo
from podwire.gateway.api.listenersets import parent_of
from podwire.gateway.api.services import addresses_of_service, engine_ports, gateway_services
from podwire.gateway.api.translate import ApiTranslation, GatewayApiFacts, translate_api
from podwire.gateway.backends import Place
from podwire.gateway.certificates import system_authorities
from podwire.gateway.config import COMPONENT
from podwire.gateway.engines import EngineFeed
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.refusals import RefusalSearch
from podwire.gateway.upstreams import Upstreams
from podwire.kube.controller import Environment
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import (
    BACKENDTLSPOLICIES,
    CONFIGMAPS,
    GATEWAYCLASSES,
    GATEWAYS,
    GRPCROUTES,
    HTTPROUTES,
    LISTENERSETS,
    NAMESPACES,
    REFERENCEGRANTS,
    SECRETS,
    SERVICES,
    TCPROUTES,
    TLSROUTES,
    UDPROUTES,
)
from podwire.model.gatewayapi import Gateway
from podwire.model.meta import key_of
from podwire.runtime.supervise import Supervisor

T = TypeVar("T")
PART = "gateway-api"
_ALL = "all"
_INTERVAL_S = 0.05


class GatewayApiController:
    """Translates Gateways and routes whenever they or what they name change."""

    def __init__(
        self, environment: Environment, controller: str, namespace: str, settings: EngineSettings, feed: EngineFeed
    ) -> None:
        """``namespace`` is that of the engines and of the Services of Gateways."""
        client = environment.client
        self.controller = controller
        self.namespace = namespace
        self._client = client
        self._settings = settings
        self._upstreams = Upstreams(environment, feed, PART)
        self._namespaces = environment.of(NAMESPACES)
        self._services = environment.of(SERVICES)
        secrets, config_maps = environment.of(SECRETS), environment.of(CONFIGMAPS)
        self._system = system_authorities()
        self.classes = Informer(client, GATEWAYCLASSES)
        self.gateways = Informer(client, GATEWAYS)
        self.sets = Informer(client, LISTENERSETS)
        self.routes: tuple[Informer[Any], ...] = tuple(
            Informer(client, resource) for resource in (HTTPROUTES, GRPCROUTES, TLSROUTES, TCPROUTES, UDPROUTES)
        )
        self.policies = Informer(client, BACKENDTLSPOLICIES)
        self.grants = Informer(client, REFERENCEGRANTS)
        self._own: tuple[Informer[Any], ...] = (
            self.classes,
            self.gateways,
            self.sets,
            *self.routes,
            self.policies,
            self.grants,
        )
        environment.recorder(COMPONENT).follow_rejected(*self._own)
        self._loop = environment.loop(PART, self._reconcile, interval_s=_INTERVAL_S)
        self._memo = CompilerMemo()
        self._search = RefusalSearch[Any](feed, PART)
        self.translation = ApiTranslation()
        self.translated = False
        self.on_translated: Callable[[], None] = lambda: None
        """Called after each translation."""
        self._references = 0
        """Counts changes of policies and grants, which decide what routes refer to."""
        for targets in (self.policies, self.grants):
            targets.subscribe(lambda _key, _old, _new: self._count_references(), replay=False)
        followed: tuple[Informer[Any], ...] = (self._namespaces, self._services, secrets, config_maps, *self._own)
        for informer in followed:
            informer.subscribe(lambda _key, _old, _new: self._loop.touch(_ALL), replay=False)

    def start(self, supervisor: Supervisor) -> None:
        """Starts to follow the objects, then the loop."""
        for informer in self._own:
            supervisor.start(informer.resource.plural, partial(follow_when_served, self._client, informer))
        self._loop.touch(_ALL)
        self._loop.start(supervisor, workers=1)

    def set_place(self, place: Place) -> None:
        """Takes the place of the engine, near which endpoints are preferred."""
        self._upstreams.set_place(place)
        self._loop.touch(_ALL)

    def named_ports(self, gateway: Gateway) -> set[int]:
        """The ports that listeners of a Gateway and of its ListenerSets name."""
        key = key_of(gateway.metadata)
        sets = (entry for entry in self.sets.objects.values() if parent_of(entry) == key)
        listeners = (*gateway.spec.listeners, *(listener for entry in sets for listener in entry.spec.listeners))
        return {listener.port for listener in listeners}

    def _count_references(self) -> None:
        self._references += 1

    async def _reconcile(self, _key: str) -> None:
        for informer in self._own:
            await informer.synced.wait()
        services = gateway_services(self._services.objects.values(), self.namespace)
        gateways = {("Gateway", key): gateway for key, gateway in self.gateways.objects.items()}
        routes = {
            (informer.resource.kind, key): route for informer in self.routes for key, route in informer.objects.items()
        }
        certificate = self._search.certificates.of(self._upstreams.certificate)
        sets = {("ListenerSet", key): value for key, value in self.sets.objects.items()}
        choice = self._search.choose({key: value.spec for key, value in (gateways | sets | routes).items()})
        translation = translate_api(
            GatewayApiFacts(
                controller=self.controller,
                classes=tuple(self.classes.objects.values()),
                gateways=tuple(_with_spec(value, choice.objects.get(key)) for key, value in gateways.items()),
                sets=tuple(_with_spec(value, choice.objects.get(key)) for key, value in sets.items()),
                routes=tuple(_with_spec(value, choice.objects.get(key)) for key, value in routes.items()),
                policies=tuple(self.policies.objects.values()),
                grants=tuple(self.grants.objects.values()),
                namespaces={key: value.metadata.labels for key, value in self._namespaces.objects.items()},
                ports=engine_ports(services),
                addresses={key: addresses_of_service(service) for key, service in services.items()},
                upstreams=self._upstreams.facts,
                certificate=certificate,
                authority=self._upstreams.authority,
                system=self._system,
                refused=self._search.refused,
                withheld=choice.withheld,
                version=(self._upstreams.version, self._search.certificates.version, self._references),
            ),
            self._memo,
        )
        self._search.publish(translation.entry, self._settings)
        if not self._search.searching or not self.translated:
            self.translation = translation
            self.translated = True
            self.on_translated()
        self.answered()

    def answered(self) -> None:
        """Takes the answers of engines to what was published last, once all have answered."""
        if self._search.answered():
            self._loop.touch(_ALL)


def _with_spec(value: T, spec: Any) -> T:
    """An object with the specification that is served; its own where none is."""
    if spec is None or cast("Any", value).spec is spec:
        return value
    return cast("T", msgspec.structs.replace(cast("Any", value), spec=spec))
