"""The routes of one host of Ingresses, with and without TLS, and the backends that they name: pure.

What a host becomes follows from its paths and from what is read of the cluster for them. While both are the same, a
later translation takes what was compiled before.
"""

from collections.abc import Iterable, Sequence

import msgspec

from podwire.gateway.ingress import actions, clientcertificates
from podwire.gateway.ingress.annotations import PREFIX, IngressSettings
from podwire.gateway.ingress.backendtls import asks_for_tls, checked_backend
from podwire.gateway.ingress.canary import canary_rules, weights
from podwire.gateway.ingress.clientcertificates import HostClients
from podwire.gateway.ingress.cors import answer_headers, preflights
from podwire.gateway.ingress.customheaders import custom_headers
from podwire.gateway.ingress.externalauth import external_auth
from podwire.gateway.ingress.lookups import RecordedLookups
from podwire.gateway.ingress.paths import IngressProblem, ServedPath
from podwire.gateway.ingress.settings import IngressDefaults
from podwire.gateway.ingress.urlbackends import UrlTarget
from podwire.gateway.lookups import RecordedAnswer, identical, still_answered
from podwire.gateway.routes import (
    Action,
    Certificate,
    EntryBackend,
    EntryRoute,
    ErrorAnswers,
    ExternalAuth,
    FixedAnswer,
    Forward,
    HeaderChanges,
    Mirror,
    RequestMatch,
    TrustedAuthority,
    VirtualHost,
    WeightedBackend,
)
from podwire.model.ingress import Ingress, IngressBackend, key_of_port
from podwire.model.meta import key_of

NO_BACKEND = "none"
"""The key of a backend that does not exist."""


class HostQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A host to compile: its paths and canaries in order of precedence, and how its clients come."""

    host: str
    paths: Sequence[ServedPath]
    canaries: Sequence[ServedPath] = ()
    has_tls: bool = False
    clients: HostClients | None = None
    defaults: IngressDefaults

    def is_same(self, other: "HostQuestion") -> bool:
        """Whether another question has the very same paths, and equal settings."""
        return (
            identical(self.paths, other.paths)
            and identical(self.canaries, other.canaries)
            and self.has_tls == other.has_tls
            and (self.clients is other.clients or self.clients == other.clients)
            and (self.defaults is other.defaults or self.defaults == other.defaults)
        )


class CompiledHost(msgspec.Struct, frozen=True, kw_only=True):
    """The virtual hosts without and with TLS, their backends, and what is not served as it was asked for."""

    plain: VirtualHost
    secure: VirtualHost
    backends: dict[str, EntryBackend]
    certificates: dict[str, Certificate]
    authorities: dict[str, TrustedAuthority]
    problems: tuple[IngressProblem, ...]
    answers: tuple[RecordedAnswer, ...]

    def holds(self) -> bool:
        """Whether the cluster still answers as it did."""
        return still_answered(self.answers)


def compile_host(question: HostQuestion, lookups: RecordedLookups) -> CompiledHost:
    """The virtual hosts of a host."""
    compiler = HostCompiler(lookups, question.defaults)
    routes = compiler.routes(question.paths, question.canaries)
    secured = actions.with_strict_transport(routes, question.defaults) if question.has_tls else routes
    opened = compiler.plain(routes, question.paths, has_tls=question.has_tls)
    if question.clients is not None:
        secured = clientcertificates.require_certificates(secured, question.clients)
        opened = clientcertificates.plain(opened, question.clients)
    return CompiledHost(
        plain=VirtualHost(hosts=(question.host,), routes=opened, single_label=True),
        secure=VirtualHost(hosts=(question.host,), routes=secured, single_label=True),
        backends=compiler.backends,
        certificates=compiler.certificates,
        authorities=compiler.authorities,
        problems=tuple(compiler.problems),
        answers=tuple(lookups.answers),
    )


class HostCompiler:
    """Makes routes; collects backends and problems on the way."""

    def __init__(self, lookups: RecordedLookups, defaults: IngressDefaults) -> None:
        self._lookups = lookups
        self._defaults = defaults
        self.backends: dict[str, EntryBackend] = {}
        self.certificates: dict[str, Certificate] = {}
        self.authorities: dict[str, TrustedAuthority] = {}
        self.problems: list[IngressProblem] = []

    def routes(self, paths: Sequence[ServedPath], canaries: Sequence[ServedPath]) -> tuple[EntryRoute, ...]:
        """The routes of paths in order of precedence."""
        regex = any(path.asks_for_patterns for path in paths)
        by_path = {(path.path, path.path_type): path for path in canaries if not path.catch_all}
        routes: list[EntryRoute] = []
        for path in paths:
            is_regex = regex and not path.catch_all
            match = RequestMatch(path=actions.path_match(path.path, path.path_type, regex=is_regex))
            if path.settings.app_root:
                root = RequestMatch(path=actions.path_match("/", "Exact", regex=False))
                routes.append(self._route(path, root, actions.app_root(path.settings)))
            canary = None if path.catch_all else by_path.get((path.path, path.path_type))
            routes += self._path_routes(path, match, canary)
        return tuple(routes)

    def plain(
        self, routes: tuple[EntryRoute, ...], paths: Sequence[ServedPath], *, has_tls: bool
    ) -> tuple[EntryRoute, ...]:
        """The routes without TLS: those of Ingresses that want TLS redirect."""
        by_source = {path.source: path.settings for path in paths}
        result = []
        for route in routes:
            settings = by_source[route.source]
            by_default = self._defaults.ssl_redirect if settings.ssl_redirect is None else settings.ssl_redirect
            if settings.force_ssl_redirect or self._defaults.force_ssl_redirect or (has_tls and by_default):
                action = actions.redirect_to_tls(settings, self._defaults)
                route = EntryRoute(source=route.source, match=route.match, action=action)
            result.append(route)
        return tuple(result)

    def _path_routes(self, path: ServedPath, match: RequestMatch, canary: ServedPath | None) -> Iterable[EntryRoute]:
        for preflight, headers in preflights(match, path.settings):
            answer = FixedAnswer(status=204)
            yield EntryRoute(source=path.source, match=preflight, action=answer, response_headers=headers)
        redirect = actions.redirect(path.settings)
        if redirect is not None:
            yield self._route(path, match, redirect)
            return
        main = self._backend(path, 1)
        if canary is None:
            yield self._route(path, match, self._forward(path, (main,)))
            return
        canary = _balanced_alike(canary, path)
        for rule, is_canary in canary_rules(match, canary.settings):
            backend = self._backend(canary, 1) if is_canary else main
            yield self._route(path, rule, self._forward(path, (backend,)))
        share, canary_share = weights(canary.settings)
        backends = [
            *([self._backend(path, share)] if share else []),
            *([self._backend(canary, canary_share)] if canary_share else []),
        ]
        yield self._route(path, match, self._forward(path, tuple(backends)))

    def _forward(self, path: ServedPath, backends: tuple[WeightedBackend, ...]) -> Action:
        action = actions.forward(backends, path.path, path.settings, self._defaults)
        if not path.settings.mirror_target:
            return action
        copy = self._target(path, "mirror-target", path.settings.mirror_target, "mirror")
        mirrors = (
            (Mirror(key=copy.backend.key, host=path.settings.mirror_host or copy.host),)
            if copy.backend is not None
            else ()
        )
        return msgspec.structs.replace(action, mirrors=mirrors)

    def _route(self, path: ServedPath, match: RequestMatch, action: Action) -> EntryRoute:
        settings = path.settings
        users = None
        if settings.auth_type:
            namespace = path.ingress.metadata.namespace
            users = self._lookups.users(f"{namespace}/{settings.auth_secret}", settings.auth_secret_type)
            if users is None:
                text = "is no Secret with users whose passwords are hashed with SHA-1; every request is refused"
                name = "metadata.annotations[nginx.ingress.kubernetes.io/auth-secret]"
                self._report(path.ingress, "InvalidSecret", f"{name} {settings.auth_secret!r} {text}")
                action = FixedAnswer(status=503)
        auth = self._external_auth(path) if settings.auth_url else None
        if settings.closed or (settings.auth_url and auth is None):
            action = FixedAnswer(status=503)
        limits = actions.limits(settings, self._defaults, users, auth)
        if self._streams(action):
            limits = msgspec.structs.replace(limits, body_bytes=0)
        return EntryRoute(
            source=path.source,
            match=match,
            action=action,
            limits=limits,
            request_headers=actions.request_headers(settings),
            response_headers=self._response_headers(path),
            errors=self._errors(path, action),
        )

    def _errors(self, path: ServedPath, action: Action) -> ErrorAnswers | None:
        """The Service of ``default-backend`` as the one that answers in place of errors."""
        statuses = path.settings.error_statuses or self._defaults.error_statuses
        if not statuses or not isinstance(action, Forward):
            return None
        if path.settings.error_statuses and not path.settings.default_backend:
            field = f"metadata.annotations[{PREFIX}custom-http-errors]"
            self._report(path.ingress, "BackendNotFound", f"{field}: expected default-backend beside it, which answers")
        spare = self._default_backend(path)
        if spare is None:
            return None
        meta, service = path.ingress.metadata, path.backend.service
        headers = [("X-Namespace", meta.namespace), ("X-Ingress-Name", meta.name)]
        if service is not None:
            headers += [("X-Service-Name", service.name), ("X-Service-Port", key_of_port(service.port))]
        return ErrorAnswers(backend=spare.key, statuses=statuses, headers=tuple(headers))

    def _response_headers(self, path: ServedPath) -> HeaderChanges:
        """The headers of answers: those for other origins, and those of the ConfigMap of ``custom-headers``."""
        changes = answer_headers(path.settings)
        name = path.settings.custom_headers
        if not name:
            return changes
        field = f"metadata.annotations[{PREFIX}custom-headers]"
        key = self._own_key(path, name, field)
        data = self._lookups.config_map(key) if key else None
        if key and data is None:
            self._report(path.ingress, "InvalidConfigMap", f"{field}: ConfigMap {key} does not exist")
        headers = custom_headers(data or {}, self._defaults.answer_headers)
        for problem in headers.problems:
            self._report(path.ingress, "InvalidConfigMap", f"{field}: ConfigMap {key}: {problem}")
        return msgspec.structs.replace(changes, set=(*changes.set, *headers.headers))

    def _own_key(self, path: ServedPath, name: str, field: str) -> str:
        """The key of an object of the Ingress's namespace; empty for one of another namespace, which is reported."""
        namespace = path.ingress.metadata.namespace
        owner, _, own = name.rpartition("/")
        if owner in ("", namespace):
            return f"{namespace}/{own}"
        text = f"{field}: expected an object of the namespace {namespace}, got {name!r}"
        self._report(path.ingress, "RefNotPermitted", text)
        return ""

    def _external_auth(self, path: ServedPath) -> ExternalAuth | None:
        return external_auth(path.settings, self._target(path, "auth-url", path.settings.auth_url, "auth"))

    def _target(self, path: ServedPath, annotation: str, url: str, variant: str) -> UrlTarget:
        """The backend of a URL in an annotation."""
        target = self._lookups.target(url, variant)
        if target.backend is None:
            name = f"metadata.annotations[{PREFIX}{annotation}]"
            self._report(path.ingress, "BackendNotFound", f"{name}: {target.problem}")
        else:
            self.backends[target.backend.key] = target.backend
        return target

    def _streams(self, action: Action) -> bool:
        """Whether a backend speaks HTTP/2, as gRPC does: its requests may never end, and the limit waits for that."""
        keys = [share.key for share in action.backends] if isinstance(action, Forward) else []
        return any(key in self.backends and self.backends[key].protocol == "h2c" for key in keys)

    def _backend(self, path: ServedPath, weight: int) -> WeightedBackend:
        key = self.backend_key(path.ingress, path.source, path.backend, path.settings)
        backend = self.backends.get(key)
        if backend is not None and backend.tls and asks_for_tls(path.settings):
            key = self._verified(path, backend)
        if path.settings.default_backend:
            key = self._with_default(path, key)
        return WeightedBackend(key=key, weight=weight, missing_status=503)

    def _verified(self, path: ServedPath, backend: EntryBackend) -> str:
        """The key of a backend with what annotations say about its TLS; that of none where they cannot be followed."""
        field = f"metadata.annotations[{PREFIX}proxy-ssl-secret]"
        named = path.settings.proxy_ssl_secret
        secret = self._own_key(path, named, field) if named else ""
        if named and not secret:
            return NO_BACKEND
        checked = checked_backend(path.settings, secret, self._lookups)
        if isinstance(checked, str):
            self._report(path.ingress, "InvalidSecret", f"{field}: {checked}; every request is refused")
            return NO_BACKEND
        if checked.certificate is not None:
            self.certificates[checked.certificate.name] = checked.certificate
        if checked.authority is not None:
            self.authorities[checked.authority.name] = checked.authority
        verify = checked.verify
        key = f"{backend.key},{'/'.join((verify.server_name, *verify.names))},{secret}"
        self.backends[key] = msgspec.structs.replace(backend, key=key, verify=verify)
        return key

    def _default_backend(self, path: ServedPath) -> EntryBackend | None:
        """The first port of the Service of ``default-backend``."""
        field = f"metadata.annotations[{PREFIX}default-backend]"
        named = path.settings.default_backend
        service = self._own_key(path, named, field) if named else ""
        if not service:
            return None
        value = self._lookups.service(service)
        if value is None or not value.spec.ports:
            self._report(path.ingress, "BackendNotFound", f"{field}: Service {service} does not exist or has no ports")
            return None
        name = service.partition("/")[2]
        chosen = self._lookups.resolve(path.ingress.metadata.namespace, name, value.spec.ports[0].port)
        if chosen.backend is None:
            self._report(path.ingress, chosen.reason, f"{field}: {chosen.problem}")
            return None
        self.backends[chosen.backend.key] = chosen.backend
        return chosen.backend

    def _with_default(self, path: ServedPath, key: str) -> str:
        """The key of a backend in whose place the Service of ``default-backend`` answers while it has no endpoints."""
        spare = self._default_backend(path)
        if spare is None:
            return key
        if key not in self.backends:
            return spare.key
        both = f"{key}{',' if '#' in key else '#'}default={path.settings.default_backend.rpartition('/')[2]}"
        own = self.backends[key]
        endpoints, first_of = own.endpoints or spare.endpoints, (key, spare.key)
        self.backends[both] = msgspec.structs.replace(own, key=both, endpoints=endpoints, first_of=first_of)
        return both

    def backend_key(self, ingress: Ingress, source: str, backend: IngressBackend, settings: IngressSettings) -> str:
        """The key of the backend of a path."""
        if backend.service is None:
            self._report(ingress, "UnsupportedBackend", f"{source}: only Services can be backends")
            return NO_BACKEND
        namespace, port = ingress.metadata.namespace, backend.service.port
        chosen = self._lookups.resolve(namespace, backend.service.name, port.name or port.number)
        if chosen.backend is None:
            self._report(ingress, chosen.reason, f"{source}: {chosen.problem}")
            return f"{namespace}/{backend.service.name}:{key_of_port(port)}"
        entry = actions.with_settings(chosen.backend, settings, self._defaults)
        if settings.service_upstream:
            service = self._lookups.service(f"{namespace}/{backend.service.name}")
            entry = actions.of_service(entry, service) if service is not None else entry
        self.backends[entry.key] = entry
        return entry.key

    def _report(self, ingress: Ingress, reason: str, message: str) -> None:
        problem = IngressProblem(key=key_of(ingress.metadata), reason=reason, message=message)
        if problem not in self.problems:
            self.problems.append(problem)


def _balanced_alike(canary: ServedPath, path: ServedPath) -> ServedPath:
    """A canary that knows clients by the same cookie as the main Ingress, so that they stay with their share."""
    if path.settings.affinity_canary_behavior != "sticky":
        return canary
    own = path.settings
    settings = msgspec.structs.replace(canary.settings, affinity=own.affinity, affinity_mode=own.affinity_mode)
    return msgspec.structs.replace(canary, settings=settings)
