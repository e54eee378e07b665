"""TCP from a pod to a pod of another node, pair by pair: a backend, and the same made by hand with the same functions.

Two nodes and their pods for each subject, as in ``tunnels``; all exist at once. One connection of iperf3 after the
other, sender and receiver each on a processor of its own, in turns the first and the second of a pair first. Each pair
gives a difference: a machine that is slow for a while is slow for both, and the median over all pairs is next to 0
unless there is a difference. CPU is that of both iperf3, which contains the kernel's work on their packets.

"By hand" is what ``datagrams`` has by that name: device and routes made by ip(8), and the rules of flanneld for the
same pods. podwire has masquerade, too, and for ``vxlan`` a guard that lets only nodes send into the tunnel. On one
segment ``bgp`` and ``hostgw`` hold the same in the kernel; BIRD is idle beside the packets.

    sudo python -m bench.tunnel_pairs [--quick]
"""

import contextlib
import tempfile
from pathlib import Path

from bench.alone import run_alone
from bench.table import Row
from bench.tunnels import LIKE, POD, HandMade, Network, Routed, bulk, ended_s

PAIRS = (("hostgw", "hostgw by hand"), ("vxlan", "vxlan by hand"), ("bgp", "hostgw"))
"""The subjects that are compared."""
AIM_PCT = 3.0
"""How much less than the other the first of a pair may carry, and how much more CPU a gigabyte may need."""
_BY_HAND = " by hand"
_ON_TWO_PROCESSORS = ("-A", "0,1")


class Subject:
    """Two nodes with one setup, and what was measured between their pods."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self._opened = contextlib.ExitStack()
        self._network = self._opened.enter_context(contextlib.closing(Network(folder)))
        self._opened.enter_context(contextlib.closing(self._setup(name)))
        self.rates: list[float] = []
        self.costs: list[float] = []
        """CPU seconds for what one Mbit/s carries in a turn."""

    def _setup(self, name: str) -> HandMade | Routed:
        if name.endswith(_BY_HAND):
            return HandMade(self._network, LIKE[name.removesuffix(_BY_HAND)], rules=True)
        return Routed(self._network, name)

    def take_turn(self, seconds: int) -> None:
        """Measures once."""
        before = ended_s()
        rate = bulk(self._network.pod(1), self._network.pod(2), POD, seconds, *_ON_TWO_PROCESSORS)
        self.rates.append(rate)
        self.costs.append((ended_s() - before) / rate)

    def close(self) -> None:
        self._opened.close()


def run(quick: bool) -> list[Row]:
    """The rows; with ``quick`` two turns."""
    turns, seconds = (2, 1) if quick else (40, 1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for names in PAIRS:
            rows += _measure(Path(folder, names[0]), names, turns, seconds)
    return rows


def _measure(folder: Path, names: tuple[str, str], turns: int, seconds: int) -> list[Row]:
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
    title = f"{names[0]} and {names[1]}"
    return [
        Row(f"{title}: less Mbit/s", "%", less, aim=AIM_PCT),
        Row(f"{title}: more CPU for a GB", "%", more, aim=AIM_PCT),
    ]


if __name__ == "__main__":
    run_alone("tunnel_pairs", __doc__, run)
