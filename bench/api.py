"""Measures the embedded API server over TLS: durable writes, reads, watch fan-out, memory.

``python bench/api.py [--seconds 5] [--watchers 50]`` starts a server of its own on a loopback port with its
state in a temporary folder, and a client in this process; both share the machine's cores. Medians of three.
"""

import argparse
import asyncio
import datetime
import json
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from podwire.apiserver import certificates
from podwire.apiserver.server import render_settings
from podwire.apiserver.settings import Settings

PORT = 26999


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
    settings = Settings(
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
    async def connect(cls, directory: Path) -> "Client":
        """Connects with the administrator's certificate."""
        context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        context.load_cert_chain(directory / "admin.crt", directory / "admin.key")
        return cls(*await asyncio.open_connection("127.0.0.1", PORT, ssl=context, limit=1 << 22))

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
    process = subprocess.Popen([sys.executable, "-m", "podwire.apiserver.server", "--config", prepare(directory)])
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


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


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
    directory: Path, clients: int, seconds: float, work: Callable[[Client, int, int], Awaitable[object]]
) -> float:
    """Requests a second of ``clients`` connections that each work one request at a time."""
    connections = [await Client.connect(directory) for _ in range(clients)]
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
        """Events seen a second and watcher, their delay, and the server's processor share."""
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
            "written a second": total / written, "seen a second and watcher": min(self.seen) / elapsed,
            "lost": total - min(self.seen), "delay p50 ms": statistics.median(self.delays) * 1000,
            "server cpu": used / elapsed,
        }  # fmt: skip


async def main() -> None:
    """Prints one line a measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--watchers", type=int, default=50)
    given = parser.parse_args()
    path = "/api/v1/namespaces/default"
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        async with running(directory) as process:
            await asyncio.sleep(1)
            print(f"idle RSS: {rss_mib(process.pid):.1f} MiB")
            client = await Client.connect(directory)
            for number in range(50):
                await client.request("POST", f"{path}/configmaps", config_map(f"w-{number}"))
            rounds: dict[str, list[float]] = {}
            for number in range(3):
                for name, clients, work in (
                    ("GET/s, 8 connections", 8, lambda c, i, n: c.request("GET", f"{path}/configmaps/w-1")),
                    ("writes/s durable, 1 connection (ConfigMap)", 1, lambda c, i, n, r=number: c.request(
                        "POST", f"{path}/configmaps", config_map(f"a-{r}-{i}-{n}"))),
                    ("writes/s durable, 32 connections (ConfigMap)", 32, lambda c, i, n, r=number: c.request(
                        "POST", f"{path}/configmaps", config_map(f"b-{r}-{i}-{n}"))),
                    ("writes/s durable, 32 connections (Pod)", 32, lambda c, i, n, r=number: c.request(
                        "POST", f"{path}/pods", pod(f"b-{r}-{i}-{n}"))),
                ):  # fmt: skip
                    rounds.setdefault(name, []).append(await rate(directory, clients, given.seconds, work))
            for name, values in rounds.items():
                print(f"{name}: {statistics.median(values):,.0f}  ({', '.join(f'{v:,.0f}' for v in values)})")
            measured = await FanOut(directory, given.watchers, 1000).run(given.seconds, process.pid)
            for key, value in measured.items():
                print(f"{given.watchers} watchers, 1000 events/s: {key}: {value:,.2f}")
            print(f"RSS after all: {rss_mib(process.pid):.1f} MiB")


if __name__ == "__main__":
    asyncio.run(main())
