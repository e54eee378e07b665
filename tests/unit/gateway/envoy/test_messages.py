"""Resources as the engine reads them."""

import pytest
from envoy.config.route.v3 import route_components_pb2
from google.protobuf import json_format

from podwire.gateway.envoy.clusters import Json
from podwire.gateway.envoy.messages import pack
from podwire.gateway.envoy.resources import HOST


def _host(name: str) -> Json:
    answer = {"match": {"prefix": "/"}, "directResponse": {"status": 200}}
    return {"name": name, "domains": [name], "routes": [answer]}


def test_a_message_is_that_of_its_value() -> None:
    message = route_components_pb2.VirtualHost()
    message.ParseFromString(pack(HOST, _host("a")).message.value)
    assert message == json_format.ParseDict(_host("a"), route_components_pb2.VirtualHost())


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(json_format.ParseError, match="clusterName"):
        pack(HOST, {"clusterName": "a"})


def test_the_version_follows_from_the_content() -> None:
    first, second, other = (pack(HOST, _host(name)).version for name in ("a", "a", "b"))
    assert first == second != other
