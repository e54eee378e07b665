"""References of routes to backends: whether they are followed, and the backend that each leads to.

A reference that is not followed has a key that no backend has, so that its share of the requests fails.
"""

from typing import Literal

import msgspec

from podwire.gateway.api.backendtls import CheckedPolicy, PolicyTable, ServicePortName
from podwire.gateway.api.references import (
    NO_PROBLEM,
    ReferenceProblem,
    ReferenceTarget,
    is_granted,
    not_granted,
)
from podwire.gateway.backends import Resolved, UpstreamFacts, resolve
from podwire.gateway.lookups import BackendLookups, Recorder, Transport
from podwire.gateway.routes import EntryBackend, TrustedAuthority
from podwire.model.gatewayapi import BackendReference, ReferenceGrant
from podwire.model.gatewayroutes import ApiRoute
from podwire.model.meta import key_of

Use = Literal["http", "grpc", "tcp", "udp"]
VARIANT = "#gateway-api"
"""Behind the keys of these backends, so that settings for Ingresses do not change them."""
_TLS_PROTOCOLS = ("kubernetes.io/wss", "https", "wss")
"""Application protocols that only a policy says how to speak."""


class BackendFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides where a reference leads; ``client_certificate`` is what the Gateway shows to backends."""

    grants: tuple[ReferenceGrant, ...]
    upstreams: UpstreamFacts
    policies: PolicyTable
    client_certificate: str = ""

    def granted(self, kind: str, namespace: str, target: ReferenceTarget) -> bool:
        """Whether objects of a kind in a namespace may refer to a target."""
        return is_granted(self.grants, kind, namespace, target)

    def resolve(self, namespace: str, name: str, port: int, transport: Transport) -> Resolved:
        """The backend of a Service port."""
        return resolve(self.upstreams, namespace, name, port, transport)

    def policy(self, port: ServicePortName) -> CheckedPolicy | None:
        """The policy of a Service port."""
        return self.policies.of_port(port)


class ApiLookups:
    """Answers the questions of routes about other objects; known from one translation to the next."""

    def __init__(self) -> None:
        self._backends = BackendLookups()
        self._facts: BackendFacts | None = None

    def renew(self, facts: BackendFacts, *, same: bool) -> None:
        """Takes the facts of the next translation; ``same`` ones give the answers that are known."""
        self._facts = facts
        if same:
            self._backends.upstreams = facts.upstreams
        else:
            self._backends.renew(facts.upstreams)

    def granted(self, kind: str, namespace: str, target: ReferenceTarget) -> bool:
        """Whether objects of a kind in a namespace may refer to a target."""
        return self._facts is not None and self._facts.granted(kind, namespace, target)

    def resolve(self, namespace: str, name: str, port: int, transport: Transport) -> Resolved:
        """The backend of a Service port."""
        return self._backends.resolve(namespace, name, port, transport)

    def policy(self, port: ServicePortName) -> CheckedPolicy | None:
        """The policy of a Service port."""
        return self._facts.policy(port) if self._facts is not None else None


class RecordedFacts(BackendFacts, frozen=True, kw_only=True):
    """The facts of one route, with what it asked."""

    lookups: ApiLookups
    recorder: Recorder

    def granted(self, kind: str, namespace: str, target: ReferenceTarget) -> bool:
        """Whether objects of a kind in a namespace may refer to a target."""
        return self.recorder.ask(self.lookups.granted, kind, namespace, target)

    def resolve(self, namespace: str, name: str, port: int, transport: Transport) -> Resolved:
        """The backend of a Service port."""
        return self.recorder.ask(self.lookups.resolve, namespace, name, port, transport)

    def policy(self, port: ServicePortName) -> CheckedPolicy | None:
        """The policy of a Service port."""
        return self.recorder.ask(self.lookups.policy, port)


class BackendCollector:
    """The backends of one route; collects the first problem, and the ports that it uses."""

    def __init__(self, route: ApiRoute, facts: BackendFacts) -> None:
        self._route = route
        self._facts = facts
        self.source = f"{route.kind} {key_of(route.metadata)}"
        self.backends: dict[str, EntryBackend] = {}
        self.authorities: dict[str, TrustedAuthority] = {}
        self.ports: set[ServicePortName] = set()
        self.problem = NO_PROBLEM

    def backend(self, reference: BackendReference, path: str, use: Use) -> str:
        """The key of the backend of a reference at a path of the route."""
        namespace = reference.namespace or self._route.metadata.namespace
        result = self._resolve(reference, namespace, path, use)
        if isinstance(result, EntryBackend):
            self.backends[result.key] = result
            return result.key
        if not self.problem.reason and result.reason != "NoPolicy":
            self.problem = result
        return f"{result.reason} {namespace}/{reference.name}:{reference.port or 0}"

    def _resolve(
        self, reference: BackendReference, namespace: str, path: str, use: Use
    ) -> EntryBackend | ReferenceProblem:
        route = self._route
        if (reference.group, reference.kind) != ("", "Service"):
            text = f"{path}: expected a Service, got {reference.kind} of group {reference.group!r}"
            return ReferenceProblem("InvalidKind", text)
        target = ReferenceTarget(kind="Service", namespace=namespace, name=reference.name)
        if not self._facts.granted(route.kind, route.metadata.namespace, target):
            return not_granted(path, target)
        transport: Transport = "UDP" if use == "udp" else "TCP"
        result = self._facts.resolve(namespace, reference.name, reference.port or 0, transport)
        if result.backend is None or result.port is None:
            return ReferenceProblem(result.reason, f"{path}: {result.problem}")
        if use == "udp":
            return msgspec.structs.replace(result.backend, key=f"{result.backend.key}{VARIANT}-udp")
        port = (f"{namespace}/{reference.name}", result.port.name)
        if use == "tcp":
            return msgspec.structs.replace(result.backend, key=f"{result.backend.key}{VARIANT}-tcp", protocol="tcp")
        app_protocol = (result.port.app_protocol or "").lower()
        return self._http(result.backend, port, path, use, app_protocol)

    def _http(
        self, backend: EntryBackend, port: ServicePortName, path: str, use: Use, app_protocol: str
    ) -> EntryBackend | ReferenceProblem:
        """A backend of requests, over TLS where a policy says so."""
        self.ports.add(port)
        if use == "grpc":
            backend = msgspec.structs.replace(backend, key=f"{backend.key}{VARIANT}-grpc", protocol="h2c")
        else:
            backend = msgspec.structs.replace(backend, key=f"{backend.key}{VARIANT}")
        policy = self._facts.policy(port)
        if policy is None:
            if app_protocol in _TLS_PROTOCOLS:
                text = f"{path}: appProtocol {app_protocol} needs a BackendTLSPolicy"
                return ReferenceProblem("UnsupportedProtocol", text)
            return backend
        if policy.tls is None or policy.authority is None:
            return ReferenceProblem("NoPolicy", f"{path}: BackendTLSPolicy {policy.key} cannot be followed")
        self.authorities[policy.authority.name] = policy.authority
        certificate = self._facts.client_certificate
        return msgspec.structs.replace(
            backend,
            key=f"{backend.key} {certificate}".strip(),
            verify=msgspec.structs.replace(policy.tls, certificate=certificate),
        )
