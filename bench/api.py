"""The embedded API server over TLS: reads, durable writes, watch fan-out, memory.

A server of its own on a loopback port, its state in a temporary folder, and a client in this process; both share the
machine's cores. A write is answered when it is on disk. "SQLite alone" puts the same bytes into one table by the same
journal and fsync, without HTTP, TLS or Kubernetes: with one connection a commit each, with 32 connections 32 objects a
commit. "TLS alone" is a Python server that answers every request with the same bytes.

    python -m bench.api [--quick]
"""

import asyncio
import datetime
import json
import signal
import sqlite3
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bench.alone import ROOT, run_alone
from bench.machine import cpu_s, resident_mb
from bench.table import Row

from podwire.embedded.apiserver import certificates
from podwire.embedded.apiserver.server import render_settings
from podwire.embedded.apiserver.settings import ApiServerSettings

PORT = 26999
BARE_PORT = 26998
WATCHERS = 50
PER_SECOND = 1000


def prepare(directory: Path, port: int = PORT) -> Path:
    """Writes certificates and settings of a server; returns the path of the settings."""
    now = datetime.datetime.now(datetime.UTC)
    authority = certificates.make_authority("bench", now)
    certificates.write_pair(directory, "ca", authority)
    names = ("127.0.0.1", "localhost")
    server = certificates.write_pair(
        directory, "server", certificates.issue(authority, "apiserver", (), names, "server", now)
    )
    certificates.write_pair(
        directory, "admin", certificates.issue(authority, "admin", ("system:masters",), (), "client", now)
    )
    certificates.write_private(directory / "signing.key", certificates.make_signing_key())
    settings = ApiServerSettings(
        listen=(f"127.0.0.1:{port}",), state=directory / "api.db", certificate=server[0], key=server[1],
        client_ca=directory / "ca.crt", signing_key=directory / "signing.key",
    )  # fmt: skip
    path = directory / "settings.yaml"
    path.write_bytes(render_settings(settings))
    return path


class Client:
    """One keep-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, directory: Path, port: int = PORT) -> "Client":
        """Connects with the administrator's certificate."""
        context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        context.load_cert_chain(directory / "admin.crt", directory / "admin.key")
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=1 << 22))

    async def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The body of the answer.

        Raises: RuntimeError for a status that is no success.
        """
        self.writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            "Content-Type: application/json\r\n\r\n".encode()
            + body
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        answer = await self.reader.readexactly(length)
        if head[9:10] != b"2":
            raise RuntimeError(f"{head!r} {answer[:300]!r}")
        return answer


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A server process, ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "podwire.embedded.apiserver.server", "--config", prepare(directory)]
    )
    try:
        for _ in range(100):
            try:
                (await Client.connect(directory)).writer.close()
                break
            except OSError:
                await asyncio.sleep(0.1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def config_map(name: str, size: int = 1000) -> bytes:
    """A ConfigMap of about ``size`` bytes."""
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
                       "data": {"text": "x" * size, "sent": repr(time.time())}}).encode()  # fmt: skip


def pod(name: str) -> bytes:
    """A small pod."""
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "bench"}},
                       "spec": {"containers": [{"name": "c", "image": "nginx", "ports": [{"containerPort": 80}]}]}
                       }).encode()  # fmt: skip


async def rate(
    directory: Path,
    clients: int,
    seconds: float,
    work: Callable[[Client, int, int], Awaitable[object]],
    port: int = PORT,
) -> float:
    """Requests a second of ``clients`` connections that each work one request at a time."""
    connections = [await Client.connect(directory, port) for _ in range(clients)]
    stop = time.perf_counter() + seconds
    counts = [0] * clients

    async def loop(index: int) -> None:
        while time.perf_counter() < stop:
            await work(connections[index], index, counts[index])
            counts[index] += 1

    began = time.perf_counter()
    await asyncio.gather(*(loop(index) for index in range(clients)))
    elapsed = time.perf_counter() - began
    for connection in connections:
        connection.writer.close()
    return sum(counts) / elapsed


class FanOut:
    """Watchers of one kind, and writers at a steady rate."""

    def __init__(self, directory: Path, watchers: int, per_second: int) -> None:
        self.directory = directory
        self.per_second = per_second
        self.path = "/api/v1/namespaces/default/configmaps"
        self.seen = [0] * watchers
        self.delays: list[float] = []
        self.issued = 0
        self.total = 0
        self.all_seen = asyncio.Event()

    async def watch(self, index: int, stream: Client, version: str) -> None:
        """Counts events; the first watcher also measures their delay."""
        query = f"?watch=true&resourceVersion={version}"
        stream.writer.write(f"GET {self.path}{query} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await stream.reader.readuntil(b"\r\n\r\n")
        while data := await stream.reader.read(1 << 20):
            self.seen[index] += data.count(b'{"type":"')
            if min(self.seen) >= self.total:
                self.all_seen.set()
            sent = data.rpartition(b'"sent":"')[2].partition(b'"')[0] if index == 0 else b""
            if sent:
                self.delays.append(time.time() - float(sent))

    async def write(self, client: Client, began: float, total: int) -> None:
        """Updates objects, each at its time."""
        while self.issued < total:
            due = began + self.issued / self.per_second
            self.issued += 1
            name = f"w-{self.issued % 50}"
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await client.request("PUT", f"{self.path}/{name}", config_map(name, 900))

    async def run(self, seconds: float, pid: int) -> dict[str, float]:
        """Events written a second, events that the slowest watcher saw, how late, and the server's processor share."""
        streams = [await Client.connect(self.directory) for _ in self.seen]
        version = json.loads(await streams[0].request("GET", self.path))["metadata"]["resourceVersion"]
        tasks = [asyncio.ensure_future(self.watch(i, stream, version)) for i, stream in enumerate(streams)]
        await asyncio.sleep(0.3)
        writers = [await Client.connect(self.directory) for _ in range(16)]
        total = self.total = int(self.per_second * seconds)
        began, used = time.perf_counter(), cpu_s(pid)
        await asyncio.gather(*(self.write(client, began, total) for client in writers))
        written = time.perf_counter() - began
        await asyncio.wait_for(self.all_seen.wait(), 4 * seconds)
        elapsed = time.perf_counter() - began
        used = cpu_s(pid) - used
        for task in tasks:
            task.cancel()
        for stream in (*streams, *writers):
            stream.writer.close()
        return {
            "written": total / written, "seen": min(self.seen) / elapsed, "lost": float(total - min(self.seen)),
            "behind": max(0.0, elapsed - written) * 1000, "delay": statistics.median(self.delays) * 1000,
            "cpu": used / elapsed * 100,
        }  # fmt: skip


def commits(folder: Path, seconds: float, together: int) -> float:
    """Rows a second that SQLite alone puts on disk, ``together`` a commit."""
    database = sqlite3.connect(folder / f"bare-{time.monotonic_ns()}.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE objects (key TEXT PRIMARY KEY, version INTEGER, value BLOB) WITHOUT ROWID")
    body, count, stop = config_map("bare"), 0, time.perf_counter() + seconds
    began = time.perf_counter()
    while time.perf_counter() < stop:
        database.execute("BEGIN IMMEDIATE")
        rows = [(f"/configmaps/default/{count + i}", count + i, body) for i in range(together)]
        database.executemany("INSERT INTO objects VALUES (?, ?, ?)", rows)
        database.execute("COMMIT")
        count += together
    elapsed = time.perf_counter() - began
    database.close()
    return count / elapsed


@asynccontextmanager
async def answering(directory: Path) -> AsyncIterator[None]:
    """A process that answers everything with the same bytes, over TLS."""
    process = subprocess.Popen([sys.executable, "-m", "bench.api", "--bare", directory], cwd=ROOT)
    try:
        for _ in range(100):
            try:
                (await Client.connect(directory, BARE_PORT)).writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


class Bare(asyncio.Protocol):
    """One connection of the server without content."""

    transport: asyncio.WriteTransport
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % 1250 + b"x" * 1250

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """One answer a request; requests of this benchmark arrive whole."""
        self.transport.write(self.answer)


async def serve_bare(directory: Path) -> None:
    """Runs until killed."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "server.crt", directory / "server.key")
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", BARE_PORT, ssl=context)
    await server.serve_forever()


async def rounds(directory: Path, count: int, seconds: float) -> list[Row]:
    """Reads and writes, in turns with what stands beside them."""
    path = "/api/v1/namespaces/default"
    result: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        result.setdefault(name, []).append(value)

    def post(kind: str, body: Callable[[str], bytes], mark: str) -> Callable[[Client, int, int], Awaitable[object]]:
        return lambda client, i, n: client.request("POST", f"{path}/{kind}", body(f"{mark}-{i}-{n}"))

    def get(client: Client, _index: int, _count: int) -> Awaitable[object]:
        return client.request("GET", f"{path}/configmaps/w-1")

    for number in range(count):
        note("get", await rate(directory, 8, seconds, get))
        async with answering(directory):
            note("bare get", await rate(directory, 8, seconds, get, BARE_PORT))
        note("one", await rate(directory, 1, seconds, post("configmaps", config_map, f"a{number}")))
        note("bare one", await asyncio.to_thread(commits, directory, seconds, 1))
        note("many", await rate(directory, 32, seconds, post("configmaps", config_map, f"b{number}")))
        note("bare many", await asyncio.to_thread(commits, directory, seconds, 32))
        note("pods", await rate(directory, 32, seconds, post("pods", pod, f"c{number}")))
    value = {name: tuple(values) for name, values in result.items()}
    tls, disk = "TLS alone", "SQLite alone"
    return [
        Row("GET of one ConfigMap, 8 connections", "/s", value["get"], ((tls, value["bare get"]),)),
        Row("durable creates of ConfigMaps of 1 kB, 1 connection", "/s", value["one"], ((disk, value["bare one"]),)),
        Row("durable creates of ConfigMaps of 1 kB, 32 connections", "/s", value["many"],
            ((disk, value["bare many"]),), aim=2000),
        Row("durable creates of Pods, 32 connections", "/s", value["pods"], aim=2000),
    ]  # fmt: skip


async def measure(quick: bool) -> list[Row]:
    """All rows, of one server."""
    count, seconds = (1, 1.0) if quick else (5, 3.0)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with running(directory) as process:
            await asyncio.sleep(1)
            idle, _ = resident_mb(process.pid)
            client = await Client.connect(directory)
            for number in range(50):
                await client.request("POST", "/api/v1/namespaces/default/configmaps", config_map(f"w-{number}"))
            fans = [await FanOut(directory, WATCHERS, PER_SECOND).run(seconds, process.pid) for _ in range(count)]
            fan = {name: tuple(fan[name] for fan in fans) for name in fans[0]}
            rows = await rounds(directory, count, seconds)
            full, _ = resident_mb(process.pid)
    title = f"{WATCHERS} watchers, {PER_SECOND:,} events/s"
    slack = 0.99 * PER_SECOND
    return [
        *rows,
        Row(f"{title}: written", "/s", fan["written"], aim=slack),
        Row(f"{title}: seen by the slowest watcher", "/s", fan["seen"], aim=slack),
        Row(f"{title}: lost", "", fan["lost"], aim=0),
        Row(f"{title}: last event later than the last write", "ms", fan["behind"]),
        Row(f"{title}: from write to event", "ms", fan["delay"]),
        Row(f"{title}: CPU of a core in the server", "%", fan["cpu"]),
        Row("RSS, empty", "MB", (idle,)),
        Row("RSS, after all this", "MB", (full,)),
    ]


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` one round of a second each."""
    return asyncio.run(measure(quick))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        asyncio.run(serve_bare(Path(sys.argv[2])))
    else:
        run_alone("api", __doc__, run)
