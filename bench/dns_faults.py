"""The DNS server under faults: names whose servers are dead, and kills of the process that answers.

Dead names: the only upstream server never replies to 20 names a second and at once to 5 others. Kills: a client keeps
100 queries under way without ever repeating one, while the process that answers is killed 10 times.

    python -m bench.dns_faults [--quick]
"""

import asyncio
import multiprocessing
import os
import select
import signal
import socket
import struct
import time
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.alone import run_alone
from bench.dns import fill
from bench.table import Row

from podwire.dns import wire
from podwire.dns.config import DnsConfig
from podwire.dns.names import encode_name
from podwire.dns.server import DnsServer
from podwire.dns.sockets import Bound, bind
from podwire.runtime.clock import SystemClock
from podwire.runtime.keeper import keep_worker

_PORT = 15364
_UPSTREAM_PORT = 15365
_UNDER_WAY = 100
_RECORD = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x07"


def serve(ready: Event) -> None:
    """The process that holds the sockets, and its workers."""
    sockets = bind(("127.0.0.1",), _PORT)
    ready.set()
    keep_worker()
    asyncio.run(_work(sockets))


async def _work(sockets: tuple[Bound, ...]) -> None:
    config = DnsConfig(listen=("127.0.0.1",), port=_PORT, upstreams=(f"127.0.0.1:{_UPSTREAM_PORT}",))
    server = DnsServer(config, SystemClock())
    fill(server.zone)
    await server.open(sockets)
    await asyncio.Event().wait()


def serve_upstream(ready: Event) -> None:
    """Answers every name but those that begin with ``dead``."""
    with socket.socket(type=socket.SOCK_DGRAM) as link:
        link.bind(("127.0.0.1", _UPSTREAM_PORT))
        ready.set()
        while True:
            data, peer = link.recvfrom(4096)
            if data[13:17] != b"dead":
                end = data.index(b"\0", 12) + 5
                link.sendto(data[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + data[12:end] + _RECORD, peer)


def _query(name: str, ident: int) -> bytes:
    return wire.encode(wire.DnsMessage(ident, wire.RD, encode_name(name), wire.A))


def _connected() -> socket.socket:
    link = socket.socket(type=socket.SOCK_DGRAM)
    link.connect(("127.0.0.1", _PORT))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 10, 0))
    return link


def dead_names(seconds: int) -> Row:
    """How many good names fail while others are dead."""
    replies: dict[int, int] = {}
    good = seconds * 5

    def read_until(end_s: float) -> None:
        while (rest_s := end_s - time.monotonic()) > 0 and select.select([link], [], [], rest_s)[0]:
            data = link.recv(4096)
            replies[int.from_bytes(data[:2], "big")] = data[3] & 0xF

    with _connected() as link:
        for tick in range(good):
            for number in range(4):
                link.send(_query(f"dead{tick}-{number}.example", 0xFFFF))
            link.send(_query(f"good{tick}.example", tick))
            read_until(time.monotonic() + 0.2)
        read_until(time.monotonic() + 5)
    failed = sum(replies.get(ident) != wire.NOERROR for ident in range(good))
    return Row(f"20 dead and 5 good names a second, {good} good ones: failed", "", (float(failed),), aim=0)


def _worker(keeper: int) -> int:
    while not (children := Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()):
        time.sleep(0.001)
    return int(children[0])


def kills(queries: int, keeper: int) -> Row:
    """How many of the queries get no reply."""
    tail = _query("web-1.default.svc.cluster.local", 0)[2:]
    unanswered: set[int] = set()
    lost = 0
    with _connected() as link:
        for number in range(queries):
            ident = number % 65536
            unanswered.add(ident)
            link.send(ident.to_bytes(2, "big") + tail)
            if number % (queries // 10) == queries // 20:
                os.kill(_worker(keeper), signal.SIGKILL)
            while len(unanswered) > (_UNDER_WAY if number < queries - 1 else 0):
                try:
                    unanswered.discard(int.from_bytes(link.recv(2), "big"))
                except BlockingIOError:
                    lost += len(unanswered)
                    unanswered.clear()
    return Row(f"{queries:,} queries, 10 kills: lost", "", (float(lost),), aim=0)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` a tenth of the queries."""
    spawn = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    for target in (serve_upstream, serve):
        ready = spawn.Event()
        processes.append(spawn.Process(target=target, args=(ready,)))
        processes[-1].start()
        ready.wait(30)
    try:
        return [dead_names(2 if quick else 20), kills(10_000 if quick else 100_000, processes[1].pid or 0)]
    finally:
        for process in processes:
            process.terminate()
            process.join()


if __name__ == "__main__":
    run_alone("dns_faults", __doc__, run)
