"""CPU time of one datagram from a pod to a pod of another node, by backend, beside the same made by hand.

Two nodes and their pods, all in network namespaces of this machine, as in ``tunnels``; each subject has its own, and
all exist at once. One process on one processor sends datagrams of 1,200 bytes to a socket whose buffer is full, so the
kernel carries each of them to the receiver's socket before the next one begins: the CPU time of the process is that of
the whole way through both nodes. Subjects take short turns in changing order, and what other programs of the machine do
falls on all of them. "Times by hand" is the CPU time divided by that of the setup by hand in the same turn, so it says
the same on a busy machine.

"By hand" has the device and the routes made by ip(8), what the rules of flanneld do for the same pods (masquerade with
its exceptions, acceptance of forwarded packets; so connections are tracked), and 2 as the reverse-path filter of the
devices, as systemd and Ubuntu set it. podwire has masquerade, the same filter, and a guard that lets only nodes send
into a tunnel, which neither flanneld nor "by hand" has. "Routes alone" has no rules and no filter, and "without tables"
is podwire without masquerade and guard.

    sudo python -m bench.datagrams [--quick]
"""

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.alone import run_alone
from bench.table import Row
from bench.tunnels import LIKE, POD, HandMade, Network, Routed

from podwire.kernel import netns

BACKENDS = ("hostgw", "vxlan", "bridge")
"""``bgp`` has the routes of ``hostgw`` in the kernel."""
MOST = 1.03
"""The aim: as much CPU time as by hand, and 3 % more at most."""
_PORT = 9000
_BYTES = 1200
_LIMIT_S = 60.0
BY_HAND, ROUTES_ALONE, WITHOUT_TABLES = "by hand", "routes alone", "without tables"


class Subject:
    """One subject: two nodes with a setup, and the sockets of their pods."""

    def __init__(self, folder: Path, backend: str, kind: str) -> None:
        folder.mkdir()
        self.values: list[float] = []
        with contextlib.ExitStack() as opened:
            network = opened.enter_context(contextlib.closing(Network(folder)))
            opened.enter_context(contextlib.closing(_setup(network, backend, kind)))
            with netns.inside(network.pod(2)):
                self._sink = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            self._sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            self._sink.bind(("", _PORT))
            self._sink.settimeout(0.2)
            with netns.inside(network.pod(1)):
                self._sender = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            self._sender.connect((POD, _PORT))
            self._wait()
            self._opened = opened.pop_all()

    def _wait(self) -> None:
        """Returns when a datagram has arrived."""
        deadline = time.monotonic() + _LIMIT_S
        while True:
            self._sender.send(b"arrives")
            try:
                self._sink.recv(100)
            except TimeoutError:
                assert time.monotonic() < deadline, "no datagram arrives"
            else:
                return

    def close(self) -> None:
        self._opened.close()

    def take_turn(self, count: int) -> None:
        """Sends datagrams, and keeps the microseconds of CPU time of each."""
        content, send = bytes(_BYTES), self._sender.send
        for _ in range(count // 10):
            send(content)
        begun = time.thread_time_ns()
        for _ in range(count):
            send(content)
        self.values.append((time.thread_time_ns() - begun) / count / 1000)


def _setup(network: Network, backend: str, kind: str) -> Routed | HandMade:
    if kind in (BY_HAND, ROUTES_ALONE):
        return HandMade(network, LIKE[backend], rules=kind == BY_HAND)
    return Routed(network, backend, tables=kind != WITHOUT_TABLES)


@contextlib.contextmanager
def _on_one_processor() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` few turns."""
    turns, count = (5, 200) if quick else (150, 1000)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for backend in BACKENDS:
            rows += _measure(Path(folder, backend), backend, turns, count)
    return rows


def _measure(folder: Path, backend: str, turns: int, count: int) -> list[Row]:
    folder.mkdir()
    kinds = ("", WITHOUT_TABLES, BY_HAND, ROUTES_ALONE)
    with contextlib.ExitStack() as opened:
        subjects = {
            kind: opened.enter_context(contextlib.closing(Subject(folder / str(number), backend, kind)))
            for number, kind in enumerate(kinds)
        }
        opened.enter_context(_on_one_processor())
        for turn in range(turns):
            for subject in list(subjects.values())[:: 1 if turn % 2 else -1]:
                subject.take_turn(count)
    beside = tuple((kind, tuple(subjects[kind].values)) for kind in (BY_HAND, ROUTES_ALONE))
    turns_of_both = zip(subjects[""].values, subjects[BY_HAND].values, strict=True)
    return [
        Row(f"{backend}: CPU of a datagram", "us", tuple(subjects[""].values), beside),
        Row(f"{backend} without tables: CPU of a datagram", "us", tuple(subjects[WITHOUT_TABLES].values), beside),
        Row(f"{backend}: times by hand", "", tuple(own / other for own, other in turns_of_both), (), MOST),
    ]


if __name__ == "__main__":
    run_alone("datagrams", __doc__, run)
