"""Follows the objects of Gateway API and hands engines the entry that follows from them.

Guarantees: 1. a change is served at once, further ones at most every 50 ms; a change of endpoints at once and
without a translation; 2. before the first lists nothing is published; 3. an API that does not serve these kinds has no
objects of them. The status is written by :mod:`podwire.gateway.api.writer`.

Cost of a change of an object: a translation of all.
"""

from collections.abc import Callable

from podwire.gateway.api.services import addresses_of_service, engine_ports, gateway_services
from podwire.gateway.api.translate import ApiTranslation, GatewayApiFacts, translate_api
from podwire.gateway.backends import Place
from podwire.gateway.engines import EngineFeed
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.upstreams import Upstreams
from podwire.kube.controller import Environment
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import (
    GATEWAYCLASSES,
    GATEWAYS,
    HTTPROUTES,
    NAMESPACES,
    REFERENCEGRANTS,
    SECRETS,
    SERVICES,
)
from podwire.runtime.supervise import Supervisor

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
        self._feed = feed
        self._upstreams = Upstreams(environment, feed, PART)
        self._namespaces = environment.of(NAMESPACES)
        self._services = environment.of(SERVICES)
        secrets = environment.of(SECRETS)
        self.classes = Informer(client, GATEWAYCLASSES)
        self.gateways = Informer(client, GATEWAYS)
        self.routes = Informer(client, HTTPROUTES)
        self.grants = Informer(client, REFERENCEGRANTS)
        self._loop = environment.loop(PART, self._reconcile, interval_s=_INTERVAL_S)
        self.translation = ApiTranslation()
        self.translated = False
        self.on_translated: Callable[[], None] = lambda: None
        """Called after each translation."""
        for informer in (self._namespaces, self._services, secrets):
            informer.subscribe(lambda _key, _old, _new: self._loop.touch(_ALL), replay=False)
        for own in (self.classes, self.gateways, self.routes, self.grants):
            own.subscribe(lambda _key, _old, _new: self._loop.touch(_ALL), replay=False)

    def start(self, supervisor: Supervisor) -> None:
        """Starts to follow the objects, then the loop."""
        supervisor.start("gateway classes", lambda: follow_when_served(self._client, self.classes))
        supervisor.start("gateways", lambda: follow_when_served(self._client, self.gateways))
        supervisor.start("http routes", lambda: follow_when_served(self._client, self.routes))
        supervisor.start("reference grants", lambda: follow_when_served(self._client, self.grants))
        self._loop.touch(_ALL)
        self._loop.start(supervisor, workers=1)

    def placed(self, place: Place) -> None:
        """Takes the place of the engine, near which endpoints are preferred."""
        self._upstreams.place = place
        self._loop.touch(_ALL)

    async def _reconcile(self, _key: str) -> None:
        for informer in (self.classes, self.gateways, self.routes, self.grants):
            await informer.synced.wait()
        services = gateway_services(self._services.objects.values(), self.namespace)
        self.translation = translate_api(
            GatewayApiFacts(
                controller=self.controller,
                classes=tuple(self.classes.objects.values()),
                gateways=tuple(self.gateways.objects.values()),
                routes=tuple(self.routes.objects.values()),
                grants=tuple(self.grants.objects.values()),
                namespaces={key: value.metadata.labels for key, value in self._namespaces.objects.items()},
                ports=engine_ports(services),
                addresses={key: addresses_of_service(service) for key, service in services.items()},
                upstreams=self._upstreams.facts,
                certificate=self._upstreams.certificate,
            )
        )
        self.translated = True
        self._feed.publish(PART, self.translation.entry, self._settings)
        self.on_translated()
