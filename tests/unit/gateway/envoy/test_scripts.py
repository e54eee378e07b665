"""Programs in Lua stand where they are used: chains of filters have none, and no route that needs one goes without."""

import json

import pytest

from podwire.gateway.envoy.listeners import listener
from podwire.gateway.envoy.resources import HOST, ROUTES, resources
from podwire.gateway.envoy.scripts import CORS_ANSWER, ERROR_ANSWERS, EXTERNAL_AUTH, FIRST_HOST, OFF
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.tables import host_resource, table_resource
from podwire.gateway.routes import (
    Cors,
    EntryListener,
    EntryRoute,
    ErrorAnswers,
    ExternalAuth,
    Forward,
    GatewayEntry,
    RequestMatch,
    RouteLimits,
    RouteTable,
    TlsServer,
    VirtualHost,
)

_FORWARD = Forward(backends=())
_PLAIN = EntryRoute(source="plain", match=RequestMatch(), action=_FORWARD, limits=RouteLimits(body_bytes=1))
_STREAMED = EntryRoute(
    source="streamed", match=RequestMatch(), action=_FORWARD, limits=RouteLimits(body_bytes=1, body_streams=True)
)
_USERS = {
    CORS_ANSWER: EntryRoute(
        source="cors", match=RequestMatch(), action=_FORWARD, limits=RouteLimits(cors=Cors(echo=True))
    ),
    ERROR_ANSWERS: EntryRoute(
        source="errors", match=RequestMatch(), action=_FORWARD, errors=ErrorAnswers(backend="b", statuses=(404,))
    ),
    EXTERNAL_AUTH: EntryRoute(
        source="auth",
        match=RequestMatch(),
        action=_FORWARD,
        limits=RouteLimits(external_auth=ExternalAuth(backend="b", host="b.example")),
    ),
}


@pytest.mark.parametrize("name", _USERS)
def test_a_host_has_the_programs_that_its_routes_use(name: str) -> None:
    hosts = (
        VirtualHost(hosts=("*.example",), routes=(_PLAIN, _STREAMED, _USERS[name])),
        VirtualHost(hosts=("other.example",), routes=(_PLAIN,)),
    )
    table = RouteTable(name="web", hosts=hosts)
    made = resources(GatewayEntry(tables={"web": table}), EngineSettings())[HOST]
    host, other = (made[host_resource("web", name)] for name in ("*.example", "other.example"))
    assert "inlineString" in host["typedPerFilterConfig"][name]["sourceCode"]
    assert [route.get("typedPerFilterConfig", {}).get(name) for route in host["routes"]] == [*[OFF] * 4, None]
    assert name in host["routes"][-1]["metadata"]["filterMetadata"]
    assert "typedPerFilterConfig" not in other
    assert name not in json.dumps(other)


def test_a_wildcard_has_the_programs_of_the_host_for_all() -> None:
    hosts = (
        VirtualHost(hosts=("*.example",), routes=(_PLAIN,), single_label=True),
        VirtualHost(hosts=("*",), routes=tuple(_USERS.values()), single_label=True),
    )
    made = resources(GatewayEntry(tables={"web": RouteTable(name="web", hosts=hosts)}), EngineSettings())[HOST]
    assert made[host_resource("web", "*.example")]["typedPerFilterConfig"].keys() == _USERS.keys()


@pytest.mark.parametrize("settings", [EngineSettings(), EngineSettings(trusted_networks=("10.0.0.0/8",))])
def test_chains_of_filters_have_no_programs(settings: EngineSettings) -> None:
    server = TlsServer(names=("a.example",), certificates=("a",), table="web")
    text = json.dumps(listener(EntryListener(name="tls", port=443, protocol="HTTPS", servers=(server,)), settings))
    assert "envoy_on_" not in text


def test_a_table_names_the_first_of_several_hosts() -> None:
    entry = GatewayEntry(tables={"web": RouteTable(name="web", hosts=())})
    trusting = EngineSettings(trusted_networks=("10.0.0.0/8",))
    assert FIRST_HOST in resources(entry, trusting)[ROUTES][table_resource("web")]["typedPerFilterConfig"]
    assert "typedPerFilterConfig" not in resources(entry, EngineSettings())[ROUTES][table_resource("web")]
