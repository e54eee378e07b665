"""Ingresses as an entry of the route model: pure, from objects to listeners, tables, backends and certificates.

There are two listeners, for HTTP and HTTPS, and a table for each. Every host is served by both; where a host has TLS,
or an Ingress asks for it, the plain one redirects. Certificates are chosen by server name; a host whose Secret cannot
be used is served with the default certificate, never dropped. Source: Kubernetes documentation, "Ingress";
ingress-nginx documentation.
"""

from collections.abc import Callable, Container, Iterable, Mapping

import msgspec

from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.ingress.annotations import PREFIX
from podwire.gateway.ingress.clientcertificates import HostClients, deciding_path, passed_through
from podwire.gateway.ingress.hosts import CompiledHost, HostCompiler, HostQuestion, compile_host
from podwire.gateway.ingress.lookups import ClusterLookups, ObjectFacts, RecordedLookups
from podwire.gateway.ingress.paths import (
    ANY_HOST,
    HostPaths,
    IngressProblem,
    ReadIngress,
    ServedPath,
    paths_of_hosts,
    read_ingress,
)
from podwire.gateway.ingress.settings import IngressDefaults
from podwire.gateway.routes import (
    Certificate,
    ClientValidation,
    EntryBackend,
    EntryListener,
    EntryRoute,
    GatewayEntry,
    HttpRedirect,
    RequestMatch,
    RouteTable,
    StreamTarget,
    TlsServer,
    TrustedAuthority,
    VirtualHost,
    WeightedBackend,
)
from podwire.model.ingress import Ingress
from podwire.model.meta import key_of

PLAIN_TABLE, TLS_TABLE = "ingress-http", "ingress-https"
DEFAULT_CERTIFICATE = "default"


class IngressPorts(msgspec.Struct, frozen=True, gc=False):
    """The ports on which engines listen for Ingresses."""

    http: int = 80
    https: int = 443


class IngressFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the translation reads.

    ``ingresses`` are those of the controller, oldest first. ``certificate`` gives the certificate of a Secret by its
    key, or the reason why it has none; ``users`` the users of one, None where it cannot be read; ``authority`` the
    authorities of clients or backends in one. ``config_map`` gives the data of a ConfigMap. While ``version`` is the
    same, all of these give the same; None says nothing.
    """

    ingresses: tuple[Ingress, ...]
    upstreams: UpstreamFacts
    version: tuple[int, int] | None = None
    certificate: Callable[[str], Certificate | str]
    users: Callable[[str, str], str | None]
    authority: Callable[[str], TrustedAuthority | str] = lambda key: f"Secret {key} does not exist"
    config_map: Callable[[str], Mapping[str, str] | None] = lambda _key: None
    default_certificate: Certificate
    defaults: IngressDefaults = IngressDefaults()
    ports: IngressPorts = IngressPorts()


class Translation(msgspec.Struct, frozen=True, kw_only=True):
    """The entry, and what is not served as it was asked for."""

    entry: GatewayEntry
    problems: tuple[IngressProblem, ...]


class TranslationMemo:
    """What the last translation read and compiled; the next one takes what is still the same."""

    def __init__(self) -> None:
        self.ingresses: dict[str, ReadIngress] = {}
        self.paths: dict[str, HostPaths] = {}
        self.canaries: dict[str, HostPaths] = {}
        self.hosts: dict[str, tuple[HostQuestion, CompiledHost]] = {}
        self.lookups = ClusterLookups()
        self.version: tuple[int, int] | None = None
        self.defaults = IngressDefaults()


def translate(facts: IngressFacts, memo: TranslationMemo | None = None) -> Translation:
    """The entry of all Ingresses."""
    return _Translator(facts, memo or TranslationMemo()).run()


class _Translator:
    """One translation; collects backends and problems on the way."""

    def __init__(self, facts: IngressFacts, memo: TranslationMemo) -> None:
        self._facts = facts
        self._memo = memo
        self._backends: dict[str, EntryBackend] = {}
        self._certificates: dict[str, Certificate] = {}
        self._authorities: dict[str, TrustedAuthority] = {}
        self._problems: list[IngressProblem] = []
        self._is_same_cluster = False
        """Whether everything else in the cluster is as the last translation found it."""

    def run(self) -> Translation:
        """The entry of all Ingresses, and the problems."""
        facts = self._facts
        objects = ObjectFacts(
            users=facts.users,
            certificate=facts.certificate,
            authority=facts.authority,
            config_map=facts.config_map,
        )
        self._is_same_cluster = facts.version is not None and facts.version == self._memo.version
        self._memo.version = facts.version
        if facts.defaults != self._memo.defaults:
            self._memo.defaults = facts.defaults
        self._memo.lookups.renew(facts.upstreams, objects, same=self._is_same_cluster)
        self._read()
        hosts, canaries = self._paths(list(self._memo.ingresses.values()))
        own = {host: entry.served for host, entry in self._memo.paths.items() if entry.touches_others}
        aliases = self._aliases(own, hosts)
        aliased = hosts | aliases
        clients = {
            host: checked
            for host, paths in (own | aliases).items()
            if (checked := self._clients(host, paths)) is not None
        }
        streams = {
            host: passed for host, paths in (own | aliases).items() if (passed := passed_through(paths)) is not None
        }
        servers, certificates = self._tls(clients, streams)
        tls_names = {name for server in servers for name in server.names}
        compiled = self._compiled(
            HostQuestion(
                host=host,
                paths=paths,
                canaries=canaries.get(host, ()),
                has_tls=bool(tls_names) and (host in tls_names or _wildcard(host) in tls_names),
                clients=clients.get(host),
                defaults=self._memo.defaults,
            )
            for host, paths in aliased.items()
        )
        moved = list(self._moved_hosts(own, aliased.keys()))
        secure = (host.secure for name, host in compiled.items() if name not in streams)
        tables = (
            RouteTable(name=PLAIN_TABLE, hosts=(*(host.plain for host in compiled.values()), *moved)),
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
            certificates=certificates | self._certificates,
            authorities=self._authorities,
        )
        return Translation(entry=entry, problems=tuple(self._problems))

    def _paths(self, entries: list[ReadIngress]) -> tuple[dict[str, list[ServedPath]], dict[str, list[ServedPath]]]:
        """The paths of each host, and those of its canaries."""
        memo = self._memo
        memo.paths = paths_of_hosts((entry.paths for entry in entries if not entry.settings.canary), memo.paths)
        memo.canaries = paths_of_hosts((entry.paths for entry in entries if entry.settings.canary), memo.canaries)
        for known in (memo.paths, memo.canaries):
            self._problems += (problem for entry in known.values() for problem in entry.problems)
        served = {host: entry.served for host, entry in memo.paths.items()}
        return served, {host: entry.served for host, entry in memo.canaries.items()}

    def _read(self) -> None:
        """Reads the annotations and paths of Ingresses that are new or changed."""
        known = self._memo.ingresses
        self._memo.ingresses = {}
        for ingress in self._facts.ingresses:
            key = key_of(ingress.metadata)
            entry = known.get(key)
            if entry is None or entry.ingress is not ingress:
                entry = read_ingress(ingress)
            self._memo.ingresses[key] = entry
            for problem in entry.problems:
                self._report(ingress, "UnsupportedAnnotation", f"metadata.annotations[{problem.name}] {problem.text}")

    def _compiled(self, questions: Iterable[HostQuestion]) -> dict[str, CompiledHost]:
        """Every host, compiled where it is not as it was."""
        known = self._memo.hosts
        self._memo.hosts = {}
        for question in questions:
            before = known.get(question.host)
            if before is not None and before[0].is_same(question) and (self._is_same_cluster or before[1].holds()):
                compiled = before[1]
            else:
                compiled = compile_host(question, RecordedLookups(self._memo.lookups))
            self._memo.hosts[question.host] = (question, compiled)
            self._backends |= compiled.backends
            if compiled.certificates or compiled.authorities or compiled.problems:
                self._certificates |= compiled.certificates
                self._authorities |= compiled.authorities
                self._problems += compiled.problems
        return {host: compiled for host, (_, compiled) in self._memo.hosts.items()}

    def _report(self, ingress: Ingress, reason: str, message: str) -> None:
        self._problems.append(IngressProblem(key=key_of(ingress.metadata), reason=reason, message=message))

    def _aliases(self, hosts: Mapping[str, list[ServedPath]], served: Container[str]) -> dict[str, list[ServedPath]]:
        """The aliases of hosts that no Ingress has as a host, each with the paths of its host."""
        aliases: dict[str, list[ServedPath]] = {}
        for paths in hosts.values():
            for alias in (alias for path in paths for alias in path.settings.server_alias):
                if alias not in served:
                    aliases.setdefault(alias, paths)
        return aliases

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
        required = settings.auth_tls_verify == "on"
        depth = settings.auth_tls_depth if required else None
        validation = ClientValidation(authority=authority.name, required=required, depth=depth)
        return HostClients(host, validation, settings.auth_tls_pass)

    def _passed(self, host: str, path: ServedPath) -> TlsServer:
        """The server that leaves the TLS of a host to its backend."""
        compiler = HostCompiler(RecordedLookups(self._memo.lookups), self._facts.defaults)
        key = compiler.backend_key(path.ingress, path.source, path.backend, path.settings)
        self._problems += compiler.problems
        backend = compiler.backends.get(key)
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
