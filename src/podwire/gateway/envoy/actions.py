"""The action of a route as Envoy's JSON: forward, redirect, direct answer, and filters that are on for a route."""

import re

from podwire.gateway.envoy.clusters import Json, duration, typed
from podwire.gateway.routes import (
    Cookie,
    Cors,
    EntryBackend,
    EntryRoute,
    FixedAnswer,
    Forward,
    HeaderChanges,
    HttpRedirect,
    PathMatch,
    PathRewrite,
    RequestRate,
    Retry,
    RouteLimits,
    Session,
    WeightedBackend,
)

FAILED_STATUSES = (500, 503)
"""Statuses of shares without a backend; a cluster of that name answers with each."""

_CLIENTS = 10_000
"""Addresses of clients whose requests are counted, for each route with a rate."""
_ENOUGH = 2**32 - 1
"""Requests of all clients together, of which the engine wants to know a limit."""
_REDIRECT_CODES = {
    301: "MOVED_PERMANENTLY",
    302: "FOUND",
    303: "SEE_OTHER",
    307: "TEMPORARY_REDIRECT",
    308: "PERMANENT_REDIRECT",
}


def failing_cluster(status: int) -> str:
    """The cluster that answers every request with a status."""
    return f"answer-{status}"


def forward(action: Forward, path: PathMatch, backends: dict[str, EntryBackend]) -> Json:
    """The keys of a route that forwards: ``route``, or ``directResponse`` when no share has a backend."""
    served = [share for share in action.backends if share.weight > 0]
    if not any(share.key in backends for share in served):
        status = served[0].missing_status if served else 500
        return {"directResponse": {"status": status}}
    route: Json = {"timeout": duration(action.timeout or 0)}
    if len(served) == 1 and not _changes(served[0]):
        route["cluster"] = served[0].key
    else:
        route["weightedClusters"] = {"clusters": [_share(share, backends) for share in served]}
        if action.keeps_share:
            route["weightedClusters"]["useHashPolicy"] = True
    if action.host:
        route["hostRewriteLiteral"] = action.host
    if action.path is not None:
        route |= _rewrite(action.path, path, redirect=False)
    if action.retry is not None or action.attempt_timeout:
        route["retryPolicy"] = _retry(
            action.retry or Retry(attempts=0, on_connection_error=False), action.attempt_timeout
        )
    mirrors = [mirror for mirror in action.mirrors if mirror.key in backends]
    if mirrors:
        route["requestMirrorPolicies"] = [
            {
                "cluster": mirror.key,
                "runtimeFraction": {"defaultValue": _fraction(mirror.numerator, mirror.denominator)},
                "disableShadowHostSuffixAppend": True,
                **({"hostRewriteLiteral": mirror.host} if mirror.host else {}),
            }
            for mirror in mirrors
        ]
    if action.cookie is not None:
        route["hashPolicy"] = [{"cookie": _cookie(action.cookie)}]
    elif action.hash_on:
        route["hashPolicy"] = [_hash_policy(action.hash_on)]
    return {"route": route}


def redirect(action: HttpRedirect, path: PathMatch) -> Json:
    """The keys of a route that redirects."""
    if action.location:
        header = {"key": "location", "value": action.location.replace("%", "%%")}
        headers = [{"header": header, "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD"}]
        return {"directResponse": {"status": action.status}, "responseHeadersToAdd": headers}
    value: Json = {"responseCode": _REDIRECT_CODES[action.status]}
    if action.scheme:
        value["schemeRedirect"] = action.scheme
    if action.host:
        value["hostRedirect"] = action.host
    if action.port:
        value["portRedirect"] = action.port
    if action.path is not None:
        value |= _rewrite(action.path, path, redirect=True)
    return {"redirect": value}


def answer(action: FixedAnswer) -> Json:
    """The keys of a route that answers by itself."""
    body = {"body": {"inlineString": action.body}} if action.body else {}
    return {"directResponse": {"status": action.status, **body}}


def header_keys(request: HeaderChanges, response: HeaderChanges) -> Json:
    """The keys that change headers of a route or of a share of it."""
    value: Json = {}
    for prefix, changes in (("request", request), ("response", response)):
        entries = [(header, "OVERWRITE_IF_EXISTS_OR_ADD") for header in changes.set]
        entries += [(header, "APPEND_IF_EXISTS_OR_ADD") for header in changes.add]
        if entries:
            value[f"{prefix}HeadersToAdd"] = [
                {"header": {"key": name, "value": text.replace("%", "%%")}, "appendAction": action}
                for (name, text), action in entries
            ]
        if changes.remove:
            value[f"{prefix}HeadersToRemove"] = list(changes.remove)
    return value


_CLIENT_HEADERS = {
    "ssl-client-verify": "SUCCESS",
    "ssl-client-subject-dn": "%DOWNSTREAM_PEER_SUBJECT%",
    "ssl-client-issuer-dn": "%DOWNSTREAM_PEER_ISSUER%",
    "ssl-client-cert": "%DOWNSTREAM_PEER_CERT%",
}
"""The headers that tell a backend of the client's certificate; clients cannot send them."""


def client_headers(route: EntryRoute) -> Json:
    """The keys that tell a backend of the client's certificate; only one that was checked is called so."""
    if not route.tells_client:
        return {}
    left_out = {"ssl-client-cert"} if route.tells_client == "subject" else set()
    left_out |= set() if route.limits.server_names else {"ssl-client-verify"}
    added = [
        {"header": {"key": name, "value": text}, "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD"}
        for name, text in _CLIENT_HEADERS.items()
        if name not in left_out
    ]
    return {"requestHeadersToRemove": list(_CLIENT_HEADERS), "requestHeadersToAdd": added}


def filters_of_route(limits: RouteLimits) -> Json:
    """What a route has of the filters that are off elsewhere, by the name of the filter."""
    value: Json = {}
    rules: Json = {}
    if limits.allow or limits.deny or limits.server_names:
        rules["rules"] = _source_ranges(limits)
    if limits.rate is not None and limits.rate.exempt:
        rules |= _counted(limits.rate.exempt)
    if rules:
        value["source-ranges"] = typed("envoy.extensions.filters.http.rbac.v3.RBACPerRoute", rbac=rules)
    if limits.basic_auth is not None and limits.basic_auth.users is not None:
        value["basic-auth"] = typed(
            "envoy.extensions.filters.http.basic_auth.v3.BasicAuthPerRoute",
            users={"inlineString": limits.basic_auth.users},
        )
    if limits.cors is not None:
        value["cors"] = _cors(limits.cors)
    if limits.body_bytes and not limits.body_streams:
        value["body-limit"] = typed(
            "envoy.extensions.filters.http.buffer.v3.BufferPerRoute", buffer={"maxRequestBytes": limits.body_bytes}
        )
    if limits.rate is not None:
        value["rate-limit"] = _rate_limit(limits.rate)
    return value


def _rate_limit(rate: RequestRate) -> Json:
    """A bucket for each address of a client, made when it comes; those that were not used for longest are forgotten."""
    bucket = {
        "maxTokens": rate.burst,
        "tokensPerFill": rate.requests,
        "fillInterval": duration(rate.interval),
    }
    actions: list[Json] = [{"remoteAddress": {}}]
    entries: list[Json] = [{"key": "remote_address"}]
    if rate.exempt:
        place = {"key": "envoy.filters.http.rbac", "path": [{"key": f"{_COUNTED}_shadow_effective_policy_id"}]}
        actions.append({"metadata": {"descriptorKey": _COUNTED, "metadataKey": place, "source": "DYNAMIC"}})
        entries.append({"key": _COUNTED, "value": _COUNTED})
    return typed(
        "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
        statPrefix="rate_limit",
        status={"code": rate.status},
        tokenBucket={"maxTokens": _ENOUGH, "tokensPerFill": _ENOUGH, "fillInterval": "1s"},
        rateLimits=[{"actions": actions}],
        descriptors=[{"entries": entries, "tokenBucket": bucket}],
        maxDynamicDescriptors=_CLIENTS,
        filterEnabled=_always("rate_limit_enabled"),
        filterEnforced=_always("rate_limit_enforced"),
    )


_COUNTED = "counted"
"""Marks requests whose rate is limited; those without the mark have no bucket."""


def _counted(exempt: tuple[str, ...]) -> Json:
    """Rules that keep nobody away, and mark requests of addresses that are not exempt."""
    counted_addresses: Json = {"notId": {"orIds": {"ids": [_source(network) for network in exempt]}}}
    policies = {_COUNTED: {"permissions": [{"any": True}], "principals": [counted_addresses]}}
    return {"shadowRules": {"action": "ALLOW", "policies": policies}, "shadowRulesStatPrefix": f"{_COUNTED}_"}


def session_filter(session: Session) -> Json:
    """The filter that keeps a client at its endpoint, for a route."""
    prefix = "envoy.extensions.http.stateful_session."
    if session.kind == "header":
        state = typed(f"{prefix}header.v3.HeaderBasedSessionState") | {"name": session.name}
    else:
        cookie: Json = {"name": session.name, "path": "/"}
        cookie |= {"ttl": duration(session.ttl)} if session.ttl else {}
        state = typed(f"{prefix}cookie.v3.CookieBasedSessionState", cookie=cookie)
    return typed(
        "envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute",
        statefulSession={"sessionState": {"name": f"envoy.http.stateful_session.{session.kind}", "typedConfig": state}},
    )


def _always(key: str) -> Json:
    return {"runtimeKey": key, "defaultValue": {"numerator": 100, "denominator": "HUNDRED"}}


def _changes(share: WeightedBackend) -> bool:
    return share.request_headers != HeaderChanges() or share.response_headers != HeaderChanges()


def _share(share: WeightedBackend, backends: dict[str, EntryBackend]) -> Json:
    name = share.key if share.key in backends else failing_cluster(share.missing_status)
    return {"name": name, "weight": share.weight, **header_keys(share.request_headers, share.response_headers)}


def _rewrite(rewrite: PathRewrite, path: PathMatch, *, redirect: bool) -> Json:
    if rewrite.kind == "regex":
        return {"regexRewrite": {"pattern": {"regex": rewrite.pattern}, "substitution": rewrite.replacement}}
    if rewrite.kind == "full":
        if redirect:
            return {"pathRedirect": rewrite.replacement}
        return {"regexRewrite": {"pattern": {"regex": "^.*$"}, "substitution": _literal(rewrite.replacement)}}
    prefix = re.escape(path.path.rstrip("/"))
    replacement = rewrite.replacement.rstrip("/")
    if replacement and path.path.rstrip("/"):
        return {"regexRewrite": {"pattern": {"regex": f"^{prefix}"}, "substitution": _literal(replacement)}}
    if replacement:
        return {"regexRewrite": {"pattern": {"regex": "^/*"}, "substitution": _literal(replacement) + "/"}}
    return {"regexRewrite": {"pattern": {"regex": f"^{prefix}/*"}, "substitution": "/"}}


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\")


def _retry(retry: Retry, attempt_timeout: float | None) -> Json:
    conditions = ["connect-failure", "refused-stream", "reset-before-request"] if retry.on_connection_error else []
    conditions += ["reset"] if retry.on_reset else []
    conditions += ["retriable-status-codes"] if retry.on_codes else []
    value: Json = {"retryOn": ",".join(conditions), "numRetries": retry.attempts}
    if retry.on_codes:
        value["retriableStatusCodes"] = list(retry.on_codes)
    if retry.backoff:
        value["retryBackOff"] = {"baseInterval": duration(retry.backoff), "maxInterval": duration(retry.backoff * 10)}
    if attempt_timeout:
        value["perTryTimeout"] = duration(attempt_timeout)
    if retry.attempts:
        value["retryHostPredicate"] = [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typedConfig": typed("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"),
            }
        ]
        value["hostSelectionRetryMaxAttempts"] = 3
    return value


def _fraction(numerator: int, denominator: int) -> Json:
    """A share in millionths, which is the finest that Envoy has."""
    return {"numerator": round(numerator * 1_000_000 / denominator), "denominator": "MILLION"}


def _cookie(cookie: Cookie) -> Json:
    value: Json = {"name": cookie.name, "path": cookie.path, "ttl": duration(cookie.ttl or 0)}
    if cookie.attributes:
        value["attributes"] = [{"name": name, "value": text} for name, text in cookie.attributes]
    return value


def _hash_policy(source: str) -> Json:
    if source == "source":
        return {"connectionProperties": {"sourceIp": True}}
    name = ":path" if source == "path" else source.removeprefix("header:")
    return {"header": {"headerName": name}}


def _source_ranges(limits: RouteLimits) -> Json:
    denied = [_source(network) for network in limits.deny]
    allowed = [_source(network) for network in limits.allow]
    rules: list[Json] = [{"orIds": {"ids": allowed}}] if allowed else []
    rules += [{"notId": {"orIds": {"ids": denied}}}] if denied else []
    principal: Json = {"andIds": {"ids": rules}} if rules else {"any": True}
    names = [_server_name(name) for name in limits.server_names]
    permission: Json = {"orRules": {"rules": names}} if names else {"any": True}
    return {"action": "ALLOW", "policies": {"source": {"permissions": [permission], "principals": [principal]}}}


def _server_name(name: str) -> Json:
    """Connections with a server name; ``*`` stands for one label."""
    if name.startswith("*."):
        pattern = rf"(?i)[^.]+{re.escape(name[1:])}"
        return {"requestedServerName": {"safeRegex": {"regex": pattern}}}
    return {"requestedServerName": {"exact": name, "ignoreCase": True}}


def _source(network: str) -> Json:
    address, _, length = network.partition("/")
    return {"remoteIp": {"addressPrefix": address, "prefixLen": int(length)}}


def _cors(cors: Cors) -> Json:
    value = typed(
        "envoy.extensions.filters.http.cors.v3.CorsPolicy",
        allowOriginStringMatch=[_origin(origin) for origin in cors.origins],
        allowMethods=", ".join(cors.methods),
        allowHeaders=", ".join(cors.headers),
        exposeHeaders=", ".join(cors.expose_headers),
        allowCredentials=cors.credentials,
    )
    if cors.max_age is not None:
        value["maxAge"] = str(cors.max_age)
    if not cors.forward_others:
        value["forwardNotMatchingPreflights"] = False
    return value


def _origin(origin: str) -> Json:
    if "*" not in origin:
        return {"exact": origin}
    return {"safeRegex": {"regex": ".*".join(re.escape(part) for part in origin.split("*"))}}
