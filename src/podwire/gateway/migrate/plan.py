"""Ingresses as a Gateway, HTTPRoutes and ReferenceGrants, as JSON, with a report: pure.

Ingresses are translated as the gateway serves them, without the annotations that routes cannot say, and the routes that
follow are written as rules. So rules are merged and ordered as for Ingresses. All go to one Gateway, whose name the
caller chooses: an HTTP listener for all hosts, and an HTTPS listener for each host with a certificate.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from podwire.gateway.backends import UpstreamFacts
from podwire.gateway.ingress.paths import ANY_HOST
from podwire.gateway.ingress.settings import IngressDefaults
from podwire.gateway.ingress.translate import (
    DEFAULT_CERTIFICATE,
    PLAIN_TABLE,
    TLS_TABLE,
    IngressFacts,
    translate,
)
from podwire.gateway.migrate.annotations import lost_annotations, protections
from podwire.gateway.migrate.rules import RuleProblem, rule_of
from podwire.gateway.routes import Certificate, EntryRoute, FixedAnswer, GatewayEntry, VirtualHost
from podwire.model.ingress import Ingress, IngressBackend, key_of_port
from podwire.model.meta import ObjectMeta, key_of
from podwire.model.service import Service, ServicePort, ServiceSpec

Json = dict[str, Any]
_API = "gateway.networking.k8s.io/v1"
_GROUP = "gateway.networking.k8s.io"
_MOST_RULES, _MOST_LISTENERS = 16, 64


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What is not carried over: the object, its field, and why or what to do."""

    object: str
    field: str
    text: str


class MigrationFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and how the Gateway is called (``namespace/name``).

    ``services`` may be empty, as with files alone. With ``open_routes``, Ingresses that restrict access become routes
    that do not.
    """

    ingresses: tuple[Ingress, ...]
    gateway: str
    gateway_class: str = "podwire"
    services: Mapping[str, Service] = {}
    defaults: IngressDefaults = IngressDefaults()
    open_routes: bool = False


class MigrationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The objects to make, and what they do not say."""

    objects: tuple[Json, ...]
    lost: tuple[Lost, ...]


def migrate(facts: MigrationFacts) -> MigrationPlan:
    """The objects that stand for Ingresses."""
    return _Migration(facts).run()


class _Migration:
    """One migration; collects objects and what is lost on the way."""

    def __init__(self, facts: MigrationFacts) -> None:
        self._facts = facts
        self._lost: dict[Lost, None] = {}
        self._namespace, _, self._name = facts.gateway.partition("/")
        self._routes: dict[tuple[str, str], Json] = {}
        self._granted: dict[str, list[str]] = {}
        self._sections: dict[str, str] = {}

    def run(self) -> MigrationPlan:
        """The objects and the report."""
        ingresses = tuple(self._translatable(self._facts.ingresses))
        entry = self._entry(ingresses)
        gateway = self._gateway(entry)
        for host in entry.tables[PLAIN_TABLE].hosts:
            self._host(host, entry, ("http",))
        for host in entry.tables[TLS_TABLE].hosts:
            sections = tuple(self._sections[name] for name in self._servers(host.hosts[0]))
            if sections:
                self._host(host, entry, sections)
        self._fall_through(entry)
        objects = [gateway, *self._routes.values(), *self._grants()]
        return MigrationPlan(objects=tuple(objects), lost=tuple(self._lost))

    def _report(self, subject: str, field: str, text: str) -> None:
        self._lost[Lost(object=subject, field=field, text=text)] = None

    def _translatable(self, ingresses: Iterable[Ingress]) -> Iterable[Ingress]:
        """The Ingresses without what routes cannot say; those that restrict access are left out."""
        for ingress in ingresses:
            subject = f"Ingress {key_of(ingress.metadata)}"
            lost = dict(lost_annotations(ingress))
            for name, text in lost.items():
                self._report(subject, f"metadata.annotations[{name}]", text)
            closed = [name for name in protections(ingress) if name in lost]
            if closed and not self._facts.open_routes:
                text = "is left out, since its routes would be open to all; --open-routes writes them"
                self._report(subject, f"metadata.annotations[{closed[0]}]", text)
                continue
            carried = {name: text for name, text in ingress.metadata.annotations.items() if name not in lost}
            yield msgspec.structs.replace(
                ingress, metadata=msgspec.structs.replace(ingress.metadata, annotations=carried)
            )

    def _entry(self, ingresses: tuple[Ingress, ...]) -> GatewayEntry:
        assumed = _assumed_services(ingresses)
        for key in sorted(assumed.keys() - self._facts.services.keys()) if self._facts.services else ():
            self._report(f"Service {key}", "", "does not exist: Ingresses answer 503, routes 500")
        services = assumed | dict(self._facts.services)
        translation = translate(
            IngressFacts(
                ingresses=ingresses,
                upstreams=UpstreamFacts(services=services, slices=lambda _key: ()),
                certificate=lambda key: Certificate(name=key, chain=""),
                users=lambda _key, _kind: "",
                default_certificate=Certificate(name=DEFAULT_CERTIFICATE, chain=""),
                defaults=self._facts.defaults,
            )
        )
        for problem in translation.problems:
            self._report(f"Ingress {problem.key}", problem.reason, problem.message)
        return translation.entry

    def _gateway(self, entry: GatewayEntry) -> Json:
        subject = f"Gateway {self._facts.gateway}"
        allowed = {"namespaces": {"from": "All"}}
        listeners: list[Json] = [{"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": allowed}]
        for server in entry.listeners[1].servers:
            for host in server.names:
                certificate = server.certificates[0]
                if certificate == DEFAULT_CERTIFICATE:
                    self._report(subject, "spec.listeners", f"{host} has no certificate of its own: no HTTPS for it")
                    continue
                owner, _, name = certificate.partition("/")
                reference = {"name": name}
                if owner != self._namespace:
                    reference["namespace"] = owner
                    self._granted.setdefault(owner, []).append(name)
                section = _name(f"https-{_slug(host)}", "")
                if section in self._sections.values():
                    section = _name(f"https-{_slug(host)}-{_digest(host)}", "")
                self._sections[host] = section
                listener: Json = {"name": section, "port": 443, "protocol": "HTTPS", "hostname": host}
                tls = {"mode": "Terminate", "certificateRefs": [reference]}
                listeners.append(listener | {"tls": tls, "allowedRoutes": allowed})
        if len(listeners) > _MOST_LISTENERS:
            text = f"has {len(listeners)}, and at most {_MOST_LISTENERS} are allowed: migrate by --namespace"
            self._report(subject, "spec.listeners", text)
        self._report(subject, "spec.listeners", "hosts without TLS get no HTTPS with a default certificate")
        if self._facts.defaults.body_size:
            text = f"bodies are not limited to {self._facts.defaults.body_size} bytes"
            self._report(subject, "spec.listeners", text)
        spec = {"gatewayClassName": self._facts.gateway_class, "listeners": listeners}
        return _object(_API, "Gateway", self._namespace, self._name, spec)

    def _servers(self, host: str) -> tuple[str, ...]:
        """The hosts of the HTTPS listeners that serve a host."""
        wildcard = "*." + host.partition(".")[2]
        return tuple(name for name in (host, wildcard) if name in self._sections)[:1]

    def _host(self, host: VirtualHost, entry: GatewayEntry, sections: tuple[str, ...]) -> None:
        name = host.hosts[0]
        if name.startswith("*.") and host.single_label:
            text = f"{name} stands for one label, in routes for any number"
            self._report(_owner(host), "spec.rules", text)
        by_owner: dict[str, list[Json]] = {}
        ranks = []
        for route in host.routes:
            subject, _, field = route.source.partition(" spec.")
            try:
                rule, problems = rule_of(route, entry.backends, subject.split()[1].partition("/")[0])
            except RuleProblem as problem:
                self._report(subject, f"spec.{field}", f"host {name}: {problem}")
                continue
            for text in problems:
                self._report(subject, f"spec.{field}", text)
            by_owner.setdefault(subject.split()[1], []).append(rule)
            ranks.append(_rank(route, rule))
        if ranks != sorted(ranks):
            self._report(_owner(host), "spec.rules", f"host {name}: routes order its paths by their length alone")
        for owner, rules in by_owner.items():
            self._add_routes(owner, name, rules, sections)

    def _add_routes(self, ingress: str, host: str, rules: list[Json], sections: tuple[str, ...]) -> None:
        """Routes with these rules, 16 in each."""
        namespace, _, name = ingress.partition("/")
        parents = [self._parent(section, namespace) for section in sections]
        spec: Json = {"parentRefs": parents}
        if host != ANY_HOST:
            spec["hostnames"] = [host]
        scheme = "" if sections == ("http",) else "-tls"
        label = f"{name}-{_slug(host)}{scheme}" if host != ANY_HOST else f"{name}-all{scheme}"
        for start in range(0, len(rules), _MOST_RULES):
            number = f"-{start // _MOST_RULES + 1:02}" if len(rules) > _MOST_RULES else ""
            key = namespace, _name(label, number)
            if key in self._routes:
                key = namespace, _name(f"{label}-{_digest(host)}", number)
            chunk = {"rules": rules[start : start + _MOST_RULES]}
            self._routes[key] = _object(_API, "HTTPRoute", *key, spec | chunk)

    def _parent(self, section: str, namespace: str) -> Json:
        parent = {"name": self._name, "sectionName": section}
        return parent if namespace == self._namespace else parent | {"namespace": self._namespace}

    def _grants(self) -> Iterable[Json]:
        for namespace, secrets in sorted(self._granted.items()):
            spec = {
                "from": [{"group": _GROUP, "kind": "Gateway", "namespace": self._namespace}],
                "to": [{"group": "", "kind": "Secret", "name": name} for name in sorted(set(secrets))],
            }
            yield _object(_API, "ReferenceGrant", namespace, f"gateway-{self._name}", spec)

    def _fall_through(self, entry: GatewayEntry) -> None:
        """Hosts that leave paths to wider ones: an Ingress answers 404 there."""
        hosts = entry.tables[PLAIN_TABLE].hosts
        wider = [host.hosts[0] for host in hosts if host.hosts[0].startswith("*")]
        for host in hosts:
            name = host.hosts[0]
            covers = [other for other in wider if other != name and (other == ANY_HOST or name.endswith(other[1:]))]
            if covers and not any(_takes_all(route) for route in host.routes):
                text = f"host {name}: paths that it does not have go to the routes of {covers[0]}, and are not 404"
                self._report(_owner(host), "spec.rules", text)


def _assumed_services(ingresses: Iterable[Ingress]) -> dict[str, Service]:
    """Services with the ports by number that Ingresses name."""
    ports: dict[str, set[int]] = {}
    for ingress in ingresses:
        for backend in _backends(ingress):
            if backend.service is not None and backend.service.port.number:
                key = f"{ingress.metadata.namespace}/{backend.service.name}"
                ports.setdefault(key, set()).add(int(key_of_port(backend.service.port)))
    return {
        key: Service(
            metadata=ObjectMeta(namespace=key.partition("/")[0], name=key.partition("/")[2]),
            spec=ServiceSpec(ports=tuple(ServicePort(name=f"p{port}", port=port) for port in sorted(known))),
        )
        for key, known in ports.items()
    }


def _backends(ingress: Ingress) -> Iterable[IngressBackend]:
    if ingress.spec.default_backend is not None:
        yield ingress.spec.default_backend
    for rule in ingress.spec.rules:
        yield from (entry.backend for entry in (rule.http.paths if rule.http is not None else ()))


def _takes_all(route: EntryRoute) -> bool:
    match = route.match
    everything = match.path.kind == "prefix" and not match.path.path.strip("/")
    return everything and not match.headers and not match.method and not isinstance(route.action, FixedAnswer)


def _rank(route: EntryRoute, rule: Json) -> tuple[int, int, int]:
    """The order of Gateway API: the kind of the path, its length, the number of headers."""
    path = rule["matches"][0]["path"]
    kind = ("Exact", "RegularExpression", "PathPrefix").index(path["type"])
    return kind, -len(path["value"] if kind == 1 else path["value"].rstrip("/")), -len(route.match.headers)


def _owner(host: VirtualHost) -> str:
    return host.routes[0].source.partition(" spec.")[0] if host.routes else f"host {host.hosts[0]}"


def _object(version: str, kind: str, namespace: str, name: str, spec: Json) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def _slug(host: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", host.replace("*", "any")).strip("-")


def _name(label: str, number: str) -> str:
    """A name of at most 63 characters, unique also where it has to be cut."""
    if len(label) + len(number) > 63:
        label = f"{label[: 54 - len(number)].rstrip('-')}-{_digest(label)}"
    return label + number


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
