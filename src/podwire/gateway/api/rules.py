"""The rules of an HTTPRoute as routes of the route model, and what is wrong with their references.

A rule without backends answers 500, and so does the share of a backend whose reference is not followed. A route with a
field that is not served is refused as a whole: the condition names the field.
"""

from collections.abc import Iterable

import msgspec

from podwire.gateway.api.filters import (
    FIELDS,
    Scheme,
    UnsupportedRule,
    filter_of,
    header_changes,
    path_rewrite,
    redirect,
    request_match,
    seconds,
)
from podwire.gateway.api.references import ReferenceProblem, ReferenceTarget, is_granted, not_granted
from podwire.gateway.backends import UpstreamFacts, resolve
from podwire.gateway.routes import (
    Action,
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
    WeightedBackend,
)
from podwire.model.gatewayapi import (
    BackendReference,
    HttpBackendRef,
    HttpHeaderFilter,
    HttpMirrorFilter,
    HttpRedirectFilter,
    HttpRewriteFilter,
    HttpRoute,
    HttpRouteMatch,
    HttpRouteRule,
    ReferenceGrant,
)
from podwire.model.meta import key_of

VARIANT = "#gateway-api"
"""Behind the keys of these backends, so that settings for Ingresses do not change them."""
_RETRY = Retry(attempts=2)
_BACKEND_FILTERS = ("RequestHeaderModifier", "ResponseHeaderModifier")


class RankedRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A route with the order of its match among all routes of its hosts: the smallest rank comes first."""

    rank: tuple[int, int, int, int, int, str, str, int, int]
    route: EntryRoute


class CompiledRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The routes of an HTTPRoute for one scheme and its backends; ``unsupported`` names a field: nothing is served."""

    routes: tuple[RankedRoute, ...] = ()
    backends: dict[str, EntryBackend] = {}
    references: ReferenceProblem = ReferenceProblem("", "")
    unsupported: str = ""


class _RuleParts(msgspec.Struct):
    """What the filters of a rule say."""

    request_headers: HeaderChanges = HeaderChanges()
    response_headers: HeaderChanges = HeaderChanges()
    redirect: HttpRedirect | None = None
    host: str = ""
    path: PathRewrite | None = None
    mirrors: tuple[Mirror, ...] = ()


def compile_route(
    route: HttpRoute, scheme: Scheme, grants: tuple[ReferenceGrant, ...], upstreams: UpstreamFacts
) -> CompiledRoute:
    """An HTTPRoute for listeners of a scheme."""
    compiler = _Compiler(route, scheme, grants, upstreams)
    try:
        routes = tuple(compiler.routes())
    except UnsupportedRule as problem:
        return CompiledRoute(unsupported=str(problem), references=compiler.problem)
    return CompiledRoute(routes=routes, backends=compiler.backends, references=compiler.problem)


class _Compiler:
    """One HTTPRoute; collects backends and the first problem of a reference."""

    def __init__(
        self, route: HttpRoute, scheme: Scheme, grants: tuple[ReferenceGrant, ...], upstreams: UpstreamFacts
    ) -> None:
        self._route = route
        self._scheme = scheme
        self._grants = grants
        self._upstreams = upstreams
        self.backends: dict[str, EntryBackend] = {}
        self.problem = ReferenceProblem("", "")

    def routes(self) -> Iterable[RankedRoute]:
        """All rules.

        Raises: UnsupportedRule.
        """
        for index, rule in enumerate(self._route.spec.rules or (HttpRouteRule(),)):
            path = f"spec.rules[{index}]"
            for field, value in (("retry", rule.retry), ("sessionPersistence", rule.session_persistence)):
                if value is not None:
                    raise UnsupportedRule(f"{path}.{field}: is not supported")
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

    def _filters(self, rule: HttpRouteRule, matches: tuple[RequestMatch, ...], path: str) -> _RuleParts:
        parts = _RuleParts()
        for number, value in enumerate(rule.filters):
            field = f"{path}.filters[{number}]"
            settings = filter_of(value, field, tuple(FIELDS))
            if isinstance(settings, HttpHeaderFilter):
                if value.type == "RequestHeaderModifier":
                    parts.request_headers = header_changes(settings)
                else:
                    parts.response_headers = header_changes(settings)
            elif isinstance(settings, HttpRedirectFilter):
                field = f"{field}.requestRedirect"
                rewrite = path_rewrite(settings.path, matches, f"{field}.path")
                parts.redirect = redirect(settings, rewrite, self._scheme, field)
            elif isinstance(settings, HttpRewriteFilter):
                parts.host = settings.hostname or ""
                parts.path = path_rewrite(settings.path, matches, f"{field}.urlRewrite.path")
            elif isinstance(settings, HttpMirrorFilter):
                parts.mirrors += (self._mirror(settings, f"{field}.requestMirror"),)
        return parts

    def _action(self, rule: HttpRouteRule, filters: _RuleParts, path: str) -> Action:
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
        return Forward(
            backends=shares,
            host=filters.host,
            path=filters.path,
            mirrors=filters.mirrors,
            retry=_RETRY,
            timeout=seconds(timeouts.request, f"{path}.timeouts.request") if timeouts else None,
            attempt_timeout=seconds(timeouts.backend_request, f"{path}.timeouts.backendRequest") if timeouts else None,
        )

    def _share(self, reference: HttpBackendRef, path: str) -> WeightedBackend:
        request, response = HeaderChanges(), HeaderChanges()
        for number, value in enumerate(reference.filters):
            settings = filter_of(value, f"{path}.filters[{number}]", _BACKEND_FILTERS)
            assert isinstance(settings, HttpHeaderFilter)
            if value.type == "RequestHeaderModifier":
                request = header_changes(settings)
            else:
                response = header_changes(settings)
        return WeightedBackend(
            key=self._backend(reference, path),
            weight=reference.weight,
            request_headers=request,
            response_headers=response,
        )

    def _mirror(self, value: HttpMirrorFilter, path: str) -> Mirror:
        key = self._backend(value.backend_ref, f"{path}.backendRef")
        if value.fraction is not None:
            return Mirror(key=key, numerator=value.fraction.numerator, denominator=value.fraction.denominator)
        return Mirror(key=key, numerator=100 if value.percent is None else value.percent)

    def _backend(self, reference: BackendReference, path: str) -> str:
        """The key of a backend; one that does not exist where the reference is not followed."""
        namespace = reference.namespace or self._route.metadata.namespace
        target = ReferenceTarget(kind="Service", namespace=namespace, name=reference.name)
        problem = None
        if (reference.group, reference.kind) != ("", "Service"):
            text = f"{path}: expected a Service, got {reference.kind} of group {reference.group!r}"
            problem = ReferenceProblem("InvalidKind", text)
        elif not is_granted(self._grants, "HTTPRoute", self._route.metadata.namespace, target):
            problem = not_granted(path, target)
        else:
            result = resolve(self._upstreams, namespace, reference.name, reference.port or 0)
            if result.backend is None:
                problem = ReferenceProblem(result.reason, f"{path}: {result.problem}")
            else:
                backend = msgspec.structs.replace(result.backend, key=result.backend.key + VARIANT)
                self.backends[backend.key] = backend
                return backend.key
        self.problem = self.problem if self.problem.reason else problem
        return f"{problem.reason} {namespace}/{reference.name}:{reference.port or 0}"
