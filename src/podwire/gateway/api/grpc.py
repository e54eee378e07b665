"""The rules of a GRPCRoute as routes of the route model: a request of gRPC is POST of ``/service/method`` over HTTP/2.

The order of matches: the longest service, then the longest method, then the most headers. What has no backend answers
503, which clients see as UNAVAILABLE.
"""

import re
from collections.abc import Iterable

from podwire.gateway.api.backendrefs import BackendCollector, BackendFacts
from podwire.gateway.api.filters import UnsupportedRule, check_regex, value_matches
from podwire.gateway.api.rules import (
    CompiledRoute,
    RankedRoute,
    RuleFilters,
    compiled,
    mirror_of,
    route_filters,
    session_of,
)
from podwire.gateway.routes import (
    Action,
    EntryRoute,
    FixedAnswer,
    Forward,
    PathMatch,
    RequestMatch,
    Retry,
    WeightedBackend,
)
from podwire.model.gatewayapi import HttpMirrorFilter
from podwire.model.gatewayroutes import GrpcBackendRef, GrpcMethodMatch, GrpcRoute, GrpcRouteMatch, GrpcRouteRule
from podwire.model.meta import key_of

_UNAVAILABLE = 503
_RETRY = Retry(attempts=2)
_FILTERS = ("RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror")


def compile_grpc(route: GrpcRoute, facts: BackendFacts) -> CompiledRoute:
    """A GRPCRoute for listeners of HTTP and HTTPS."""
    collector = BackendCollector(route, facts)
    try:
        routes = tuple(_routes(route, collector))
    except UnsupportedRule as unsupported:
        return CompiledRoute(refused=unsupported.problem, references=collector.problem)
    return compiled(routes, collector)


def _routes(route: GrpcRoute, collector: BackendCollector) -> Iterable[RankedRoute]:
    for index, rule in enumerate(route.spec.rules or (GrpcRouteRule(),)):
        path = f"spec.rules[{index}]"
        filters = RuleFilters()
        for number, value in enumerate(rule.filters):
            settings = route_filters(value, f"{path}.filters[{number}]", _FILTERS, filters)
            if isinstance(settings, HttpMirrorFilter):
                field = f"{path}.filters[{number}].requestMirror"
                filters.mirrors += (mirror_of(settings, field, collector, "grpc"),)
        action = _action(rule, filters, path, collector)
        for number, match in enumerate(rule.matches or (GrpcRouteMatch(),)):
            field = f"{path}.matches[{number}]"
            request = RequestMatch(
                path=_path(match.method, f"{field}.method"), headers=value_matches(match.headers, f"{field}.headers")
            )
            yield RankedRoute(
                rank=_rank(route, match, index, number),
                route=EntryRoute(
                    source=f"GRPCRoute {key_of(route.metadata)} {field}",
                    match=request,
                    action=action,
                    request_headers=filters.request_headers,
                    response_headers=filters.response_headers,
                ),
            )


def _rank(
    route: GrpcRoute, match: GrpcRouteMatch, index: int, number: int
) -> tuple[int, int, int, int, int, str, str, int, int]:
    """The order of a match; GRPCRoutes are never compared with HTTPRoutes, since they share no host."""
    method = match.method or GrpcMethodMatch()
    meta = route.metadata
    return (
        0 if method.type == "Exact" else 1,
        -len(method.service),
        -len(method.method),
        -len(match.headers),
        0,
        meta.creation_timestamp or "",
        key_of(meta),
        index,
        number,
    )


def _path(match: GrpcMethodMatch | None, field: str) -> PathMatch:
    if match is None or not (match.service or match.method):
        return PathMatch()
    if match.type == "RegularExpression":
        for name, text in (("service", match.service), ("method", match.method)):
            check_regex(text, f"{field}.{name}")
        return PathMatch(kind="regex", path=f"/(?:{match.service or '[^/]+'})/(?:{match.method or '[^/]+'})")
    if match.type != "Exact":
        raise UnsupportedRule(f"{field}.type: expected Exact or RegularExpression, got {match.type!r}")
    if match.service and match.method:
        return PathMatch(kind="exact", path=f"/{match.service}/{match.method}")
    if match.service:
        return PathMatch(kind="prefix", path=f"/{match.service}")
    return PathMatch(kind="regex", path=f"/[^/]+/{re.escape(match.method)}")


def _action(rule: GrpcRouteRule, filters: RuleFilters, path: str, collector: BackendCollector) -> Action:
    identity = f"{collector.source} {path}"
    shares = tuple(
        _share(reference, f"{path}.backendRefs[{number}]", collector)
        for number, reference in enumerate(rule.backend_refs)
    )
    if not any(share.weight for share in shares):
        return FixedAnswer(status=_UNAVAILABLE)
    return Forward(
        backends=shares,
        mirrors=filters.mirrors,
        retry=_RETRY,
        session=session_of(rule.session_persistence, shares, f"{path}.sessionPersistence", identity),
    )


def _share(reference: GrpcBackendRef, path: str, collector: BackendCollector) -> WeightedBackend:
    filters = RuleFilters()
    for number, value in enumerate(reference.filters):
        route_filters(value, f"{path}.filters[{number}]", _FILTERS[:2], filters)
    return WeightedBackend(
        key=collector.backend(reference, path, "grpc"),
        weight=reference.weight,
        missing_status=_UNAVAILABLE,
        request_headers=filters.request_headers,
        response_headers=filters.response_headers,
    )
