"""Follows Ingresses and everything they name, and hands engines the entry that follows from them.

Guarantees: 1. a change is served at once, further ones at most every 50 ms; a change of endpoints at once and
without a translation; 2. before the first lists nothing is published, so engines keep what they have; 3. what is not
served as an Ingress asks is an Event of the object, once for each text.

Cost of a change of an Ingress: a translation of all (0.12 ms of CPU each with 1,000, their resources included); engines
get only the resources that differ.
"""

from collections.abc import Callable

import msgspec

from podwire.gateway.backends import Place
from podwire.gateway.certificates import secret_values
from podwire.gateway.engines import EngineFeed
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.ingress.actions import users_of
from podwire.gateway.ingress.classes import served_ingresses
from podwire.gateway.ingress.paths import IngressProblem
from podwire.gateway.ingress.settings import IngressDefaults, read_defaults
from podwire.gateway.ingress.translate import IngressFacts, IngressPorts, translate
from podwire.gateway.routes import Certificate
from podwire.gateway.upstreams import Upstreams
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.resources import CONFIGMAPS, INGRESSCLASSES, INGRESSES, SECRETS, SERVICES, Json
from podwire.model.ingress import Ingress
from podwire.model.meta import key_of
from podwire.runtime.supervise import Supervisor

COMPONENT = "podwire-gateway"
PART = "ingress"
_ALL = "all"
_INTERVAL_S = 0.05


class IngressOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says about Ingresses; ``config_map`` is ``namespace/name``, empty for none."""

    controller: str
    ports: IngressPorts
    default_certificate: Certificate
    config_map: str = ""


class IngressController:
    """Translates Ingresses whenever they or what they name change."""

    def __init__(
        self, environment: Environment, options: IngressOptions, settings: EngineSettings, feed: EngineFeed
    ) -> None:
        self._options = options
        self._settings = settings
        self._feed = feed
        self._log = environment.log
        self._recorder = environment.recorder(COMPONENT)
        self._ingresses = environment.of(INGRESSES)
        self._classes = environment.of(INGRESSCLASSES)
        services = environment.of(SERVICES)
        self._secrets = environment.of(SECRETS)
        self._config_maps = environment.of(CONFIGMAPS)
        self._upstreams = Upstreams(environment, feed, PART)
        self._reported: set[tuple[str, str]] = set()
        self._loop = environment.loop(PART, self._reconcile, interval_s=_INTERVAL_S)
        self.served: tuple[Ingress, ...] = ()
        self.served_keys: frozenset[str] = frozenset()
        self.on_served: Callable[[], None] = lambda: None
        """Called when the Ingresses that are served may have changed."""
        for informer in (self._ingresses, self._classes, services, self._secrets):
            informer.subscribe(lambda _key, _old, _new: self._loop.touch(_ALL), replay=False)
        self._config_maps.subscribe(self._config_changed, replay=False)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.touch(_ALL)
        self._loop.start(supervisor, workers=1)

    def _config_changed(self, key: str, _old: Json | None, _new: Json | None) -> None:
        if key == self._options.config_map:
            self._loop.touch(_ALL)

    async def _reconcile(self, _key: str) -> None:
        defaults = self._defaults()
        self.served = served_ingresses(
            self._ingresses.objects.values(), self._classes.objects.values(), self._options.controller
        )
        self.served_keys = frozenset(key_of(ingress.metadata) for ingress in self.served)
        translation = translate(
            IngressFacts(
                ingresses=self.served,
                upstreams=self._upstreams.facts,
                certificate=self._upstreams.certificate,
                authority=self._upstreams.client_authority,
                users=self._users,
                default_certificate=self._default_certificate(defaults),
                defaults=defaults,
                ports=self._options.ports,
            )
        )
        self._feed.publish(PART, translation.entry, self._engine_settings(defaults))
        self._report(translation.problems)
        self.on_served()

    def set_place(self, place: Place) -> None:
        """Takes the place of the engine, near which endpoints are preferred."""
        self._upstreams.place = place
        self._loop.touch(_ALL)

    def refused(self, message: str) -> None:
        """Reports what an engine refused on the Ingresses whose text it names, or on all that are served."""
        named = [ingress for ingress in self.served if any(text in message for text in _texts(ingress))]
        for ingress in named or self.served:
            subject = reference("networking.k8s.io/v1", "Ingress", ingress.metadata)
            text = f"the engine refused the routes and keeps its last ones: {message}"
            self._recorder.event(subject, "Warning", "Refused", text[:1000])

    def _defaults(self) -> IngressDefaults:
        config_map = self._config_maps.get(self._options.config_map) if self._options.config_map else None
        defaults, problems = read_defaults((config_map or {}).get("data") or {})
        for problem in problems:
            text = (self._options.config_map, f"{problem.key} {problem.text}")
            if text not in self._reported:
                self._reported.add(text)
                self._log.warning("a setting is not supported", config_map=text[0], problem=text[1])
        return defaults

    def _engine_settings(self, defaults: IngressDefaults) -> EngineSettings:
        own = self._settings
        return msgspec.structs.replace(
            own,
            trusted_networks=defaults.trusted_networks if defaults.use_forwarded_headers else own.trusted_networks,
            append_forwarded_for=defaults.compute_full_forwarded_for,
            proxy_protocol=own.proxy_protocol or defaults.use_proxy_protocol,
            idle_timeout=own.idle_timeout if defaults.keep_alive is None else defaults.keep_alive,
            header_timeout=own.header_timeout if defaults.header_timeout is None else defaults.header_timeout,
            max_header_kb=defaults.header_kb or own.max_header_kb,
            max_streams=defaults.streams or own.max_streams,
            http2=defaults.http2,
            tls_minimum=defaults.tls_minimum,
        )

    def _default_certificate(self, defaults: IngressDefaults) -> Certificate:
        if defaults.default_certificate:
            certificate = self._upstreams.certificate(defaults.default_certificate)
            if isinstance(certificate, Certificate):
                return certificate
            self._log.warning("the default certificate cannot be served", problem=certificate)
        return self._options.default_certificate

    def _users(self, key: str, kind: str) -> str | None:
        secret = self._secrets.get(key)
        return users_of(secret_values(secret), kind) if secret is not None else None

    def _report(self, problems: tuple[IngressProblem, ...]) -> None:
        present = {(problem.key, problem.message) for problem in problems}
        for problem in problems:
            ingress = self._ingresses.get(problem.key)
            if ingress is not None and (problem.key, problem.message) not in self._reported:
                subject = reference("networking.k8s.io/v1", "Ingress", ingress.metadata)
                self._recorder.event(subject, "Warning", problem.reason, problem.message)
        settings = {entry for entry in self._reported if entry[0] == self._options.config_map}
        self._reported = present | settings


def _texts(ingress: Ingress) -> tuple[str, ...]:
    """What an Ingress contributes to the messages of an engine: its paths, and its hosts."""
    paths = tuple(entry.path for rule in ingress.spec.rules if rule.http for entry in rule.http.paths)
    return tuple(path for path in paths if path.strip("/"))
