"""TCP from a pod to a pod of another node, pair by pair: a backend, and the same made by hand with the same functions.

Two nodes and their pods for each subject, as in ``tunnels``; all exist at once, each with one connection between its
pods. A connection carries data as fast as it can for 0.1 s, then that of the other subject, in turns the first and the
second one first. Each pair of turns gives a difference: a machine that is slow for a while is slow for both, and the
median over all pairs is next to 0 unless there is a difference. Sender and receiver are two threads, each on a
processor of its own. CPU is that of both, which contains the kernel's work on their packets. Behind each turn come 30
messages of 100 bytes and their echoes on a second connection, all on one processor: the median counts.

"By hand" is what ``datagrams`` has by that name: device and routes made by ip(8), and the rules of flanneld for the
same pods. podwire has masquerade, too, and for ``vxlan`` a guard that lets only nodes send into the tunnel. On one
segment ``bgp`` and ``hostgw`` hold the same in the kernel; BIRD is idle beside the packets.

    sudo python -m bench.tunnel_pairs [--quick]
"""

import contextlib
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from bench.alone import run_alone
from bench.table import Row
from bench.tunnels import LIKE, LIMIT_S, POD, HandMade, Network, Routed

from podwire.kernel import netns

PAIRS = (("hostgw", "hostgw by hand"), ("vxlan", "vxlan by hand"), ("bgp", "hostgw"))
"""The subjects that are compared."""
AIM_PCT = 3.0
"""How much less than the other the first of a pair may carry, how much more CPU a gigabyte may need, and how much
longer a round trip may be."""
_BY_HAND = " by hand"
_PORT = 9000
_CHUNK = bytes(1 << 20)
_MESSAGE, _MESSAGES = bytes(100), 30


class Subject:
    """Two nodes with one setup, a connection between their pods, and what was measured with it."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self.rates: list[float] = []
        """Bytes a second."""
        self.costs: list[float] = []
        """CPU seconds of a byte."""
        self.round_trips: list[float] = []
        """Seconds."""
        self._arrived = threading.Condition()
        self._received = 0
        with contextlib.ExitStack() as opened:
            network = opened.enter_context(contextlib.closing(Network(folder)))
            opened.enter_context(contextlib.closing(_setup(network, name)))
            with netns.inside(network.pod(2)):
                listener = opened.enter_context(socket.create_server(("", _PORT)))
            with netns.inside(network.pod(1)):
                self._sender = opened.enter_context(socket.create_connection((POD, _PORT), LIMIT_S))
            connection, _ = listener.accept()
            threading.Thread(target=self._receive, args=(connection,), daemon=True).start()
            with netns.inside(network.pod(1)):
                self._asking = opened.enter_context(socket.create_connection((POD, _PORT), LIMIT_S))
            self._asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_echo, args=listener.accept()[:1], daemon=True).start()
            self._opened = opened.pop_all()

    def _receive(self, connection: socket.socket) -> None:
        _use_processor(1)
        buffer = bytearray(len(_CHUNK))
        with connection:
            while count := connection.recv_into(buffer):
                with self._arrived:
                    self._received += count
                    self._arrived.notify()

    def take_turn(self, seconds: float) -> None:
        """Measures once, from the first byte that is sent to the last one that is received."""
        self._received = sent = 0
        begun, used = time.perf_counter(), time.process_time()
        while time.perf_counter() - begun < seconds:
            sent += self._sender.send(_CHUNK)
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._received == sent, LIMIT_S), "the connection is broken"
        self.rates.append(sent / (time.perf_counter() - begun))
        self.costs.append((time.process_time() - used) / sent)
        self.round_trips.append(median(self._round_trip() for _ in range(_MESSAGES)))

    def _round_trip(self) -> float:
        begun = time.perf_counter()
        self._asking.sendall(_MESSAGE)
        self._asking.recv(len(_MESSAGE))
        return time.perf_counter() - begun

    def close(self) -> None:
        self._opened.close()


def _setup(network: Network, name: str) -> HandMade | Routed:
    if name.endswith(_BY_HAND):
        return HandMade(network, LIKE[name.removesuffix(_BY_HAND)], rules=True)
    return Routed(network, name)


def _echo(connection: socket.socket) -> None:
    _use_processor(0)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        while data := connection.recv(len(_MESSAGE)):
            connection.sendall(data)


def _use_processor(number: int) -> None:
    """Keeps the calling thread on the processor with this number, counted from 0 among those of the process."""
    usable = sorted(_PROCESSORS)
    os.sched_setaffinity(threading.get_native_id(), {usable[number % len(usable)]})


_PROCESSORS = os.sched_getaffinity(0)


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` a few turns."""
    turns, seconds = (5, 0.1) if quick else (400, 0.1)
    rows: list[Row] = []
    _use_processor(0)
    with tempfile.TemporaryDirectory() as folder:
        for names in PAIRS:
            rows += _measure(Path(folder, names[0]), names, turns, seconds)
    return rows


def _measure(folder: Path, names: tuple[str, str], turns: int, seconds: float) -> list[Row]:
    folder.mkdir()
    with contextlib.ExitStack() as opened:
        first, second = (
            opened.enter_context(contextlib.closing(Subject(folder / str(number), name)))
            for number, name in enumerate(names)
        )
        for turn in range(turns):
            for subject in (first, second) if turn % 2 else (second, first):
                subject.take_turn(seconds)
    less = tuple(100 * (1 - own / other) for own, other in zip(first.rates, second.rates, strict=True))
    more = tuple(100 * (own / other - 1) for own, other in zip(first.costs, second.costs, strict=True))
    longer = tuple(100 * (own / other - 1) for own, other in zip(first.round_trips, second.round_trips, strict=True))
    title = f"{names[0]} and {names[1]}"
    return [
        Row(f"{title}: less Mbit/s", "%", less, aim=AIM_PCT),
        Row(f"{title}: more CPU for a GB", "%", more, aim=AIM_PCT),
        Row(f"{title}: longer round trip", "%", longer, aim=AIM_PCT),
    ]


if __name__ == "__main__":
    run_alone("tunnel_pairs", __doc__, run)
