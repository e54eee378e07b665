"""Logs and upgraded connections through the API server, over real sockets to a kubelet of the test's own."""

import asyncio
import base64
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from podwire.embedded.apiserver.server import ApiServer
from podwire.embedded.apiserver.settings import ApiServerSettings
from podwire.http.answer import Result, Stream, Streaming, Upgrade, encode_switching
from podwire.http.message import Request, Response
from podwire.http.server import HttpServer
from podwire.http.tls import server_context, subject_of
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

POD = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "x"}]}}


class Shout(asyncio.Protocol):
    def __init__(self, transport: asyncio.Transport, leftover: bytes) -> None:
        self.transport = transport
        transport.write(encode_switching((("Upgrade", "websocket"), ("Connection", "Upgrade"))) + leftover.upper())

    def data_received(self, data: bytes) -> None:
        self.transport.write(data.upper())


class Frames(asyncio.Protocol):
    """Sends two WebSocket frames at once with its head, and two more."""

    def __init__(self, transport: asyncio.Transport, _: bytes) -> None:
        head = encode_switching((("Upgrade", "WebSocket"), ("Connection", "Upgrade")))
        transport.write(head + b"\x82\x01a\x82\x01b")
        asyncio.get_running_loop().call_later(0.05, transport.write, b"\x82\x01c\x88\x00")


class Page(asyncio.Protocol):
    """A pod's HTTP server behind the kubelet's connection."""

    def __init__(self, transport: asyncio.Transport, _: bytes) -> None:
        self.transport, self.received = transport, b""
        transport.write(encode_switching((("Upgrade", "tcp"), ("Connection", "Upgrade"))))

    def data_received(self, data: bytes) -> None:
        self.received += data
        if b"\r\n\r\n" not in self.received:
            return
        if b"upgrade: websocket" in self.received:
            self.transport.write(encode_switching((("Upgrade", "websocket"), ("Connection", "Upgrade"))) + b"\x82\x01a")
        elif b" /redirect " in self.received:
            self.transport.write(b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n")
        elif b" /page " in self.received:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 16\r\n\r\n"
            self.transport.write(head + b"<a href='/next'>")
        elif self.received.startswith(b"HEAD"):
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
        else:
            cookies = b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
            self.transport.write(b"HTTP/1.1 200 OK\r\n" + cookies + b"\r\n" + self.received)
            self.transport.close()


class Swallow(asyncio.Protocol):
    """Reads with pauses and says nothing until it has read a line's end; then how many bytes there were."""

    def __init__(self, transport: asyncio.Transport, leftover: bytes) -> None:
        self.transport = transport
        self.size = len(leftover)
        transport.write(encode_switching((("Upgrade", "websocket"), ("Connection", "Upgrade"))))

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        if data.endswith(b"\n"):
            self.transport.write(b"%d\n" % self.size)
            return
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(0.002, self.transport.resume_reading)


class Kubelet:
    """Answers like a kubelet and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.users: set[str] = set()
        self.streams: list[Stream] = []
        self.stream_closed = asyncio.Event()

    def handle(self, request: Request) -> Result:
        self.asked.append(request.target)
        self.users.add(subject_of(request.peer_certificate)[0])
        if request.path.startswith("/podConnect/"):
            return Response(503, b"refused\n") if "port=9" in request.target else Upgrade(Page)
        if request.path.startswith("/portForward/"):
            return Upgrade(Frames)
        if request.path.startswith("/attach/"):
            return Upgrade(Swallow)
        if request.path.startswith("/exec/"):
            return Upgrade(Shout)
        if "follow" in request.query():
            return Streaming(self.follow, content_type="text/plain")
        if request.path.startswith("/containerLogs/"):
            return Response(200, b"a line\n", "text/plain")
        return Response(404, b"no such path\n", "text/plain")

    def follow(self, stream: Stream) -> None:
        stream.on_close = self.stream_closed.set
        self.streams.append(stream)
        stream.write(b"first\n")


class Client:
    """Speaks raw HTTP to the API server."""

    def __init__(self, address: tuple[str, int], directory: Path) -> None:
        self.address = address
        self.context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        self.context.load_cert_chain(directory / "admin.crt", directory / "admin.key")

    async def open(self, text: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address, ssl=self.context)
        writer.write(text.encode())
        return reader, writer

    async def get(self, path: str) -> bytes:
        reader, writer = await self.open(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = await reader.read()
        writer.close()
        return data

    async def post(self, path: str, body: Any) -> bytes:
        text = json.dumps(body)
        reader, writer = await self.open(
            f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}"
        )
        data = await reader.read()
        writer.close()
        return data


@pytest.fixture
def tunnelled(settings: ApiServerSettings, credentials: Path) -> Any:
    """Runs a coroutine function with a client and a kubelet behind an API server."""
    configured = msgspec.structs.replace(
        settings, kubelet_certificate=credentials / "admin.crt", kubelet_key=credentials / "admin.key"
    )

    def run(scenario: Any) -> None:
        async def body() -> None:
            kubelet = Kubelet()
            tasks = TaskSet(lambda name, failure: None)
            http = HttpServer(kubelet.handle, tasks, SystemClock())
            names = [str(credentials / name) for name in ("server.crt", "server.key", "ca.crt")]
            _, port = await http.listen("127.0.0.1", 0, server_context(*names))
            server = ApiServer(configured, SystemClock())
            try:
                client = Client((await server.start())[0], credentials)
                status = {
                    "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
                }
                await client.post("/api/v1/nodes", {"metadata": {"name": "n"}, "status": status})
                await client.post("/api/v1/namespaces/default/pods", POD)
                entry = server.store.get("/pods", "default", "p")
                assert entry is not None
                server.store.put("/pods", {**entry.object(), "status": {"podIP": "10.244.0.5"}})
                await scenario(client, kubelet)
            finally:
                await server.close()
                await http.close()
                await tasks.close()

        asyncio.run(asyncio.wait_for(body(), 20))

    return run


LOG = "/api/v1/namespaces/default/pods/p/log"


def test_a_log_is_fetched_with_the_servers_certificate(tunnelled: Any) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        assert (await client.get(f"{LOG}?tailLines=5")).endswith(b"\r\n\r\na line\n")
        assert kubelet.asked == ["/containerLogs/default/p/c?tailLines=5"]
        assert kubelet.users == {"admin"}
        assert b"container d is not valid for pod p" in await client.get(f"{LOG}?container=d")
        assert b" 404 " in (await client.get(LOG.replace("/p/", "/q/")))[:20]

    tunnelled(scenario)


LOG_QUERIES = {
    "follow=True&timestamps=t&previous=0": "?follow=true&timestamps=true",
    "follow=&timestamps=false": "?follow=true",
    "tailLines=%2B5&limitBytes=9&pretty=1": "?tailLines=5&limitBytes=9",
    "sinceTime=2026-01-02T03:04:05Z": "?sinceTime=2026-01-02T03%3A04%3A05Z",
    "stream=Stdout": "?stream=Stdout",
    "stream=All&insecureSkipTLSVerifyBackend=True": "",
    "tailLines=": 'parsing \\"\\": invalid syntax',
    "tailLines=-1": "tailLines: Invalid value: -1: must be greater than or equal to 0",
    "limitBytes=0": "limitBytes: Invalid value: 0: must be greater than 0",
    "sinceSeconds=0": "sinceSeconds: Invalid value: 0: must be greater than 0",
    "sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z": "at most one of `sinceTime` or `sinceSeconds`",
    "sinceTime=yesterday": 'parsing time \\"yesterday\\"',
    "stream=both": "stream: Unsupported value",
    "stream=Stderr&tailLines=1": "mutually exclusive",
}
"""A client's query of a log, with the query that the kubelet gets or the text of the refusal."""


def test_log_options_reach_the_kubelet_in_one_form(tunnelled: Any) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        kubelet.follow = lambda stream: stream.close()  # type: ignore[method-assign]
        for query, expected in LOG_QUERIES.items():
            kubelet.asked.clear()
            answer = await client.get(f"{LOG}?{query}")
            if expected[:1] in ("?", ""):
                assert kubelet.asked == [f"/containerLogs/default/p/c{expected}"], query
            else:
                assert not kubelet.asked and expected.encode() in answer, answer

    tunnelled(scenario)


def test_stream_options_reach_the_kubelet_in_one_form(tunnelled: Any) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        exec_path = LOG.replace("/log", "/exec")
        reader, writer = await client.open(
            f"GET {exec_path}?command=a&command=b&stdin=True&stdout=&stderr=false&tty=yes HTTP/1.1\r\nHost: x\r\n"
            "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert kubelet.asked == ["/exec/default/p/c?command=a&command=b&input=1&output=1&tty=1"]

    tunnelled(scenario)


def test_a_followed_log_streams_until_either_side_ends(tunnelled: Any) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        for ending in ("kubelet", "client"):
            reader, writer = await client.open(f"GET {LOG}?follow=true HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"first\n")
            kubelet.streams[-1].write(b"second\n")
            await reader.readuntil(b"second\n")
            if ending == "kubelet":
                kubelet.streams[-1].close()
                await reader.readuntil(b"0\r\n\r\n")
            writer.close()
        await kubelet.stream_closed.wait()

    tunnelled(scenario)


def test_exec_becomes_two_pipes(tunnelled: Any) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        path = "/api/v1/namespaces/default/pods/p/exec?command=sh&command=-c&stdin=true&stdout=true"
        reader, writer = await client.open(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly"
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"EARLY")
        payload = b"x" * 3_000_000
        writer.write(payload + b"end")
        received = await reader.readexactly(len(payload) + 3)
        assert received == payload.upper() + b"END"
        writer.close()
        assert kubelet.asked[-1].startswith("/exec/default/p/c?command=sh&command=-c&input=1&output=1")

    tunnelled(scenario)


def test_each_frame_is_a_tls_record(tunnelled: Any) -> None:
    async def scenario(client: Client, _: Kubelet) -> None:
        def records() -> list[bytes]:
            with client.context.wrap_socket(socket.create_connection(client.address), server_hostname="x") as stream:
                stream.sendall(
                    f"GET {LOG.replace('/log', '/portforward')} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                    "Upgrade: websocket\r\n\r\n".encode()
                )
                return [stream.recv(65536) for _ in range(5)]

        client.context.check_hostname = False
        head, *frames = await asyncio.to_thread(records)
        assert head.startswith(b"HTTP/1.1 101 ") and head.endswith(b"\r\n\r\n")
        assert frames == [b"\x82\x01a", b"\x82\x01b", b"\x82\x01c", b"\x88\x00"]

    tunnelled(scenario)


PROXY = "/api/v1/namespaces/default/pods/p:80/proxy"


def test_the_proxy_connects_through_the_kubelet(tunnelled: Any) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        answer = await client.get(f"{PROXY}/a%2Fb/?x=1")
        assert b"GET /a%2Fb/?x=1 HTTP/1.1\r\nhost: x\r\n" in answer
        assert f"x-forwarded-uri: {PROXY}/a%2Fb/\r\n".encode() in answer
        assert b"x-forwarded-for: 127.0.0.1\r\n" in answer
        assert b"set-cookie: a=1\r\nset-cookie: b=2\r\n" in answer
        assert kubelet.asked == ["/podConnect/default/p?address=10.244.0.5&port=80&tls=0"]
        await client.get(PROXY.replace("p:80", "https:p:443") + "/")
        assert kubelet.asked[-1].endswith("&port=443&tls=1")
        refused = await client.get(PROXY.replace(":80", ":9") + "/")
        assert b" 503 " in refused[:20] and b"error trying to reach service: refused" in refused

    tunnelled(scenario)


def test_links_of_proxied_pages_lead_through_the_proxy(tunnelled: Any) -> None:
    async def scenario(client: Client, _: Kubelet) -> None:
        moved = await client.get(f"{PROXY}?x=1")
        assert b" 301 " in moved[:20] and f"Location: {PROXY}/?x=1\r\n".encode() in moved
        assert f"location: {PROXY}/login\r\n".encode() in await client.get(f"{PROXY}/redirect")
        assert (await client.get(f"{PROXY}/page")).endswith(f'<a href="{PROXY}/next">'.encode())

    tunnelled(scenario)


def test_the_proxy_takes_upgrades_and_every_method(tunnelled: Any) -> None:
    async def scenario(client: Client, _: Kubelet) -> None:
        reader, writer = await client.open(
            f"GET {PROXY}/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(3) == b"\x82\x01a"
        writer.close()
        for method in ("HEAD", "OPTIONS"):
            reader, writer = await client.open(f"{method} {PROXY}/any HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b" 200 " in (await reader.read())[:20], method
            writer.close()

    tunnelled(scenario)


@pytest.mark.parametrize(
    ("protocol", "first"),
    [
        ("", b"\x82\x06first\n"),
        ("Sec-WebSocket-Protocol: binary.k8s.io\r\n", b"\x82\x06first\n"),
        ("Sec-WebSocket-Protocol: base64.binary.k8s.io\r\n", b"\x81\x08" + base64.b64encode(b"first\n")),
    ],
)
def test_a_log_is_sent_in_websocket_messages(tunnelled: Any, protocol: str, first: bytes) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        head = (
            f"GET {LOG}?follow=1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Key: a2V5a2V5a2V5a2V5a2U=\r\nSec-WebSocket-Version: 13\r\n"
        )
        for ending in ("kubelet", "client"):
            reader, writer = await client.open(f"{head}{protocol}\r\n")
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 101 " in answer and protocol.lower().encode() in answer.lower()
            assert await reader.readexactly(len(first)) == first
            if ending == "kubelet":
                kubelet.streams[-1].close()
                assert (await reader.readexactly(4))[:1] == b"\x88"
            writer.close()
        await kubelet.stream_closed.wait()
        refused = await client.get(f"{LOG}?container=d")
        assert b" 400 " in refused[:20]

    tunnelled(scenario)


def test_input_is_sent_while_the_kubelet_is_silent(tunnelled: Any) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        reader, writer = await client.open(
            "GET /api/v1/namespaces/default/pods/p/attach?stdin=true HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\n\r\n"
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"x" * 12_000_000 + b"\n")
        assert await reader.readline() == b"12000001\n"
        writer.close()

    tunnelled(scenario)


def test_an_unreachable_kubelet_is_an_error_not_a_hang(tunnelled: Any) -> None:
    async def scenario(client: Client, kubelet: Kubelet) -> None:
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}},
        }
        await client.post("/api/v1/nodes", {"metadata": {"name": "gone"}, "status": status})
        await client.post(
            "/api/v1/namespaces/default/pods",
            {"metadata": {"name": "q"}, "spec": POD["spec"] | {"nodeName": "gone"}},  # type: ignore[operator]
        )
        assert b"error dialing the node" in await client.get(LOG.replace("/p/", "/q/"))

    tunnelled(scenario)


def test_another_port_of_a_node_is_reached_without_certificates(tunnelled: Any, credentials: Path) -> None:
    """As agents are asked for what they tell on their health endpoints."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(credentials / "server.crt", credentials / "server.key")

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(target), target))
        await writer.drain()
        writer.close()

    async def scenario(client: Client, kubelet: Kubelet) -> None:
        plain = await asyncio.start_server(tell, "127.0.0.1", 0)
        secured = await asyncio.start_server(tell, "127.0.0.1", 0, ssl=tls)
        async with plain, secured:
            port, other = (server.sockets[0].getsockname()[1] for server in (plain, secured))
            for name in (f"n:{port}", f"http:n:{port}", f"https:n:{other}"):
                answer = await client.get(f"/api/v1/nodes/{name}/proxy/policy/log?after=3&last=9")
                assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"\r\n\r\n/policy/log?after=3&last=9")
        assert kubelet.asked == []
        assert b"error dialing the node" in await client.get(f"/api/v1/nodes/n:{port}/proxy/metrics")
        assert b" 404 " in (await client.get("/api/v1/nodes/m:80/proxy/metrics")).split(b"\r\n")[0]
        for name in ("n:x", "n:0", "n:70000", "ftp:n:80", "http:n:80:80"):
            answer = await client.get(f"/api/v1/nodes/{name}/proxy/metrics")
            assert answer.startswith(b"HTTP/1.1 400 ") and b"expected NAME, NAME:PORT or SCHEME:NAME:PORT" in answer

    tunnelled(scenario)
