"""The objects behind resources of engines."""

import msgspec

from podwire.gateway.causes import contributors, object_of, owns
from podwire.gateway.envoy.resources import CLUSTER, HOST, LISTENER, ROUTES, SECRET
from podwire.gateway.envoy.tables import host_resource, table_resource
from podwire.gateway.routes import (
    EntryBackend,
    EntryListener,
    EntryRoute,
    Forward,
    GatewayEntry,
    RequestMatch,
    RouteTable,
    StreamTarget,
    TlsServer,
    VirtualHost,
    WeightedBackend,
)

_SOURCES = ("Gateway shop/front", "ListenerSet shop/more")


def _entry() -> GatewayEntry:
    share = WeightedBackend(key="shop/a:80#gateway-api")
    routes = tuple(
        EntryRoute(source=source, match=RequestMatch(), action=Forward(backends=(share,)))
        for source in ("HTTPRoute shop/one spec.rules[0].matches[0]", "GRPCRoute shop/two spec.rules[0].matches[0]")
    )
    table = RouteTable(name="table", hosts=(VirtualHost(hosts=("*",), routes=routes),))
    stream = StreamTarget(source="TCPRoute shop/three", backends=(share,))
    listener = EntryListener(
        name="gateway shop/front:9000", port=10000, protocol="TCP", stream=stream, sources=_SOURCES
    )
    backends = {share.key: EntryBackend(key=share.key)}
    return GatewayEntry(listeners=(listener,), tables={"table": table}, backends=backends)


def test_objects_behind_resources_are_those_that_routes_name() -> None:
    entry = _entry()
    routes = {("HTTPRoute", "shop/one"), ("GRPCRoute", "shop/two")}
    assert contributors(entry, ROUTES, table_resource("table")) == routes
    assert contributors(entry, HOST, host_resource("table", "*")) == routes
    assert contributors(entry, HOST, host_resource("table", "other.example")) == frozenset()
    assert contributors(entry, LISTENER, "gateway shop/front:9000") == {
        ("Gateway", "shop/front"),
        ("ListenerSet", "shop/more"),
        ("TCPRoute", "shop/three"),
    }
    assert contributors(entry, CLUSTER, "shop/a:80#gateway-api") == {*routes, ("TCPRoute", "shop/three")}
    assert contributors(entry, SECRET, "any") == frozenset()
    assert owns(entry, ROUTES, table_resource("table"))
    assert owns(entry, HOST, host_resource("table", "other.example"))
    assert not owns(entry, ROUTES, table_resource("ingress"))
    assert object_of("gateway shop/front:443 https") is None


def test_a_listener_without_sources_is_that_of_its_routes() -> None:
    entry = _entry()
    secure = EntryListener(name="ingress", port=1, protocol="HTTPS", servers=(TlsServer(names=(), table="table"),))
    entry = msgspec.structs.replace(entry, listeners=(secure,))
    assert contributors(entry, LISTENER, "ingress") == {("HTTPRoute", "shop/one"), ("GRPCRoute", "shop/two")}


def test_a_wildcard_has_the_routes_of_all_hosts_too() -> None:
    entry = _entry()
    table = entry.tables["table"]
    route = EntryRoute(
        source="Ingress shop/three spec.rules[0]",
        match=RequestMatch(),
        action=Forward(backends=(WeightedBackend(key="shop/b:80"),)),
    )
    hosts = (VirtualHost(hosts=("*.example",), routes=(route,), single_label=True), *table.hosts)
    entry = msgspec.structs.replace(entry, tables={"table": msgspec.structs.replace(table, hosts=hosts)})
    everywhere = {("HTTPRoute", "shop/one"), ("GRPCRoute", "shop/two")}
    assert contributors(entry, HOST, host_resource("table", "*.example")) == {("Ingress", "shop/three"), *everywhere}
