"""Resources as the engine reads them."""

from envoy.config.route.v3 import route_pb2
from google.protobuf import json_format

from podwire.gateway.envoy.clusters import Json
from podwire.gateway.envoy.messages import pack
from podwire.gateway.envoy.resources import ROUTES


def _table(*hosts: str) -> Json:
    answer = {"match": {"prefix": "/"}, "directResponse": {"status": 200}}
    return {
        "name": "table",
        "virtualHosts": [{"name": host, "domains": [host], "routes": [answer]} for host in hosts],
        "ignorePortInHostMatching": True,
    }


def test_a_table_is_read_host_by_host() -> None:
    for hosts in (("a", "b"), ("b", "c", "a"), ()):
        message = route_pb2.RouteConfiguration()
        message.ParseFromString(pack(ROUTES, _table(*hosts)).message.value)
        assert message == json_format.ParseDict(_table(*hosts), route_pb2.RouteConfiguration())


def test_the_version_follows_from_the_content() -> None:
    first, second, other = (pack(ROUTES, _table(*hosts)).version for hosts in (("a",), ("a",), ("b",)))
    assert first == second != other
