"""Follows Ingresses and everything they name, and hands engines the entry that follows from them.

Guarantees: 1. a change is served at once, further ones at most every 50 ms; a change of endpoints at once and
without a translation; 2. before the first lists nothing is published, so engines keep what they have; 3. what is not
served as an Ingress asks is an Event of the object, once for each text; 4. an Ingress that engines refuse stays as it
was, and all others go on being served.

Cost of a change of an Ingress: its hosts are translated, all others compared; engines get only the resources that
differ.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from podwire.gateway.acceptance import ObjectKey
from podwire.gateway.backends import Place
from podwire.gateway.certificates import secret_values
from podwire.gateway.config import COMPONENT
from podwire.gateway.engines import EngineFeed
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.ingress.actions import users_of
from podwire.gateway.ingress.annotations import PREFIX
from podwire.gateway.ingress.classes import served_ingresses
from podwire.gateway.ingress.enginesettings import with_defaults
from podwire.gateway.ingress.paths import IngressProblem
from podwire.gateway.ingress.settings import IngressDefaults, read_defaults
from podwire.gateway.ingress.translate import IngressFacts, IngressPorts, TranslationMemo, translate
from podwire.gateway.refusals import RefusalSearch
from podwire.gateway.routes import Certificate
from podwire.gateway.upstreams import Upstreams
from podwire.kube.controller import Environment
from podwire.kube.events import reference
from podwire.kube.resources import CONFIGMAPS, INGRESSCLASSES, INGRESSES, SECRETS, SERVICES, Json
from podwire.model.ingress import Ingress, IngressSpec
from podwire.model.meta import ObjectMeta, key_of
from podwire.runtime.supervise import Supervisor

PART = "ingress"
_ALL = "all"
_INTERVAL_S = 0.05


class IngressOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says about Ingresses; ``config_map`` is ``namespace/name``, empty for none."""

    controller: str
    ports: IngressPorts
    default_certificate: Certificate
    config_map: str = ""


class _Version(msgspec.Struct, frozen=True):
    """What an Ingress asks for; its status does not count."""

    annotations: dict[str, str]
    spec: IngressSpec


class IngressController:
    """Translates Ingresses whenever they or what they name change."""

    def __init__(
        self, environment: Environment, options: IngressOptions, settings: EngineSettings, feed: EngineFeed
    ) -> None:
        self._options = options
        self._settings = settings
        self._search = RefusalSearch[_Version](feed, PART)
        self._log = environment.log
        self._recorder = environment.recorder(COMPONENT)
        self._ingresses = environment.of(INGRESSES)
        self._classes = environment.of(INGRESSCLASSES)
        services = environment.of(SERVICES)
        self._secrets = environment.of(SECRETS)
        self._config_maps = environment.of(CONFIGMAPS)
        self._upstreams = Upstreams(environment, feed, PART)
        self._memo = TranslationMemo()
        self._versions: dict[ObjectKey, tuple[Ingress, _Version]] = {}
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
        if key == self._options.config_map or key in self._memo.lookups.config_maps:
            self._loop.touch(_ALL)

    async def _reconcile(self, _key: str) -> None:
        defaults = self._defaults()
        self.served = served_ingresses(
            self._ingresses.objects.values(), self._classes.objects.values(), self._options.controller
        )
        keys = [key_of(ingress.metadata) for ingress in self.served]
        self.served_keys = frozenset(keys)
        certificate = self._search.certificates.of(self._upstreams.certificate)
        choice = self._search.choose(self._asked(keys))
        translation = translate(
            IngressFacts(
                ingresses=tuple(self._chosen(choice.objects)),
                upstreams=self._upstreams.facts,
                version=(self._upstreams.version, self._search.certificates.version),
                certificate=certificate,
                authority=self._upstreams.client_authority,
                users=self._users,
                config_map=self._config_data,
                default_certificate=self._default_certificate(defaults),
                defaults=defaults,
                ports=self._options.ports,
            ),
            self._memo,
        )
        self._search.publish(translation.entry, with_defaults(self._settings, defaults))
        if not self._search.searching:
            self._report((*translation.problems, *self._refusals()))
        self.on_served()
        self.answered()

    def answered(self) -> None:
        """Takes the answers of engines to what was published last, once all have answered."""
        if self._search.answered():
            self._loop.touch(_ALL)

    def set_place(self, place: Place) -> None:
        """Takes the place of the engine, near which endpoints are preferred."""
        self._upstreams.set_place(place)
        self._loop.touch(_ALL)

    def _asked(self, keys: list[str]) -> dict[ObjectKey, _Version]:
        """What each Ingress that is served asks for."""
        known = self._versions
        self._versions = {}
        for name, ingress in zip(keys, self.served, strict=True):
            key = ("Ingress", name)
            before = known.get(key)
            is_same = before is not None and before[0] is ingress
            self._versions[key] = before if before is not None and is_same else (ingress, _version(ingress))
        return {key: version for key, (_, version) in self._versions.items()}

    def _chosen(self, chosen: Mapping[ObjectKey, _Version]) -> Iterable[Ingress]:
        """The Ingresses in the versions that are served, oldest first."""
        for key, (ingress, newest) in self._versions.items():
            version = chosen.get(key)
            if version is newest:
                yield ingress
            elif version is not None:
                yield _in_version(ingress, version)

    def _refusals(self) -> Iterable[IngressProblem]:
        """The Ingresses that engines refuse."""
        for (kind, key), message in self._search.refused.items():
            text = f"the engine refused it; what it accepted last is served: {message}"
            if kind == "Ingress":
                yield IngressProblem(key=key, reason="Refused", message=text[:1000])
            for ingress in self.served if kind == "Secret" else ():
                namespace = ingress.metadata.namespace
                if key in {f"{namespace}/{tls.secret_name}" for tls in ingress.spec.tls}:
                    text = f"spec.tls: Secret {key}: {text}"
                    yield IngressProblem(key=key_of(ingress.metadata), reason="InvalidCertificate", message=text[:1000])

    def _defaults(self) -> IngressDefaults:
        config_map = self._config_maps.get(self._options.config_map) if self._options.config_map else None
        defaults, problems = read_defaults((config_map or {}).get("data") or {})
        for problem in problems:
            text = (self._options.config_map, f"{problem.key} {problem.text}")
            if text not in self._reported:
                self._reported.add(text)
                self._log.warning("a setting is not supported", config_map=text[0], problem=text[1])
                subject = reference("v1", "ConfigMap", msgspec.convert((config_map or {}).get("metadata"), ObjectMeta))
                self._recorder.event(subject, "Warning", "UnsupportedSetting", f"data[{problem.key}] {problem.text}")
        return defaults

    def _default_certificate(self, defaults: IngressDefaults) -> Certificate:
        if defaults.default_certificate:
            certificate = self._upstreams.certificate(defaults.default_certificate)
            if isinstance(certificate, Certificate):
                return certificate
            self._log.warning("the default certificate cannot be served", problem=certificate)
        return self._options.default_certificate

    def _config_data(self, key: str) -> dict[str, str] | None:
        config_map = self._config_maps.get(key)
        return None if config_map is None else config_map.get("data") or {}

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


def _version(ingress: Ingress) -> _Version:
    asked = {name: text for name, text in ingress.metadata.annotations.items() if name.startswith(PREFIX)}
    return _Version(asked, ingress.spec)


def _in_version(ingress: Ingress, version: _Version) -> Ingress:
    """An Ingress as it asks in a version."""
    metadata = msgspec.structs.replace(ingress.metadata, annotations=version.annotations)
    return msgspec.structs.replace(ingress, metadata=metadata, spec=version.spec)
