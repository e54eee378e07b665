"""Tests the paths to all peers: whether they carry the MTU of pods, and whether tunnels have right checksums.

Per target one echo of the full size, and one datagram where a tunnel leaves checksums to the device below. Guarantees:

1. one packet is on its way at a time, and tests are at least :data:`GAP_S` apart;
2. a target is tested when it is new or its MTU has changed, then every :data:`EVERY_S`, and every :data:`RETRY_S` while
   it fails or does not answer;
3. a path counts as too narrow when small packets were answered and three of the full size were not, twice; then the
   largest size that passes is searched, with at most 30 packets;
4. a target that answers nothing keeps its last result: a peer that is down is not a path that is too narrow;
5. checksums count as wrong when datagrams with the checksum of the kernel were answered and three with the checksum of
   the device were not; the offload of that tunnel is then switched off, until it is configured otherwise.

Cost per node and target: two packets and two answers every five minutes, 3 kB at an MTU of 1,500 bytes, 1 ms
of CPU; 1,000 peers with both families take a thousand seconds a round.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from podwire.errors import KernelError
from podwire.observe.log import Log
from podwire.routing.probes import PathResult, ProbeTarget
from podwire.runtime.clock import Clock

GAP_S = 0.5
EVERY_S = 300.0
RETRY_S = 30.0
_TRIES = 3
_SMALL = 128
"""Bytes that every path carries."""
_Key = tuple[str, int]


class ProbeSender(Protocol):
    """Sends the packets, as ``kernel.pathprobe`` does."""

    async def echo(self, source: str, address: str, size: int) -> bool:
        """Whether an echo of a size is answered."""
        ...

    async def datagram(self, source: str, address: str, *, offload: bool) -> bool:
        """Whether a datagram to a closed port is answered."""
        ...


class SelfTest:
    """The tests of one node.

    ``targets`` returns the present targets, none while the test is switched off; ``is_plain`` whether a device has its
    checksums from the kernel anyway. ``report`` is called with all results after each that differs.
    """

    def __init__(
        self,
        prober: ProbeSender,
        clock: Clock,
        targets: Callable[[], Sequence[ProbeTarget]],
        is_plain: Callable[[str], bool],
        report: Callable[[Iterable[PathResult]], None],
    ) -> None:
        self.packets = 0
        self._prober = prober
        self._clock = clock
        self._targets = targets
        self._is_plain = is_plain
        self._report = report
        self._results: dict[_Key, PathResult] = {}
        self._due: dict[_Key, float] = {}
        self._problem = ""
        self._log = Log("routing")

    async def run(self) -> None:
        """Tests until cancelled."""
        while True:
            await self._clock.sleep(GAP_S)
            await self.test_next()

    async def test_next(self) -> bool:
        """Runs the test that is due; returns whether one was."""
        target = self._next()
        if target is not None:
            await self._run_test(target)
        return target is not None

    def _next(self) -> ProbeTarget | None:
        """The target whose test is due for the longest time; None when no test is due."""
        targets = {(target.peer, target.version): target for target in self._targets()}
        gone = [key for key in self._results if key not in targets]
        for key in gone:
            del self._results[key], self._due[key]
        if gone:
            self._report(self._results.values())
        now = self._clock.monotonic()
        for key, target in targets.items():
            known = self._results.get(key)
            if known is None or known.target != target:
                return target
        waiting = [(at, key) for key, at in self._due.items() if at <= now]
        return targets[min(waiting)[1]] if waiting else None

    async def _run_test(self, target: ProbeTarget) -> None:
        key = target.peer, target.version
        before = self._results.get(key)
        try:
            tested = await self._tested(target, before if before is not None and before.target == target else None)
        except KernelError as failure:
            if str(failure) != self._problem:
                self._log.warning("cannot test the paths to peers", problem=failure)
            self._problem = str(failure)
            tested = None
        result = tested or self._last(target)
        self._results[key] = result
        good = tested is not None and tested.largest >= target.mtu
        self._due[key] = self._clock.monotonic() + (EVERY_S if good else RETRY_S)
        if result != before:
            self._report(self._results.values())

    def _last(self, target: ProbeTarget) -> PathResult:
        """The last result of a target; an empty one where there is none."""
        known = self._results.get((target.peer, target.version))
        return known if known is not None and known.target == target else PathResult(target=target)

    async def _tested(self, target: ProbeTarget, before: PathResult | None) -> PathResult | None:
        """The result of a test; None when nothing was answered."""
        if await self._passes(target, target.mtu):
            checksums = before is None or before.checksums
            if target.device and not self._is_plain(target.device):
                checksums = await self._has_right_checksums(target)
            return PathResult(target=target, largest=target.mtu, checksums=checksums)
        if not await self._passes(target, _SMALL):
            return None
        if before is not None and before.is_mismatch and await self._passes(target, before.largest):
            return before
        largest = await self._search(target)
        if await self._passes(target, target.mtu):
            largest = target.mtu
        return PathResult(target=target, largest=largest)

    async def _search(self, target: ProbeTarget) -> int:
        """The largest size that passes, by halving."""
        low, high = _SMALL, target.mtu
        while high - low > 1:
            middle = (low + high) // 2
            if await self._passes(target, middle, tries=2):
                low = middle
            else:
                high = middle
        return low

    async def _passes(self, target: ProbeTarget, size: int, tries: int = _TRIES) -> bool:
        for _ in range(tries):
            self.packets += 1
            if await self._prober.echo(target.source, target.address, size):
                return True
        return False

    async def _has_right_checksums(self, target: ProbeTarget) -> bool:
        """False only when the difference between the two kinds of datagrams is the checksum alone."""
        if await self._answers(target, offload=True):
            return True
        return not await self._answers(target, offload=False) or await self._answers(target, offload=True)

    async def _answers(self, target: ProbeTarget, *, offload: bool) -> bool:
        for _ in range(_TRIES):
            self.packets += 1
            if await self._prober.datagram(target.source, target.address, offload=offload):
                return True
        return False
