"""Filters and matches of routes as values of the route model; what cannot be served is an UnsupportedRule."""

import re

import msgspec

from podwire.gateway.api.references import ReferenceProblem
from podwire.gateway.patterns import pattern_problem
from podwire.gateway.routes import Cors, HeaderChanges, HttpRedirect, PathMatch, PathRewrite, RequestMatch, ValueMatch
from podwire.model.gatewayapi import (
    HttpCorsFilter,
    HttpHeaderFilter,
    HttpPathModifier,
    HttpRedirectFilter,
    HttpRouteFilter,
    HttpRouteMatch,
    HttpValueMatch,
)
from podwire.model.gatewayroutes import GrpcRouteFilter

_PATH_KINDS = {"Exact": "exact", "PathPrefix": "prefix", "RegularExpression": "regex"}
_WELL_KNOWN = {"http": 80, "https": 443}
_STATUSES = (301, 302, 303, 307, 308)
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(\d{1,5})(h|ms|m|s)")
FIELDS = {
    "RequestHeaderModifier": "request_header_modifier",
    "ResponseHeaderModifier": "response_header_modifier",
    "RequestRedirect": "request_redirect",
    "URLRewrite": "url_rewrite",
    "RequestMirror": "request_mirror",
    "CORS": "cors",
}
"""The filters that are served, and the attribute with the settings of each."""


class UnsupportedRule(Exception):
    """A field of a route that cannot be served; the text begins with its path."""

    def __init__(self, message: str, reason: str = "UnsupportedValue") -> None:
        super().__init__(message)
        self.problem = ReferenceProblem(reason, message)


class Scheme(msgspec.Struct, frozen=True, gc=False):
    """What clients of a listener use: http or https, and the port."""

    name: str
    port: int


def filter_of(value: HttpRouteFilter | GrpcRouteFilter, path: str, allowed: tuple[str, ...]) -> object:
    """The settings of a filter.

    Raises: UnsupportedRule.
    """
    settings = getattr(value, FIELDS[value.type]) if value.type in allowed else None
    if settings is None:
        raise UnsupportedRule(f"{path}: expected one of {', '.join(allowed)} with its settings, got {value.type!r}")
    return settings


def request_match(match: HttpRouteMatch, path: str) -> RequestMatch:
    """A match; of several headers or parameters with the same name the first counts.

    Raises: UnsupportedRule.
    """
    kind = _PATH_KINDS.get(match.path.type)
    if kind is None:
        raise UnsupportedRule(f"{path}.path.type: expected one of {', '.join(_PATH_KINDS)}, got {match.path.type!r}")
    if kind == "regex":
        check_regex(match.path.value, f"{path}.path.value")
    elif not match.path.value.startswith("/"):
        raise UnsupportedRule(f"{path}.path.value: expected a text that begins with /, got {match.path.value!r}")
    query = {parameter.name: parameter for parameter in reversed(match.query_params)}
    return RequestMatch(
        path=msgspec.convert({"kind": kind, "path": match.path.value}, PathMatch),
        method=match.method or "",
        headers=value_matches(match.headers, f"{path}.headers"),
        query=tuple(_value(parameter, f"{path}.queryParams") for parameter in reversed(query.values())),
    )


def value_matches(headers: tuple[HttpValueMatch, ...], path: str) -> tuple[ValueMatch, ...]:
    """Matches of headers.

    Raises: UnsupportedRule.
    """
    by_name = {header.name.lower(): header for header in reversed(headers)}
    return tuple(_value(header, path) for header in reversed(by_name.values()))


def _value(match: HttpValueMatch, path: str) -> ValueMatch:
    if match.type == "RegularExpression":
        check_regex(match.value, f"{path}[{match.name}].value")
        return ValueMatch(name=match.name, kind="regex", value=match.value)
    if match.type != "Exact":
        raise UnsupportedRule(f"{path}[{match.name}].type: expected Exact or RegularExpression, got {match.type!r}")
    return ValueMatch(name=match.name, value=match.value)


def check_regex(text: str, path: str) -> None:
    """Refuses a regular expression that engines cannot have.

    Raises: UnsupportedRule.
    """
    if problem := pattern_problem(text):
        raise UnsupportedRule(f"{path}: {text!r} is no regular expression of RE2: {problem}")


def header_changes(value: HttpHeaderFilter) -> HeaderChanges:
    """The changes of headers."""
    return HeaderChanges(
        set=tuple((header.name, header.value) for header in value.set),
        add=tuple((header.name, header.value) for header in value.add),
        remove=value.remove,
    )


def cors(value: HttpCorsFilter) -> Cors:
    """Which origins may read answers. With credentials browsers take no ``*``: what they ask for is named."""
    wild = value.allow_credentials and "*" in (*value.allow_methods, *value.allow_headers)
    return Cors(
        origins=value.allow_origins,
        methods=value.allow_methods,
        headers=value.allow_headers,
        expose_headers=value.expose_headers,
        credentials=value.allow_credentials,
        max_age=value.max_age,
        echo=wild,
        forward_others=False,
    )


def path_rewrite(value: HttpPathModifier | None, matches: tuple[RequestMatch, ...], path: str) -> PathRewrite | None:
    """The new path; a prefix can be replaced only where all matches are prefixes.

    Raises: UnsupportedRule.
    """
    if value is None:
        return None
    if value.type == "ReplaceFullPath":
        return PathRewrite(kind="full", replacement=value.replace_full_path or "/")
    if value.type != "ReplacePrefixMatch":
        raise UnsupportedRule(f"{path}.type: expected ReplaceFullPath or ReplacePrefixMatch, got {value.type!r}")
    if any(match.path.kind != "prefix" for match in matches):
        raise UnsupportedRule(f"{path}.type: ReplacePrefixMatch needs matches of type PathPrefix")
    return PathRewrite(kind="prefix", replacement=value.replace_prefix_match or "/")


def redirect(value: HttpRedirectFilter, rewrite: PathRewrite | None, scheme: Scheme, path: str) -> HttpRedirect:
    """A redirect of clients that came by a scheme; a port that follows from the scheme is left out.

    Raises: UnsupportedRule.
    """
    if value.status_code not in _STATUSES:
        raise UnsupportedRule(f"{path}.statusCode: expected one of {_STATUSES}, got {value.status_code}")
    target = value.scheme or scheme.name
    if target not in _WELL_KNOWN:
        raise UnsupportedRule(f"{path}.scheme: expected http or https, got {target!r}")
    port = value.port or (_WELL_KNOWN[target] if value.scheme else scheme.port)
    is_known = port == _WELL_KNOWN[target] and scheme.port in _WELL_KNOWN.values()
    return HttpRedirect(
        status=value.status_code,
        scheme=value.scheme or "",
        host=value.hostname or "",
        port=0 if is_known else port,
        path=rewrite,
    )


def seconds(text: str | None, path: str) -> float | None:
    """A duration in seconds, None where there is none or where it is no limit.

    Raises: UnsupportedRule.
    """
    if text is None:
        return None
    if not re.fullmatch(f"({_DURATION.pattern}){{1,4}}", text):
        raise UnsupportedRule(f"{path}: expected a duration such as 10s or 1m30s, got {text!r}")
    return sum(int(number) * _UNITS_S[unit] for number, unit in _DURATION.findall(text)) or None
