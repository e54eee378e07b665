"""The policy log: packets that policies drop, would drop or let through, read from nflog and shown with names.

The log never delays packets: rules count and drop by themselves, and the log reads copies, at most ``rate`` a second
from each rule. Guarantees: 1. at most ``rate`` lines a second are written, after a burst of ``burst``; packets above
that are counted, and their number is logged every 10 s; 2. the last ``_REMEMBERED`` lines are kept for
``podwire policy log``; 3. an allowed connection has one line a minute, a dropped one a line for each reported packet;
4. if another program listens to the group, or the kernel has no nflog, that is logged once, tried again every 30 s, and
has no effect on packets; 5. packets that were logged while no agent ran are lost.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from podwire.cluster.world import Party
from podwire.errors import KernelError
from podwire.http.pages import Query
from podwire.kernel.nflog import Logged, Nflog
from podwire.observe.health import Metric, Sample
from podwire.observe.log import Log
from podwire.policy.evaluate import Connection
from podwire.policy.settings import LogSettings
from podwire.policy.status.logged import LoggedPacket, logged_packet
from podwire.policy.verdicts import APART, RuleHit
from podwire.runtime.clock import Clock
from podwire.runtime.workqueue import wait_first

_REMEMBERED = 1000
_AGAIN_S = 30.0
_BROKEN_S = 1.0
_SUMMARY_S = 10.0
_SAME_S = 60.0
_FLOWS = 1024


Flow = tuple[str, str, str, int, str, int]
"""The rule that let the packet pass, the protocol, and both ends."""


class PacketLookups(msgspec.Struct, frozen=True):
    """The look-ups that turn a logged packet into a line."""

    node: str
    hit: Callable[[str], RuleHit | None]
    """The rule behind a log prefix."""
    party: Callable[[str], Party]
    """The pod or node that owns an address."""
    why: Callable[[Connection, str], tuple[bool, str]]
    """Whether policies allow a connection now, and why; given a direction, what policies in audit would do there."""


class PolicyLog:
    """The log of one node."""

    def __init__(self, sight: PacketLookups, clock: Clock) -> None:
        self._sight = sight
        self._clock = clock
        self._settings = LogSettings(group=0)
        self._changed = asyncio.Event()
        self._kept: deque[tuple[int, LoggedPacket]] = deque(maxlen=_REMEMBERED)
        self._number = 0
        self._flows: dict[Flow, float] = {}
        self._tokens, self._filled_at = 0.0, clock.monotonic()
        self._passed = 0
        self._told = 0
        self._lost = 0
        self._broken = False
        self._log = Log("policy")

    def configure(self, settings: LogSettings) -> None:
        """Takes over settings."""
        if settings != self._settings:
            self._settings = settings
            self._tokens = float(settings.burst)
            self._changed.set()

    async def run(self) -> None:
        """Listens until cancelled."""
        said = ""
        while True:
            self._changed.clear()
            if not self._settings.group:
                await self._changed.wait()
                continue
            try:
                source = Nflog(self._settings.group)
            except KernelError as failure:
                if str(failure) != said:
                    said = str(failure)
                    self._log.warning("cannot log packets that policies drop", problem=failure)
                await wait_first(self._changed, self._clock.sleep(_AGAIN_S))
                continue
            said = ""
            await self._listen(source)
            if self._broken:
                await self._clock.sleep(_BROKEN_S)

    async def _listen(self, source: Nflog) -> None:
        """Listens until the settings name another group, or the socket fails."""
        group, loop = self._settings.group, asyncio.get_running_loop()
        lost, self._broken = self._lost, False
        loop.add_reader(source.fileno(), lambda: self._read(source))
        try:
            while self._settings.group == group and not self._broken:
                self._changed.clear()
                await wait_first(self._changed, self._clock.sleep(_SUMMARY_S))
                self._lost = lost + source.lost
                self._summarize()
        finally:
            loop.remove_reader(source.fileno())
            source.close()

    def _read(self, source: Nflog) -> None:
        now = self._clock.monotonic()
        grown = self._tokens + (now - self._filled_at) * self._settings.rate
        self._tokens, self._filled_at = min(grown, float(self._settings.burst)), now
        try:
            found, passed = source.read(int(self._tokens))
        except KernelError as failure:
            self._log.warning("lost the nflog socket of the policy log, opening it again", problem=failure)
            self._broken = True
            self._changed.set()
            return
        self._tokens -= len(found)
        self._passed += passed
        for one in found:
            self.tell(one)

    def _summarize(self) -> None:
        """Logs how many packets were not logged since the last summary."""
        missing = self._passed + self._lost
        if missing > self._told:
            self._log.warning("policy log: packets above the rate limit were not logged", packets=missing - self._told)
            self._told = missing

    def tell(self, one: Logged) -> None:
        """Writes a line for a packet."""
        hit = self._sight.hit(one.prefix)
        if hit is not None and hit.ruling.accept and self._is_known(_flow_of(one)):
            return
        protocol = "ICMP" if one.protocol == "ICMPv6" else one.protocol
        connection = Connection(
            source=self._sight.party(one.source),
            destination=self._sight.party(one.destination),
            protocol=protocol,
            port=one.destination_port,
        )
        at_s = one.at if one.at is not None else self._clock.now().timestamp()
        why = _apart(one, connection) if one.prefix in APART else self._why(connection, hit)
        made = logged_packet(self._sight.node, at_s, hit, connection, source_port=one.source_port, why=why)
        self._number += 1
        self._kept.append((self._number, made))
        self._log.info(made.verdict, **made.fields())

    def _why(self, connection: Connection, hit: RuleHit | None) -> str:
        """Why a packet hit the rule; policies may have changed since."""
        audited = hit.direction if hit is not None and hit.ruling.audit else ""
        passes, text = self._sight.why(connection, audited)
        if hit is None or hit.ruling.accept or not passes:
            return text  # what one direction accepts, the other may drop
        return f"{text}; the rules were different when the packet came ({hit.text})"

    def _is_known(self, flow: Flow) -> bool:
        """Whether the connection had a line within the last minute."""
        now = self._clock.monotonic()
        if now - self._flows.get(flow, -_SAME_S) < _SAME_S:
            return True
        self._flows.pop(flow, None)
        self._flows[flow] = now
        if len(self._flows) > _FLOWS:
            del self._flows[next(iter(self._flows))]
        return False

    def page(self, query: Query) -> Iterator[str]:
        """The kept lines as JSON with their ``number``; only those after number ``after``, at most the last ``last``.

        Raises: ValueError when ``after`` or ``last`` is not a number.
        """
        after = int(query.get("after", ["0"])[0])
        last = int(query.get("last", [str(_REMEMBERED)])[0])
        found = [entry for entry in self._kept if entry[0] > after]
        shown = found[max(0, len(found) - last) :]
        return (msgspec.json.encode({"number": number, **msgspec.to_builtins(one)}).decode() for number, one in shown)

    def samples(self) -> list[Metric]:
        """How many packets were logged, skipped and lost."""
        counted = (
            ("podwire_policy_logged_total", "Policy packets that have a line in the log.", self._number),
            ("podwire_policy_log_passed_total", "Policy packets above the rate limit of the log.", self._passed),
            (
                "podwire_policy_log_lost_total",
                "Policy packets lost in the nflog queue.",
                self._lost,
            ),
        )
        return [Sample(name, text, value, kind="counter") for name, text, value in counted]


def _apart(one: Logged, connection: Connection) -> str:
    """Why a packet was dropped for a reason other than policies."""
    port = f" {connection.port}" if connection.port else ""
    ends = f"{connection.source.name} -> {connection.destination.name} {connection.protocol}{port}"
    devices = (("from", one.input), ("to", one.output))
    way = " ".join(f"{word} {_device(number)}" for word, number in devices if number)
    return f"{ends}: dropped: {APART[one.prefix]} ({way})"


def _device(number: int) -> str:
    try:
        return socket.if_indextoname(number)
    except OSError:
        return f"device {number}"


def _flow_of(one: Logged) -> Flow:
    return one.prefix, one.protocol, one.source, one.source_port, one.destination, one.destination_port
