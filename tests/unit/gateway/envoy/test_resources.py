"""Resources of an entry, and what is made anew when it changes."""

import copy
from typing import Any

from podwire.gateway.envoy.resources import (
    CLUSTER,
    ENDPOINTS,
    HOST,
    LISTENER,
    MAKE_ORDER,
    BuiltResources,
    Resources,
    build_resources,
    resources,
)
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.envoy.tables import host_resource, table_of, table_resource
from podwire.gateway.routes import (
    EntryBackend,
    EntryEndpoint,
    EntryListener,
    EntryRoute,
    Forward,
    GatewayEntry,
    RequestMatch,
    RouteTable,
    VirtualHost,
    WeightedBackend,
)

_SETTINGS = EngineSettings()


def _host(name: str, key: str = "") -> VirtualHost:
    forward = Forward(backends=(WeightedBackend(key=key or f"shop/{name}:80"),))
    route = EntryRoute(source=f"Ingress shop/{name}", match=RequestMatch(), action=forward)
    return VirtualHost(hosts=(name,), routes=(route,), single_label=True)


def _entry(*hosts: VirtualHost, backends: tuple[str, ...] = ("a", "b", "c", "*")) -> GatewayEntry:
    endpoint = EntryEndpoint(address="192.0.2.1", port=80)
    return GatewayEntry(
        listeners=(EntryListener(name="web", port=80, protocol="HTTP", table="web"),),
        tables={"web": RouteTable(name="web", hosts=hosts)},
        backends={f"shop/{name}:80": EntryBackend(key=f"shop/{name}:80", endpoints=(endpoint,)) for name in backends},
    )


def _rebuilt(first: GatewayEntry, second: GatewayEntry) -> tuple[Resources, set[str]]:
    """The resources of the second entry, and the names of those that are new values."""
    before = build_resources(first, _SETTINGS, BuiltResources())
    made = build_resources(second, _SETTINGS, before).resources
    names = {
        name
        for kind in MAKE_ORDER
        for name, value in made[kind].items()
        if value is not before.resources[kind].get(name) and kind in (CLUSTER, ENDPOINTS, LISTENER, HOST)
    }
    return made, names - {host_resource("web", "invalid")}


def _copy(entry: GatewayEntry) -> GatewayEntry:
    return copy.deepcopy(entry)


def test_what_did_not_change_is_the_same_value() -> None:
    first = _entry(_host("a"), _host("b"))
    made, names = _rebuilt(first, _copy(first))
    assert not names
    assert made == resources(first, _SETTINGS)


def test_a_new_host_is_all_that_is_made() -> None:
    first = _entry(_host("a"), _host("b"), backends=("a", "b"))
    second = _entry(_host("a"), _host("b"), _host("c"), backends=("a", "b", "c"))
    made, names = _rebuilt(first, second)
    assert names == {host_resource("web", "c"), "shop/c:80"}
    assert made == resources(second, _SETTINGS)


def test_a_backend_that_goes_changes_the_hosts_that_name_it() -> None:
    hosts = (_host("a"), _host("b"), _host("x", "shop/b:80"))
    first, second = _entry(*hosts, backends=("a", "b")), _entry(*hosts, backends=("a",))
    made, names = _rebuilt(first, second)
    assert names == {host_resource("web", "b"), host_resource("web", "x")}
    assert made == resources(second, _SETTINGS)


def test_the_host_for_all_changes_wildcards_too() -> None:
    first = _entry(_host("a"), _host("*.b", "shop/b:80"), _host("*"))
    second = _entry(_host("a"), _host("*.b", "shop/b:80"), _host("*", "shop/c:80"))
    made, names = _rebuilt(first, second)
    assert names == {host_resource("web", "*.b"), host_resource("web", "*")}
    assert made == resources(second, _SETTINGS)


def test_settings_change_every_listener() -> None:
    entry = _entry(_host("a"))
    before = build_resources(entry, _SETTINGS, BuiltResources())
    settings = EngineSettings(idle_timeout=5)
    assert build_resources(entry, settings, before).resources == resources(entry, settings)


def test_resources_name_their_table() -> None:
    names: dict[str, Any] = {"web": "hosts", "gateway shop/hosts:80": "*.web.example"}
    for table, host in names.items():
        assert table_of(table_resource(table)) == table_of(host_resource(table, host)) == table
