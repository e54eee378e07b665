"""Routes of the route model as rules of HTTPRoutes, as JSON: pure.

What a rule cannot say is a text that the caller reports with the path that it belongs to.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from podwire.gateway.routes import (
    EntryBackend,
    EntryRoute,
    Forward,
    HeaderChanges,
    HttpRedirect,
    PathMatch,
    RequestMatch,
    ValueMatch,
)

Json = dict[str, Any]
_KINDS = {"exact": "Exact", "prefix": "PathPrefix", "regex": "RegularExpression"}
_SUBPATHS = re.compile(r"(?P<prefix>/[\w.~/-]*?)(?:\(/\|\$\)\(\.\*\)|/?\(\.\*\))\.\*")
"""A path such as ``/api(/|$)(.*)``: everything below a prefix."""


class RuleProblem(Exception):
    """A route that no rule can stand for; nothing of it is carried over."""


def rule_of(route: EntryRoute, backends: Mapping[str, EntryBackend], namespace: str) -> tuple[Json, tuple[str, ...]]:
    """The rule of a route in a namespace, and what it cannot say.

    Raises: RuleProblem.
    """
    action = route.action
    problems: list[str] = []
    filters: list[Json] = []
    rule: Json = {}
    path = route.match.path
    if isinstance(action, Forward):
        path, rewrite = _rewrite(action, path)
        modifiers = {"requestHeaderModifier": route.request_headers, "responseHeaderModifier": route.response_headers}
        filters += [entry for name, changes in modifiers.items() for entry in _modifier(name, changes)]
        filters += [{"type": "URLRewrite", "urlRewrite": rewrite}] if rewrite else []
        rule["backendRefs"], problems = _references(action, backends, namespace)
        if action.timeout:
            rule["timeouts"] = {"request": _duration(action.timeout)}
    elif isinstance(action, HttpRedirect):
        redirect, problems = _redirect(action)
        filters.append({"type": "RequestRedirect", "requestRedirect": redirect})
    else:
        raise RuleProblem(f"is answered with {action.status} by the gateway itself, which no rule can do")
    if path.kind == "regex" and path.ignore_case:
        problems.append("is a regular expression, which other gateways may read differently")
    rule["matches"] = [_match(route.match, path)]
    if filters:
        rule["filters"] = filters
    return rule, tuple(problems)


def _match(match: RequestMatch, path: PathMatch) -> Json:
    value = f"(?i){path.path}" if path.ignore_case else path.path
    result: Json = {"path": {"type": _KINDS[path.kind], "value": value}}
    if match.method:
        result["method"] = match.method
    if match.headers:
        result["headers"] = [_value(header) for header in match.headers]
    if match.query:
        result["queryParams"] = [_value(parameter) for parameter in match.query]
    return result


def _value(match: ValueMatch) -> Json:
    if match.kind == "exact":
        return {"name": match.name, "value": match.value}
    return {"type": "RegularExpression", "name": match.name, "value": match.value or ".*"}


def _modifier(name: str, changes: HeaderChanges) -> Iterable[Json]:
    value: Json = {
        key: [{"name": header, "value": text} for header, text in pairs]
        for key, pairs in (("set", changes.set), ("add", changes.add))
        if pairs
    }
    if changes.remove:
        value["remove"] = list(changes.remove)
    if value:
        yield {"type": name[0].upper() + name[1:], name: value}


def _rewrite(action: Forward, path: PathMatch) -> tuple[PathMatch, Json]:
    """The path that is matched, and the rewrite of a rule.

    Raises: RuleProblem for a replacement with groups that is not everything below a prefix.
    """
    result: Json = {"hostname": action.host} if action.host else {}
    rewrite = action.path
    if rewrite is None:
        return path, result
    replacement = rewrite.replacement
    if not re.search(r"\\\d", replacement):
        return path, result | {
            "path": {"type": "ReplaceFullPath", "replaceFullPath": replacement.replace("\\\\", "\\")}
        }
    subpaths = _SUBPATHS.fullmatch(path.path)
    group = "2" if "(/|$)" in path.path else "1"
    if subpaths is None or replacement not in (f"/\\{group}", f"\\{group}"):
        raise RuleProblem(f"is rewritten to {replacement!r} with groups, which no rule can do")
    matched = PathMatch(kind="prefix", path=subpaths["prefix"].rstrip("/") or "/")
    return matched, result | {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}


def _references(action: Forward, backends: Mapping[str, EntryBackend], namespace: str) -> tuple[list[Json], list[str]]:
    references, problems = [], []
    for share in action.backends:
        service, _, port = share.key.partition("#")[0].rpartition(":")
        owner, _, name = service.partition("/")
        if not port.isdigit():
            raise RuleProblem(f"goes to port {port!r} of Service {service}, whose number is not known here")
        reference: Json = {"name": name, "port": int(port)}
        if owner != namespace:
            reference["namespace"] = owner
            problems.append(f"needs a ReferenceGrant for Service {service}, which is in another namespace")
        if len(action.backends) > 1:
            reference["weight"] = share.weight
        references.append(reference)
        backend = backends.get(share.key)
        if backend is not None and backend.tls:
            problems.append(f"needs a BackendTLSPolicy for Service {service}, whose endpoints want TLS")
        elif backend is not None and backend.protocol == "h2c" and "#grpc" in share.key:
            problems.append(f"needs appProtocol kubernetes.io/h2c at port {port} of Service {service}")
    return references, problems


def _duration(seconds: float) -> str:
    """A duration in the form of Gateway API, whose numbers have at most five digits."""
    if seconds < 99 and seconds != int(seconds):
        return f"{max(round(seconds * 1000), 1)}ms"
    whole = round(seconds)
    return f"{whole}s" if whole < 100_000 else f"{min(whole // 3600, 99_999)}h"


def _redirect(action: HttpRedirect) -> tuple[Json, list[str]]:
    problems: list[str] = []
    value: Json = {"statusCode": action.status}
    scheme, host, port, path = action.scheme, action.host, action.port, ""
    if action.location:
        parts = urlsplit(action.location)
        scheme, host, port, path = parts.scheme, parts.hostname or "", parts.port or 0, parts.path or "/"
        if parts.query or parts.fragment:
            problems.append(f"redirects to {action.location!r}, whose query is lost")
    elif action.path is not None and action.path.kind == "full":
        path = action.path.replacement
    elif action.path is not None:
        problems.append("redirects with the slash at the end of the path, which ingress-nginx takes away")
    value |= {"scheme": scheme} if scheme else {}
    value |= {"hostname": host} if host else {}
    value |= {"port": port} if port else {}
    value |= {"path": {"type": "ReplaceFullPath", "replaceFullPath": path}} if path else {}
    return value, problems
