"""Route tables as Envoy's JSON: virtual hosts, routes, matches."""

import re
from collections.abc import Set

from podwire.gateway.envoy import actions
from podwire.gateway.envoy.clusters import ADS, Json
from podwire.gateway.envoy.scripts import OFF, PROGRAMS, program, programs_of_table, script_metadata
from podwire.gateway.envoy.settings import REPEAT_HEADER, EngineSettings
from podwire.gateway.routes import (
    EntryBackend,
    EntryRoute,
    FixedAnswer,
    Forward,
    PathMatch,
    RequestMatch,
    ValueMatch,
    VirtualHost,
)

NOWHERE = "invalid"
"""A host that nobody can have (RFC 2606, section 2)."""


def table_resource(table: str) -> str:
    """The name of a table among the engine's resources."""
    return f"{table}/hosts"


def host_resource(table: str, host: str) -> str:
    """The name of a virtual host among the engine's resources; that of its table stands before the last slash."""
    return f"{table_resource(table)}/{host}"


def table_of(resource: str) -> str:
    """The table of a resource that is a table or a virtual host."""
    table, separator, _ = resource.rpartition("/hosts/")
    return table if separator else resource.removesuffix("/hosts")


def route_table(table: str, settings: EngineSettings) -> Json:
    """A RouteConfiguration without hosts: those come by their own resources.

    Engines wait with a new table until they have one of its hosts.
    """
    programs = programs_of_table(settings)
    return {
        **({"typedPerFilterConfig": programs} if programs else {}),
        "name": table_resource(table),
        "vhds": {"configSource": ADS},
        "ignorePortInHostMatching": True,
        "validateClusters": False,
        "mostSpecificHeaderMutationsWins": True,
    }


def nowhere(table: str) -> Json:
    """The virtual host that every table has, also one without others: nothing is served there."""
    return {"name": host_resource(table, NOWHERE), "domains": [NOWHERE]}


def virtual_host(
    table: str, host: VirtualHost, everywhere: VirtualHost | None, backends: dict[str, EntryBackend]
) -> Json:
    """A virtual host. Envoy's ``*`` stands for any number of labels.

    Where it may stand for one label only, the routes ask for that, and behind them come the routes of all hosts.
    """
    wildcard = any(name.startswith("*") for name in host.hosts)
    one_label = _is_one_label(host)
    routes_for_all = everywhere.routes if one_label and everywhere is not None else ()
    used = {name for route in (*host.routes, *routes_for_all) for name in script_metadata(route)}
    routes = [_without(used, _REFUSED)] if wildcard else []
    for route in host.routes:
        routes += _routes(route, backends, host.hosts[0] if one_label else "", used)
    for route in routes_for_all:
        routes += _routes(route, backends, "", used)
    programs = {name: program(text) for name, text in PROGRAMS.items() if name in used}
    return {
        "name": host_resource(table, host.hosts[0]),
        "domains": list(host.hosts),
        "routes": routes,
        **({"typedPerFilterConfig": programs} if programs else {}),
    }


def backend_keys(host: VirtualHost, everywhere: VirtualHost | None) -> frozenset[str]:
    """The backends that the routes of a virtual host name."""
    routes = (*host.routes, *(everywhere.routes if everywhere is not None and _is_one_label(host) else ()))
    keys: set[str] = set()
    for action in (route.action for route in routes):
        if isinstance(action, Forward):
            keys |= {share.key for share in action.backends} | {mirror.key for mirror in action.mirrors}
    return frozenset(keys)


def _is_one_label(host: VirtualHost) -> bool:
    """Whether the ``*`` of a host stands for one label."""
    return host.single_label and "*" not in host.hosts and any(name.startswith("*") for name in host.hosts)


_REFUSED: Json = {
    "name": "two hosts",
    "match": {"prefix": "/", "headers": [{"name": ":authority", "stringMatch": {"contains": ","}}]},
    "directResponse": {"status": 400},
}
"""Two Host headers arrive as one with a comma: a request that two proxies could read in two ways."""


def _without(scripts: Set[str], route: Json) -> Json:
    """A route that turns off what its host has turned on for others."""
    return route | {"typedPerFilterConfig": dict.fromkeys(sorted(scripts), OFF)} if scripts else route


def _routes(route: EntryRoute, backends: dict[str, EntryBackend], single_label: str, scripts: Set[str]) -> list[Json]:
    """One route, or two: where bodies are not held, one refuses what is too long by its Content-Length."""
    plain = _route(route, backends, single_label, scripts)
    if not (route.limits.body_bytes and route.limits.body_streams and isinstance(route.action, Forward)):
        return [plain]
    longer = {"start": str(route.limits.body_bytes + 1), "end": str(2**63 - 1)}
    headers = [*plain["match"].get("headers", ()), {"name": "content-length", "rangeMatch": longer}]
    match = plain["match"] | {"headers": headers}
    return [_without(scripts, {"name": plain["name"], "match": match, "directResponse": {"status": 413}}), plain]


def _route(route: EntryRoute, backends: dict[str, EntryBackend], single_label: str, scripts: Set[str]) -> Json:
    match = _match(route.match)
    if single_label:
        pattern = r"(?i)^[^.:]+" + re.escape(single_label[1:]) + r"(:\d+)?$"
        match.setdefault("headers", []).append({"name": ":authority", "stringMatch": {"safeRegex": {"regex": pattern}}})
    value: Json = {"name": route.source, "match": match, **_action(route, backends)}
    for keys in (actions.header_keys(route.request_headers, route.response_headers), actions.client_headers(route)):
        for key, changes in keys.items():
            value[key] = value.get(key, []) + changes
    if "route" in value and not _repeats(route):
        value["requestHeadersToRemove"] = [*value.get("requestHeadersToRemove", ()), REPEAT_HEADER]
    metadata = script_metadata(route)
    filters = dict.fromkeys(sorted(scripts - metadata.keys()), OFF) | _filters(route)
    if route.limits.basic_auth is not None:
        metadata["podwire.io"] = {"realm": route.limits.basic_auth.realm}
    if metadata:
        value["metadata"] = {"filterMetadata": metadata}
    if filters:
        value["typedPerFilterConfig"] = filters
    return value


def _filters(route: EntryRoute) -> Json:
    """What a route has of the filters that are off elsewhere, by the name of the filter."""
    filters = actions.filters_of_route(route.limits)
    if isinstance(route.action, Forward) and route.action.session is not None:
        filters["session"] = actions.session_filter(route.action.session)
    return filters


def _repeats(route: EntryRoute) -> bool:
    """Whether requests that may be repeated are, also when the endpoint closed after it got them."""
    retry = route.action.retry if isinstance(route.action, Forward) else None
    return retry is not None and retry.on_connection_error


def _action(route: EntryRoute, backends: dict[str, EntryBackend]) -> Json:
    if isinstance(route.action, Forward):
        return actions.forward(route.action, route.match.path, backends)
    if isinstance(route.action, FixedAnswer):
        return actions.answer(route.action)
    return actions.redirect(route.action, route.match.path)


def _match(match: RequestMatch) -> Json:
    value = _path(match.path)
    headers = [_header(header) for header in match.headers]
    if match.method:
        headers.append({"name": ":method", "stringMatch": {"exact": match.method}})
    if headers:
        value["headers"] = headers
    if match.query:
        value["queryParameters"] = [_parameter(parameter) for parameter in match.query]
    return value


def _path(match: PathMatch) -> Json:
    if match.kind == "exact":
        return {"path": match.path}
    if match.kind == "regex":
        return {"safeRegex": {"regex": f"(?i){match.path}" if match.ignore_case else match.path}}
    prefix = match.path.rstrip("/")
    return {"pathSeparatedPrefix": prefix} if prefix else {"prefix": "/"}


def _header(match: ValueMatch) -> Json:
    if match.kind == "present":
        return {"name": match.name, "presentMatch": True}
    return {"name": match.name, "stringMatch": _text(match)}


def _parameter(match: ValueMatch) -> Json:
    if match.kind == "present":
        return {"name": match.name, "presentMatch": True}
    return {"name": match.name, "stringMatch": _text(match)}


def _text(match: ValueMatch) -> Json:
    return {"safeRegex": {"regex": match.value}} if match.kind == "regex" else {"exact": match.value}
