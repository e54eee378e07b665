"""Resources as the engine reads them."""

from typing import Any

import pytest
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_components_pb2
from google.protobuf import json_format

from podwire.gateway.envoy import messages
from podwire.gateway.envoy.clusters import Json
from podwire.gateway.envoy.listeners import listener
from podwire.gateway.envoy.messages import pack
from podwire.gateway.envoy.resources import HOST, LISTENER
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.routes import EntryListener, TlsServer


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


def _listener(*names: str, default: bool = False) -> Json:
    servers = tuple(TlsServer(names=(name,), certificates=(f"shop/{name}",), table="web") for name in names)
    servers += (TlsServer(names=(), certificates=("default",), table="web"),) if default else ()
    return listener(EntryListener(name="secure", port=443, protocol="HTTPS", servers=servers), EngineSettings())


@pytest.mark.parametrize("default", [False, True])
def test_a_listener_made_in_parts_is_that_of_its_value(default: bool) -> None:
    value = _listener("a", "b", "c", default=default)
    for packed in (pack(LISTENER, value), pack(LISTENER, value, pack(LISTENER, _listener("c", "b", "d")))):
        message = listener_pb2.Listener()
        message.ParseFromString(packed.message.value)
        assert message == json_format.ParseDict(value, listener_pb2.Listener())
        assert packed == pack(LISTENER, value)


def test_chains_that_stay_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pack(LISTENER, _listener("a", "b", default=True))
    made: list[str] = []
    chain = messages._chain

    def noted(value: Json, known: dict[bytes, Any]) -> bytes:
        made.append(value["name"])
        return chain(value, known)

    monkeypatch.setattr(messages, "_chain", noted)
    after = pack(LISTENER, _listener("b", "a", "c", default=True), before)
    assert made == ["secure c"]
    assert after.version != before.version and after.chains.keys() > before.chains.keys()
    assert pack(LISTENER, _listener("b", "a", default=True), after).version != before.version, "the order counts"
