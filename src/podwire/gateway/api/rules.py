"""The rules of an HTTPRoute as routes of the route model, and what is wrong with their references.

A rule without backends answers 500, and so does the share of a backend whose reference is not followed. A route with a
field that is not served is refused as a whole: the condition names the field.
"""

import hashlib
from collections.abc import Iterable

import msgspec

from podwire.gateway.api.backendrefs import BackendCollector, BackendFacts, Use
from podwire.gateway.api.backendtls import ServicePortName
from podwire.gateway.api.filters import (
    FIELDS,
    Scheme,
    UnsupportedRule,
    cors,
    filter_of,
    header_changes,
    path_rewrite,
    redirect,
    request_match,
    seconds,
)
from podwire.gateway.api.references import NO_PROBLEM, ReferenceProblem
from podwire.gateway.routes import (
    Action,
    Cors,
    EntryBackend,
    EntryRoute,
    FixedAnswer,
    Forward,
    HeaderChanges,
    HttpRedirect,
    Mirror,
    PathRewrite,
    RequestMatch,
    Retry,
    RouteLimits,
    Session,
    TrustedAuthority,
    WeightedBackend,
)
from podwire.model.gatewayapi import (
    HttpBackendRef,
    HttpCorsFilter,
    HttpHeaderFilter,
    HttpMirrorFilter,
    HttpRedirectFilter,
    HttpRewriteFilter,
    HttpRoute,
    HttpRouteFilter,
    HttpRouteMatch,
    HttpRouteRetry,
    HttpRouteRule,
    MirrorFraction,
    SessionPersistence,
)
from podwire.model.gatewayroutes import GrpcRouteFilter
from podwire.model.meta import key_of

_RETRY = Retry(attempts=2)
_BACKEND_FILTERS = ("RequestHeaderModifier", "ResponseHeaderModifier")
_SESSION_HEADER = "X-Session"


class RankedRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A route with the order of its match among all routes of its hosts: the smallest rank comes first."""

    rank: tuple[int, int, int, int, int, str, str, int, int]
    route: EntryRoute


class CompiledRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The routes of an API route for one scheme, and its backends; with a problem in ``refused`` nothing is served."""

    routes: tuple[RankedRoute, ...] = ()
    backends: dict[str, EntryBackend] = {}
    authorities: dict[str, TrustedAuthority] = {}
    ports: frozenset[ServicePortName] = frozenset()
    references: ReferenceProblem = NO_PROBLEM
    refused: ReferenceProblem = NO_PROBLEM


class RuleFilters(msgspec.Struct):
    """What the filters of a rule or of a backend say."""

    request_headers: HeaderChanges = HeaderChanges()
    response_headers: HeaderChanges = HeaderChanges()
    redirect: HttpRedirect | None = None
    host: str = ""
    path: PathRewrite | None = None
    mirrors: tuple[Mirror, ...] = ()
    cors: Cors | None = None


def compile_route(route: HttpRoute, scheme: Scheme, facts: BackendFacts) -> CompiledRoute:
    """An HTTPRoute for listeners of a scheme."""
    compiler = _Compiler(route, scheme, facts)
    collector = compiler.collector
    try:
        routes = tuple(compiler.routes())
    except UnsupportedRule as unsupported:
        return CompiledRoute(refused=unsupported.problem, references=collector.problem)
    return compiled(routes, collector)


def compiled(routes: tuple[RankedRoute, ...], collector: BackendCollector) -> CompiledRoute:
    """Routes with the backends that were collected for them."""
    return CompiledRoute(
        routes=routes,
        backends=collector.backends,
        authorities=collector.authorities,
        ports=frozenset(collector.ports),
        references=collector.problem,
    )


def route_filters(
    value: HttpRouteFilter | GrpcRouteFilter, field: str, allowed: tuple[str, ...], filters: RuleFilters
) -> object:
    """Takes over a filter that changes headers; returns the settings of any other one.

    Raises: UnsupportedRule.
    """
    settings = filter_of(value, field, allowed)
    if isinstance(settings, HttpHeaderFilter):
        if value.type == "RequestHeaderModifier":
            filters.request_headers = header_changes(settings)
        else:
            filters.response_headers = header_changes(settings)
    return settings


def mirror_of(value: HttpMirrorFilter, field: str, collector: BackendCollector, use: Use) -> Mirror:
    """The backend that gets copies, and its share.

    Raises: UnsupportedRule.
    """
    key = collector.backend(value.backend_ref, f"{field}.backendRef", use)
    if value.fraction is not None:
        share, name = value.fraction, "fraction"
    else:
        share, name = MirrorFraction(numerator=100 if value.percent is None else value.percent), "percent"
    if not 0 <= share.numerator <= share.denominator or not share.denominator:
        raise UnsupportedRule(f"{field}.{name}: expected 0 to 1, got {share.numerator}/{share.denominator}")
    return Mirror(key=key, numerator=share.numerator, denominator=share.denominator)


def session_of(
    value: SessionPersistence | None, shares: tuple[WeightedBackend, ...], field: str, identity: str
) -> Session | None:
    """How a session keeps its endpoint; its name follows from the rule (``identity``) where none is asked for.

    Raises: UnsupportedRule.
    """
    if value is None:
        return None
    if value.idle_timeout is not None:
        raise UnsupportedRule(f"{field}.idleTimeout: is not supported")
    if sum(share.weight > 0 for share in shares) > 1:
        raise UnsupportedRule(f"{field}: is supported for rules with one backend")
    lifetime = seconds(value.absolute_timeout, f"{field}.absoluteTimeout")
    if value.type == "Header":
        if lifetime is not None:
            raise UnsupportedRule(f"{field}.absoluteTimeout: is supported for cookies of type Permanent")
        return Session(kind="header", name=value.session_name or _SESSION_HEADER)
    permanent = value.cookie_config.lifetime_type == "Permanent"
    if value.type != "Cookie":
        raise UnsupportedRule(f"{field}.type: expected Cookie or Header, got {value.type!r}")
    if permanent != (lifetime is not None):
        raise UnsupportedRule(f"{field}.absoluteTimeout: expected with the lifetime type Permanent, and only with it")
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return Session(kind="cookie", name=value.session_name or f"session-{digest}", ttl=lifetime)


class _Compiler:
    """One HTTPRoute."""

    def __init__(self, route: HttpRoute, scheme: Scheme, facts: BackendFacts) -> None:
        self._route = route
        self._scheme = scheme
        self.collector = BackendCollector(route, facts)

    def routes(self) -> Iterable[RankedRoute]:
        """All rules.

        Raises: UnsupportedRule.
        """
        for index, rule in enumerate(self._route.spec.rules or (HttpRouteRule(),)):
            path = f"spec.rules[{index}]"
            matches = tuple(
                request_match(match, f"{path}.matches[{number}]")
                for number, match in enumerate(rule.matches or (HttpRouteMatch(),))
            )
            filters = self._filters(rule, matches, path)
            action = self._action(rule, filters, path)
            for number, match in enumerate(matches):
                yield RankedRoute(
                    rank=self._rank(match, index, number),
                    route=EntryRoute(
                        source=f"HTTPRoute {key_of(self._route.metadata)} {path}.matches[{number}]",
                        match=match,
                        action=action,
                        limits=RouteLimits(cors=filters.cors),
                        request_headers=filters.request_headers,
                        response_headers=filters.response_headers,
                    ),
                )

    def _rank(self, match: RequestMatch, index: int, number: int) -> tuple[int, int, int, int, int, str, str, int, int]:
        meta = self._route.metadata
        return (
            ("exact", "regex", "prefix").index(match.path.kind),
            -len(match.path.path if match.path.kind == "regex" else match.path.path.rstrip("/")),
            0 if match.method else 1,
            -len(match.headers),
            -len(match.query),
            meta.creation_timestamp or "",
            key_of(meta),
            index,
            number,
        )

    def _filters(self, rule: HttpRouteRule, matches: tuple[RequestMatch, ...], path: str) -> RuleFilters:
        filters = RuleFilters()
        for number, value in enumerate(rule.filters):
            field = f"{path}.filters[{number}]"
            settings = route_filters(value, field, tuple(FIELDS), filters)
            if isinstance(settings, HttpRedirectFilter):
                field = f"{field}.requestRedirect"
                rewrite = path_rewrite(settings.path, matches, f"{field}.path")
                filters.redirect = redirect(settings, rewrite, self._scheme, field)
            elif isinstance(settings, HttpRewriteFilter):
                filters.host = settings.hostname or ""
                filters.path = path_rewrite(settings.path, matches, f"{field}.urlRewrite.path")
            elif isinstance(settings, HttpMirrorFilter):
                filters.mirrors += (mirror_of(settings, f"{field}.requestMirror", self.collector, "http"),)
            elif isinstance(settings, HttpCorsFilter):
                filters.cors = cors(settings)
        kinds = {value.type for value in rule.filters}
        if {"RequestRedirect", "URLRewrite"} <= kinds:
            text = f"{path}.filters: RequestRedirect and URLRewrite exclude each other"
            raise UnsupportedRule(text, "IncompatibleFilters")
        return filters

    def _action(self, rule: HttpRouteRule, filters: RuleFilters, path: str) -> Action:
        shares = tuple(
            self._share(reference, f"{path}.backendRefs[{number}]")
            for number, reference in enumerate(rule.backend_refs)
        )
        if filters.redirect is not None:
            if shares:
                raise UnsupportedRule(f"{path}.backendRefs: a rule that redirects has no backends")
            return filters.redirect
        if not any(share.weight for share in shares):
            return FixedAnswer(status=500)
        timeouts = rule.timeouts
        identity = f"{key_of(self._route.metadata)} {path}"
        return Forward(
            backends=shares,
            host=filters.host,
            path=filters.path,
            mirrors=filters.mirrors,
            retry=_retry(rule.retry, f"{path}.retry"),
            session=session_of(rule.session_persistence, shares, f"{path}.sessionPersistence", identity),
            timeout=seconds(timeouts.request, f"{path}.timeouts.request") if timeouts else None,
            attempt_timeout=seconds(timeouts.backend_request, f"{path}.timeouts.backendRequest") if timeouts else None,
        )

    def _share(self, reference: HttpBackendRef, path: str) -> WeightedBackend:
        filters = RuleFilters()
        for number, value in enumerate(reference.filters):
            route_filters(value, f"{path}.filters[{number}]", _BACKEND_FILTERS, filters)
        return WeightedBackend(
            key=self.collector.backend(reference, path, "http"),
            weight=reference.weight,
            request_headers=filters.request_headers,
            response_headers=filters.response_headers,
        )


def _retry(value: HttpRouteRetry | None, field: str) -> Retry:
    if value is None:
        return _RETRY
    for code in value.codes:
        if not 400 <= code < 600:
            raise UnsupportedRule(f"{field}.codes: expected 400 to 599, got {code}")
    return Retry(
        attempts=value.attempts or 1,
        on_codes=value.codes,
        on_reset=True,
        backoff=seconds(value.backoff, f"{field}.backoff"),
    )
