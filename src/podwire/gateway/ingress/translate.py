"""Ingresses as an entry of the route model: pure, from objects to listeners, tables, backends and certificates.

There are two listeners, for HTTP and HTTPS, and a table for each. Every host is served by both; where a host has TLS,
or an Ingress asks for it, the plain one redirects. Certificates are chosen by server name; a host whose Secret cannot
be used is served with the default certificate, never dropped. Source: Kubernetes documentation, "Ingress";
ingress-nginx documentation.
"""

from collections.abc import Callable, Container, Iterable, Mapping

import msgspec

from podwire.gateway.backends import UpstreamFacts, resolve
from podwire.gateway.ingress import actions, clientcertificates
from podwire.gateway.ingress.annotations import PREFIX, IngressSettings, read_annotations
from podwire.gateway.ingress.canary import canary_rules, weights
from podwire.gateway.ingress.clientcertificates import HostClients, deciding_path, passed_through
from podwire.gateway.ingress.cors import answer_headers, preflights
from podwire.gateway.ingress.externalauth import external_auth
from podwire.gateway.ingress.paths import ANY_HOST, IngressProblem, Loaded, ServedPath, paths_of_hosts
from podwire.gateway.ingress.settings import IngressDefaults
from podwire.gateway.ingress.urlbackends import UrlTarget, target_of
from podwire.gateway.routes import (
    Action,
    Certificate,
    ClientValidation,
    EntryBackend,
    EntryListener,
    EntryRoute,
    ExternalAuth,
    FixedAnswer,
    Forward,
    GatewayEntry,
    HttpRedirect,
    Mirror,
    RequestMatch,
    RouteTable,
    StreamTarget,
    TlsServer,
    TrustedAuthority,
    VirtualHost,
    WeightedBackend,
)
from podwire.model.ingress import Ingress, IngressBackend, key_of_port
from podwire.model.meta import key_of

PLAIN_TABLE, TLS_TABLE = "ingress-http", "ingress-https"
DEFAULT_CERTIFICATE = "default"
NO_BACKEND = "none"
"""The key of a backend that does not exist."""


class IngressPorts(msgspec.Struct, frozen=True, gc=False):
    """The ports on which engines listen for Ingresses."""

    http: int = 80
    https: int = 443


class IngressFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the translation reads.

    ``ingresses`` are those of the controller, oldest first. ``certificate`` gives the certificate of a Secret by its
    key, or the reason why it has none; ``users`` the users of one, None where it cannot be read; ``authority`` the
    authorities of clients in one.
    """

    ingresses: tuple[Ingress, ...]
    upstreams: UpstreamFacts
    certificate: Callable[[str], Certificate | str]
    users: Callable[[str, str], str | None]
    authority: Callable[[str], TrustedAuthority | str] = lambda key: f"Secret {key} does not exist"
    default_certificate: Certificate
    defaults: IngressDefaults = IngressDefaults()
    ports: IngressPorts = IngressPorts()


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """The entry, and what is not served as it was asked for."""

    entry: GatewayEntry
    problems: tuple[IngressProblem, ...]


def translate(facts: IngressFacts) -> Translation:
    """The entry of all Ingresses."""
    return _Translator(facts).run()


class _Translator:
    """One translation; collects backends and problems on the way."""

    def __init__(self, facts: IngressFacts) -> None:
        self._facts = facts
        self._backends: dict[str, EntryBackend] = {}
        self._authorities: dict[str, TrustedAuthority] = {}
        self._problems: list[IngressProblem] = []

    def run(self) -> Translation:
        """The entry of all Ingresses, and the problems."""
        loaded = [self._load(ingress) for ingress in self._facts.ingresses]
        hosts, lost = paths_of_hosts(entry for entry in loaded if not entry[1].canary)
        canaries, lost_canaries = paths_of_hosts(entry for entry in loaded if entry[1].canary)
        self._problems += lost + lost_canaries
        aliased = self._with_aliases(hosts)
        clients = {
            host: checked for host, paths in aliased.items() if (checked := self._clients(host, paths)) is not None
        }
        streams = {host: passed for host, paths in aliased.items() if (passed := passed_through(paths)) is not None}
        servers, certificates = self._tls(clients, streams)
        tls_names = {name for server in servers for name in server.names}
        plain: list[VirtualHost] = []
        secure: list[VirtualHost] = []
        for host, paths in aliased.items():
            routes = self._routes(paths, canaries.get(host, ()))
            has_tls = host in tls_names or _wildcard(host) in tls_names
            secured = actions.with_strict_transport(routes, self._facts.defaults) if has_tls else routes
            if host in clients:
                secured = clientcertificates.require_certificates(secured, clients[host])
            if host not in streams:
                secure.append(VirtualHost(hosts=(host,), routes=secured, single_label=True))
            open_host = self._plain(host, routes, paths, has_tls=has_tls)
            if host in clients:
                closed = clientcertificates.plain(open_host.routes, clients[host])
                open_host = msgspec.structs.replace(open_host, routes=closed)
            plain.append(open_host)
        moved = list(self._moved_hosts(hosts, aliased.keys()))
        tables = (
            RouteTable(name=PLAIN_TABLE, hosts=(*plain, *moved)),
            RouteTable(name=TLS_TABLE, hosts=(*secure, *moved)),
        )
        ports = self._facts.ports
        entry = GatewayEntry(
            listeners=(
                EntryListener(name=PLAIN_TABLE, port=ports.http, client_port=80, protocol="HTTP", table=PLAIN_TABLE),
                EntryListener(name=TLS_TABLE, port=ports.https, client_port=443, protocol="HTTPS", servers=servers),
            ),
            tables={table.name: table for table in tables},
            backends=self._backends,
            certificates=certificates,
            authorities=self._authorities,
        )
        return Translation(entry=entry, problems=tuple(self._problems))

    def _load(self, ingress: Ingress) -> Loaded:
        settings, problems = read_annotations(ingress.metadata.annotations)
        for problem in problems:
            self._report(ingress, "UnsupportedAnnotation", f"metadata.annotations[{problem.name}] {problem.text}")
        return ingress, settings

    def _report(self, ingress: Ingress, reason: str, message: str) -> None:
        self._problems.append(IngressProblem(key=key_of(ingress.metadata), reason=reason, message=message))

    def _with_aliases(self, hosts: Mapping[str, list[ServedPath]]) -> dict[str, list[ServedPath]]:
        served = dict(hosts)
        for paths in hosts.values():
            for path in paths:
                for alias in path.settings.server_alias:
                    if alias not in served:
                        served[alias] = paths
        return served

    def _moved_hosts(self, hosts: Mapping[str, list[ServedPath]], served: Container[str]) -> Iterable[VirtualHost]:
        """Hosts that only redirect, to the name with ``www.`` or without it."""
        for host, paths in hosts.items():
            if not any(path.settings.from_to_www_redirect for path in paths):
                continue
            other = host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
            if not host.startswith(ANY_HOST) and other not in served:
                target = HttpRedirect(status=self._facts.defaults.redirect_code, host=host)
                route = EntryRoute(source=paths[0].source, match=RequestMatch(), action=target)
                yield VirtualHost(hosts=(other,), routes=(route,))

    def _routes(self, paths: list[ServedPath], canaries: Iterable[ServedPath]) -> tuple[EntryRoute, ...]:
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
        action = actions.forward(backends, path.path, path.settings, self._facts.defaults)
        if not path.settings.mirror_target:
            return action
        copy = self._target(path, "mirror-target", path.settings.mirror_target, "mirror")
        mirrors = (Mirror(key=copy.backend.key, host=copy.host),) if copy.backend is not None else ()
        return msgspec.structs.replace(action, mirrors=mirrors)

    def _route(self, path: ServedPath, match: RequestMatch, action: Action) -> EntryRoute:
        settings = path.settings
        users = None
        if settings.auth_type:
            namespace = path.ingress.metadata.namespace
            users = self._facts.users(f"{namespace}/{settings.auth_secret}", settings.auth_secret_type)
            if users is None:
                text = "is no Secret with users whose passwords are hashed with SHA-1; every request is refused"
                name = "metadata.annotations[nginx.ingress.kubernetes.io/auth-secret]"
                self._report(path.ingress, "InvalidSecret", f"{name} {settings.auth_secret!r} {text}")
                action = FixedAnswer(status=503)
        auth = self._external_auth(path) if settings.auth_url else None
        if settings.closed or (settings.auth_url and auth is None):
            action = FixedAnswer(status=503)
        limits = actions.limits(settings, self._facts.defaults, users, auth)
        if self._streams(action):
            limits = msgspec.structs.replace(limits, body_bytes=0)
        return EntryRoute(
            source=path.source,
            match=match,
            action=action,
            limits=limits,
            request_headers=actions.request_headers(settings),
            response_headers=answer_headers(settings),
        )

    def _external_auth(self, path: ServedPath) -> ExternalAuth | None:
        return external_auth(path.settings, self._target(path, "auth-url", path.settings.auth_url, "auth"))

    def _target(self, path: ServedPath, annotation: str, url: str, variant: str) -> UrlTarget:
        """The backend of a URL in an annotation."""
        target = target_of(url, self._facts.upstreams, variant)
        if target.backend is None:
            name = f"metadata.annotations[{PREFIX}{annotation}]"
            self._report(path.ingress, "BackendNotFound", f"{name}: {target.problem}")
        else:
            self._backends[target.backend.key] = target.backend
        return target

    def _streams(self, action: Action) -> bool:
        """Whether a backend speaks HTTP/2, as gRPC does: its requests may never end, and the limit waits for that."""
        keys = [share.key for share in action.backends] if isinstance(action, Forward) else []
        return any(key in self._backends and self._backends[key].protocol == "h2c" for key in keys)

    def _backend(self, path: ServedPath, weight: int) -> WeightedBackend:
        key = self._backend_key(path.ingress, path.source, path.backend, path.settings)
        return WeightedBackend(key=key, weight=weight, missing_status=503)

    def _backend_key(self, ingress: Ingress, source: str, backend: IngressBackend, settings: IngressSettings) -> str:
        if backend.service is None:
            self._report(ingress, "UnsupportedBackend", f"{source}: only Services can be backends")
            return NO_BACKEND
        namespace, port = ingress.metadata.namespace, backend.service.port
        chosen = resolve(self._facts.upstreams, namespace, backend.service.name, port.name or port.number)
        if chosen.backend is None:
            self._report(ingress, chosen.reason, f"{source}: {chosen.problem}")
            return f"{namespace}/{backend.service.name}:{key_of_port(port)}"
        entry = actions.with_settings(chosen.backend, settings, self._facts.defaults)
        if settings.service_upstream:
            service = self._facts.upstreams.services[f"{namespace}/{backend.service.name}"]
            entry = actions.of_service(entry, service)
        self._backends[entry.key] = entry
        return entry.key

    def _plain(
        self, host: str, routes: tuple[EntryRoute, ...], paths: list[ServedPath], *, has_tls: bool
    ) -> VirtualHost:
        """The host without TLS: routes of Ingresses that want TLS redirect."""
        defaults = self._facts.defaults
        by_source = {path.source: path.settings for path in paths}
        plain = []
        for route in routes:
            settings = by_source[route.source]
            by_default = defaults.ssl_redirect if settings.ssl_redirect is None else settings.ssl_redirect
            if settings.force_ssl_redirect or defaults.force_ssl_redirect or (has_tls and by_default):
                action = actions.redirect_to_tls(settings, defaults)
                route = EntryRoute(source=route.source, match=route.match, action=action)
            plain.append(route)
        return VirtualHost(hosts=(host,), routes=tuple(plain), single_label=True)

    def _clients(self, host: str, paths: list[ServedPath]) -> HostClients | None:
        """How the clients of a host are checked; None where they are not."""
        path = deciding_path(paths)
        if path is None:
            return None
        settings, namespace = path.settings, path.ingress.metadata.namespace
        field = f"metadata.annotations[{PREFIX}auth-tls-secret]"
        owner, _, name = settings.auth_tls_secret.rpartition("/")
        authority: TrustedAuthority | str = (
            f"expected a Secret of the namespace {namespace}, got {settings.auth_tls_secret!r}"
        )
        if name and owner in ("", namespace):
            authority = self._facts.authority(f"{namespace}/{name}")
        if isinstance(authority, str) or host == ANY_HOST:
            problem = authority if isinstance(authority, str) else "expected a host in the rule"
            self._report(path.ingress, "InvalidSecret", f"{field}: {problem}; every request is refused")
            return HostClients(host, None)
        self._authorities[authority.name] = authority
        validation = ClientValidation(authority=authority.name, required=settings.auth_tls_verify == "on")
        return HostClients(host, validation, settings.auth_tls_pass)

    def _passed(self, host: str, path: ServedPath) -> TlsServer:
        """The server that leaves the TLS of a host to its backend."""
        key = self._backend_key(path.ingress, path.source, path.backend, path.settings)
        backend = self._backends.get(key)
        if backend is not None:
            key = f"{key.partition('#')[0]}#tcp"
            self._backends[key] = msgspec.structs.replace(backend, key=key, protocol="tcp", tls=False)
        target = StreamTarget(source=path.source, backends=(WeightedBackend(key=key),))
        return TlsServer(names=(host,), stream=target)

    def _tls(
        self, clients: Mapping[str, HostClients], streams: Mapping[str, ServedPath]
    ) -> tuple[tuple[TlsServer, ...], dict[str, Certificate]]:
        """The servers of the TLS listener; the oldest Ingress that names a host gives its certificate."""
        default = msgspec.structs.replace(self._facts.default_certificate, name=DEFAULT_CERTIFICATE)
        certificates = {DEFAULT_CERTIFICATE: default}
        by_host: dict[str, str] = {}
        for ingress in self._facts.ingresses:
            for index, tls in enumerate(ingress.spec.tls):
                hosts = tls.hosts or tuple(rule.host for rule in ingress.spec.rules if rule.host)
                name = self._certificate(ingress, f"spec.tls[{index}].secretName", tls.secret_name, certificates)
                for host in hosts:
                    by_host.setdefault(host.lower(), name)
        for host in clients.keys() - {ANY_HOST}:
            by_host.setdefault(host, by_host.get(_wildcard(host), DEFAULT_CERTIFICATE))
        names: dict[tuple[str, ClientValidation | None], list[str]] = {}
        for host, name in by_host.items():
            if host not in streams:
                validation = clients[host].validation if host in clients else None
                names.setdefault((name, validation), []).append(host)
        servers = [
            TlsServer(names=tuple(sorted(hosts)), certificates=(name,), table=TLS_TABLE, clients=validation)
            for (name, validation), hosts in sorted(names.items(), key=lambda item: (item[0][0], sorted(item[1])))
        ]
        servers += [self._passed(host, path) for host, path in sorted(streams.items()) if host != ANY_HOST]
        servers.append(TlsServer(names=(), certificates=(DEFAULT_CERTIFICATE,), table=TLS_TABLE))
        return tuple(servers), certificates

    def _certificate(self, ingress: Ingress, path: str, secret_name: str, certificates: dict[str, Certificate]) -> str:
        if not secret_name:
            return DEFAULT_CERTIFICATE
        key = f"{ingress.metadata.namespace}/{secret_name}"
        certificate = self._facts.certificate(key)
        if isinstance(certificate, str):
            self._report(ingress, "InvalidCertificate", f"{path}: {certificate}; the default certificate is served")
            return DEFAULT_CERTIFICATE
        certificates[key] = certificate
        return key


def _wildcard(host: str) -> str:
    return "*." + host.partition(".")[2]
