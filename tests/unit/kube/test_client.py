"""The client against a scripted server."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import scripted_http as http

from podwire.errors import AlreadyExists, ApiError, ApiUnreachable, Conflict, Gone, Invalid, NotFound, ProtocolError
from podwire.http.client import ClientConnection
from podwire.kube.client import APPLY_PATCH, Client
from podwire.kube.config import ApiConfig
from podwire.kube.decode import decode_failure
from podwire.kube.request import ApiRequest
from podwire.kube.resources import CONFIGMAPS, NODES, PODS, SERVICES
from podwire.model.pod import Pod
from podwire.runtime.clock import SystemClock

Body = Callable[[Client, http.ScriptedServer], Awaitable[None]]


def against(
    handler: http.Handler, body: Callable[[Client, http.ScriptedServer], Awaitable[None]], **config: Any
) -> None:
    async def run() -> None:
        async with http.ScriptedServer(handler) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}", **config), SystemClock())
            try:
                await body(client, server)
            finally:
                await client.close()

    asyncio.run(run())


def test_one_connection_serves_many_requests() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, {"metadata": {"name": received.target.rsplit("/", 1)[1]}})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        for name in ("a", "b", "c"):
            assert (await client.get(CONFIGMAPS, name, "ns"))["metadata"]["name"] == name
        assert server.connections == 1
        assert server.received[0].target == "/api/v1/namespaces/ns/configmaps/a"

    against(handler, body)


def test_parallel_requests_open_more_connections() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.02)
        return http.answer(writer, {})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        await asyncio.gather(*(client.get(NODES, f"n{i}") for i in range(5)))
        assert server.connections == 5

    against(handler, body)


def test_parallel_writes_take_turns_on_connections_that_are_in_use() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, {"metadata": {"name": received.json["metadata"]["name"]}})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        names = [f"n{i}" for i in range(40)]
        answers = await asyncio.gather(
            *(client.create(CONFIGMAPS, {"metadata": {"name": name}}, "ns") for name in names)
        )
        assert [answer["metadata"]["name"] for answer in answers] == names
        assert server.connections == 1

    against(handler, body, turn_s=60)


def test_a_write_waits_only_shortly_for_a_busy_connection() -> None:
    began: asyncio.Queue[http.ReceivedRequest] = asyncio.Queue()

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        if received.target.endswith("/slow?fieldManager=podwire"):
            began.put_nowait(received)
            await asyncio.sleep(60)
        return http.answer(writer, {})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        slow = [asyncio.ensure_future(client.patch(NODES, "slow", {})) for _ in range(3)]
        for _ in slow:
            await began.get()
        await asyncio.gather(*(client.patch(NODES, f"n{i}", {}) for i in range(3)))
        held = server.connections
        assert held in (4, 5, 6)
        for item in slow:
            item.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        client.connections.config = replace(client.config, turn_s=60)
        await asyncio.gather(*(client.patch(NODES, f"n{i}", {}) for i in range(3)))
        assert server.connections == held

    against(handler, body)


def test_an_abandoned_turn_passes_to_the_next_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.02)
        return http.answer(writer, {})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        first = asyncio.ensure_future(client.patch(NODES, "first", {}))
        await asyncio.sleep(0.001)
        rest = [asyncio.ensure_future(client.patch(NODES, f"n{i}", {})) for i in range(2)]
        give_back = client.connections.give_back

        def give_back_and_cancel(connection: ClientConnection) -> None:
            give_back(connection)
            rest[0].cancel()

        monkeypatch.setattr(client.connections, "give_back", give_back_and_cancel)
        await first
        monkeypatch.undo()
        await asyncio.gather(*rest, return_exceptions=True)
        assert rest[0].cancelled()
        assert rest[1].exception() is None
        assert server.connections == 1

    against(handler, body, turn_s=60)


def test_writes_carry_manager_and_content_type() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, {"kind": "ConfigMap"})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        await client.create(CONFIGMAPS, {"metadata": {"name": "x"}}, "ns")
        await client.patch(CONFIGMAPS, "x", {"data": {}}, "ns")
        await client.patch(CONFIGMAPS, "x", {"data": {}}, "ns", patch_type=APPLY_PATCH)
        await client.create(PODS, {"target": {"name": "n"}}, "ns", name="p", subresource="binding")
        await client.delete(PODS, "p", "ns", grace_period_s=0, uid="u")
        methods = [(s.method, s.target, s.headers.get("content-type")) for s in server.received]
        assert methods == [
            ("POST", "/api/v1/namespaces/ns/configmaps?fieldManager=podwire", "application/json"),
            ("PATCH", "/api/v1/namespaces/ns/configmaps/x?fieldManager=podwire", "application/merge-patch+json"),
            (
                "PATCH",
                "/api/v1/namespaces/ns/configmaps/x?fieldManager=podwire&force=true",
                "application/apply-patch+yaml",
            ),
            ("POST", "/api/v1/namespaces/ns/pods/p/binding?fieldManager=podwire", "application/json"),
            ("DELETE", "/api/v1/namespaces/ns/pods/p", "application/json"),
        ]
        assert server.received[-1].json["preconditions"] == {"uid": "u"}

    against(handler, body)


def test_list_decodes_into_the_model_and_drops_nulls() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        items = [
            {"metadata": {"name": "a"}, "spec": {"ports": None}},
            {"metadata": {"name": "b"}, "spec": {"type": 7}},
        ]
        return http.answer(writer, {"metadata": {"resourceVersion": "5"}, "items": items})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        page = await client.list(SERVICES, label_selector="a in (b,c)", limit=2)
        assert [s.metadata.name for s in page.items] == ["a"]
        assert "b" in page.rejected[0].problem
        assert page.resource_version == "5"
        assert server.received[0].target == "/api/v1/services?labelSelector=a%20in%20%28b%2Cc%29&limit=2"

    against(handler, body)


def test_raw_lists_know_their_kind() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, {"items": [{"metadata": {"name": "a"}}]})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        page = await client.list(CONFIGMAPS)
        assert page.items[0]["kind"] == "ConfigMap"
        assert (await client.get(PODS, "a", "b", decode_as=Pod)).kind == "Pod"

    against(handler, body)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (403, "Forbidden", ApiError),
        (500, "Expired", Gone),
    ],
)
def test_failures_have_their_class(code: int, reason: str, kind: type[ApiError]) -> None:
    failure = decode_failure(code, b'{"kind":"Status","reason":"%s","message":"m"}' % reason.encode())
    assert type(failure) is kind
    assert failure.message == "m"


def test_an_error_body_without_status_is_the_message() -> None:
    assert decode_failure(502, b"bad gateway").message == "bad gateway"


def test_a_refused_connection_is_an_unreachable_api() -> None:
    async def run() -> None:
        client = Client(ApiConfig("http://127.0.0.1:1"), SystemClock())
        with pytest.raises(ApiUnreachable, match=r"127\.0\.0\.1:1"):
            await client.get(NODES, "n")

    asyncio.run(run())


def test_a_dead_kept_connection_is_replaced_for_reads_only() -> None:
    served: list[object] = []

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        served.append(writer)
        if len(served) in (2, 4):  # second exchange on a kept connection: hang up without an answer
            writer.close()
            return False
        return http.answer(writer, {})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        await client.get(NODES, "a")
        await client.get(NODES, "b")
        assert server.connections == 2
        with pytest.raises(ApiUnreachable):
            await client.create(NODES, {})

    against(handler, body)


def test_a_late_answer_is_an_unreachable_api() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.3)
        return False

    async def body(client: Client, server: http.ScriptedServer) -> None:
        with pytest.raises(ApiUnreachable, match="no answer to GET /api/v1/nodes/a"):
            await client.get(NODES, "a")

    against(handler, body, timeout_s=0.05)


def test_a_time_out_of_the_head_is_not_repeated() -> None:
    """On a kept connection too, and whatever the request: a second try would only double the wait."""
    frozen = asyncio.Event()

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        if frozen.is_set():
            await asyncio.sleep(0.3)
            return False
        return http.answer(writer, {})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        await client.get(NODES, "a")
        frozen.set()
        with pytest.raises(ApiUnreachable, match=r": no answer to GET /api/v1/nodes/b in 0\.05 s$"):
            await client.get(NODES, "b")
        with pytest.raises(ApiUnreachable, match=r": no answer to GET /api/v1/nodes in 0\.05 s$"):
            async with client.stream(ApiRequest("GET", "/api/v1/nodes", {"watch": "true"})):
                pass
        assert len(server.received) == 3

    against(handler, body, answer_s=0.05)


def test_an_answer_that_has_begun_may_take_longer() -> None:
    """A long list, and a watch for as long as it lasts."""

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        http.open_stream(writer)
        await writer.drain()
        await asyncio.sleep(0.15)
        http.chunk(writer, {"metadata": {"name": "late"}})
        writer.write(b"0\r\n\r\n")
        return True

    async def body(client: Client, server: http.ScriptedServer) -> None:
        assert (await client.get(NODES, "a"))["metadata"]["name"] == "late"
        async with client.stream(ApiRequest("GET", "/api/v1/nodes", {"watch": "true"})) as connection:
            assert b"late" in b"".join([piece async for piece in connection.chunks()])

    against(handler, body, answer_s=0.05)


def test_without_time_limits_a_request_waits() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.05)
        return http.answer(writer, {"metadata": {"name": "a"}})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        assert (await client.get(NODES, "a"))["metadata"]["name"] == "a"

    against(handler, body, answer_s=None, timeout_s=None)


def test_an_answer_that_is_not_http_is_an_error() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"SSH-2.0-x\r\n")
        return True

    async def body(client: Client, server: http.ScriptedServer) -> None:
        with pytest.raises(ApiUnreachable, match="does not speak HTTP"):
            await client.get(NODES, "a")

    against(handler, body)


def test_an_object_that_does_not_decode_is_an_error() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, b"nope")

    async def body(client: Client, server: http.ScriptedServer) -> None:
        with pytest.raises(ProtocolError):
            await client.get(NODES, "a")

    against(handler, body)


def test_token_file_is_read_and_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc\n")

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, {})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        await client.get(NODES, "a")
        assert server.received[0].headers["authorization"] == "bearer abc"

    against(handler, body, token_file=token)


def test_stream_gives_chunks_and_status() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        http.open_stream(writer)
        http.chunk(writer, b"one")
        http.chunk(writer, b"two")
        writer.write(b"0\r\n\r\n")
        return True

    async def body(client: Client, server: http.ScriptedServer) -> None:
        async with client.stream(ApiRequest("GET", "/log")) as stream:
            assert stream.status == 200
            assert b"".join([piece async for piece in stream.chunks()]) == b"onetwo"

    against(handler, body)


def test_a_stream_reuses_a_connection_and_replaces_a_dead_one() -> None:
    served: list[object] = []

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        served.append(received.target)
        if served.count("/log") == 2:  # on a kept connection: hang up without an answer
            writer.close()
            return False
        if received.target == "/log":
            http.open_stream(writer)
            writer.write(b"0\r\n\r\n")
            return True
        return http.answer(writer, {})

    async def body(client: Client, server: http.ScriptedServer) -> None:
        await client.get(NODES, "a")
        async with client.stream(ApiRequest("GET", "/log")):
            assert server.connections == 1
        await client.get(NODES, "a")
        assert server.connections == 2
        async with client.stream(ApiRequest("GET", "/log")) as stream:
            assert (stream.status, server.connections) == (200, 3)

    against(handler, body)


def test_a_stream_that_is_refused_says_why() -> None:
    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, {"kind": "Status", "reason": "Gone", "message": "too old"}, 410)

    async def body(client: Client, server: http.ScriptedServer) -> None:
        with pytest.raises(Gone, match="too old"):
            async with client.stream(ApiRequest("GET", "/log")):
                pass

    against(handler, body)


def test_a_large_body_arrives_whole() -> None:
    blob = b"x" * 5_000_000

    async def handler(received: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, blob)

    async def body(client: Client, server: http.ScriptedServer) -> None:
        assert (await client.raw("GET", "/blob")).body == blob

    against(handler, body)
