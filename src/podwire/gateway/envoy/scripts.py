"""Filters in Lua: their programs stand with the hosts or the table that use them, what a route says in its metadata.

A chain of filters with a program of its own makes an interpreter in each thread of the engine, 200 KB each. Hosts with
a certificate have a chain each, and few of them use such a filter: so chains have these filters without a program. A
host brings it in the same resource as the routes that use it: no route is served without. Its other routes turn the
filter off.
"""

from podwire.gateway.envoy.clusters import Json, typed
from podwire.gateway.envoy.corsanswer import CORS_ANSWER_PROGRAM, cors_metadata
from podwire.gateway.envoy.erroranswers import ERROR_ANSWERS_PROGRAM, error_metadata
from podwire.gateway.envoy.externalauth import EXTERNAL_AUTH_PROGRAM, auth_metadata
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.routes import EntryRoute

CORS_ANSWER, ERROR_ANSWERS, EXTERNAL_AUTH = "cors-answer", "error-answers", "external-auth"
FIRST_HOST = "first-forwarded-host"
PROGRAMS = {
    CORS_ANSWER: CORS_ANSWER_PROGRAM,
    ERROR_ANSWERS: ERROR_ANSWERS_PROGRAM,
    EXTERNAL_AUTH: EXTERNAL_AUTH_PROGRAM,
}
_FIRST_HOST_PROGRAM = """
function envoy_on_request(handle)
  local hosts = handle:headers():get("x-forwarded-host")
  local first = hosts and hosts:match("^%s*([^,]-)%s*,")
  if first then
    handle:headers():replace("x-forwarded-host", first)
  end
end
"""
"""Of several hosts that trusted proxies name, the first is the one that the client asked for."""
OFF: Json = typed("envoy.config.route.v3.FilterConfig", disabled=True)


def script_filter(name: str, *, always: bool = False) -> Json:
    """A filter without a program; without ``always`` it is off where no host turns it on."""
    value: Json = {"name": name, "typedConfig": typed("envoy.extensions.filters.http.lua.v3.Lua")}
    return value if always else value | {"disabled": True}


def program(text: str) -> Json:
    """What a host or a table has of a filter."""
    return typed("envoy.extensions.filters.http.lua.v3.LuaPerRoute", sourceCode={"inlineString": text})


def programs_of_table(settings: EngineSettings) -> Json:
    """The programs for all hosts of a table, by the name of the filter."""
    return {FIRST_HOST: program(_FIRST_HOST_PROGRAM)} if settings.trusted_networks else {}


def script_metadata(route: EntryRoute) -> Json:
    """What a route tells the programs that it uses, by the name of the filter."""
    cors, auth = route.limits.cors, route.limits.external_auth
    value: Json = {}
    if cors is not None and (cors.echo or cors.expose_headers):
        value[CORS_ANSWER] = cors_metadata(cors)
    if route.errors is not None:
        value[ERROR_ANSWERS] = error_metadata(route.errors)
    if auth is not None:
        value[EXTERNAL_AUTH] = auth_metadata(auth)
    return value
