"""Compiles routes for the listeners of a Gateway, each once for a scheme: pure.

A route of requests that is the same object as in the last translation, and for which nothing else has changed that it
refers to, keeps its compiled form.
"""

import msgspec

from podwire.gateway.api.backendrefs import ApiLookups, BackendFacts, RecordedFacts
from podwire.gateway.api.filters import Scheme
from podwire.gateway.api.grpc import compile_grpc
from podwire.gateway.api.rules import CompiledRoute, compile_route
from podwire.gateway.api.streams import CompiledStream, compile_stream
from podwire.gateway.lookups import RecordedAnswer, Recorder, still_answered
from podwire.model.gatewayapi import HttpRoute
from podwire.model.gatewayroutes import ApiRoute, GrpcRoute
from podwire.model.meta import key_of

_Key = tuple[str, str, Scheme, str]
"""The kind and the key of a route, the scheme, and the certificate that its Gateway shows to backends."""


class _KnownRoute(msgspec.Struct, frozen=True):
    route: ApiRoute
    compiled: CompiledRoute
    answers: tuple[RecordedAnswer, ...]


class CompilerMemo:
    """The routes of the last translation; those that the present one does not ask for are forgotten."""

    def __init__(self) -> None:
        self.lookups = ApiLookups()
        self._last: dict[_Key, _KnownRoute] = {}
        self._present: dict[_Key, _KnownRoute] = {}
        self._version: tuple[int, ...] | None = None
        self._is_same_cluster = False

    def renew(self, facts: BackendFacts, version: tuple[int, ...] | None) -> None:
        """Begins a translation; while ``version`` is the same, routes read the same of all other objects."""
        self._is_same_cluster = version is not None and version == self._version
        self._version = version
        self.lookups.renew(facts, same=self._is_same_cluster)
        self._last, self._present = self._present, {}

    def compiled(self, route: HttpRoute | GrpcRoute, scheme: Scheme, facts: BackendFacts) -> CompiledRoute:
        """A route of requests for a Gateway with these facts."""
        key = (route.kind, key_of(route.metadata), scheme, facts.client_certificate)
        known = self._present.get(key)
        if known is None:
            known = self._last.get(key)
            if known is None or known.route is not route or not self._still_reads(known):
                known = self._compile(route, scheme, facts)
            self._present[key] = known
        return known.compiled

    def _still_reads(self, known: _KnownRoute) -> bool:
        return self._is_same_cluster or still_answered(known.answers)

    def _compile(self, route: HttpRoute | GrpcRoute, scheme: Scheme, facts: BackendFacts) -> _KnownRoute:
        recorder = Recorder()
        recorded = RecordedFacts(
            grants=facts.grants,
            upstreams=facts.upstreams,
            policies=facts.policies,
            client_certificate=facts.client_certificate,
            lookups=self.lookups,
            recorder=recorder,
        )
        if isinstance(route, GrpcRoute):
            compiled = compile_grpc(route, recorded)
        else:
            compiled = compile_route(route, scheme, recorded)
        return _KnownRoute(route, compiled, tuple(recorder.answers))


class RouteCompiler:
    """Compiles routes for one Gateway."""

    def __init__(self, facts: BackendFacts, memo: CompilerMemo) -> None:
        self._facts = facts
        self._memo = memo
        self._streams: dict[tuple[str, str], CompiledStream] = {}

    def requests(self, route: HttpRoute | GrpcRoute, scheme: Scheme) -> CompiledRoute:
        """A route of requests."""
        return self._memo.compiled(route, scheme, self._facts)

    def stream(self, route: ApiRoute) -> CompiledStream:
        """A route of connections or datagrams."""
        assert not isinstance(route, HttpRoute | GrpcRoute)
        key = (route.kind, key_of(route.metadata))
        if key not in self._streams:
            self._streams[key] = compile_stream(route, self._facts)
        return self._streams[key]

    def compiled(self, route: ApiRoute, scheme: Scheme) -> CompiledRoute | CompiledStream:
        """A route of any kind."""
        return self.requests(route, scheme) if isinstance(route, HttpRoute | GrpcRoute) else self.stream(route)
