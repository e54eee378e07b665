"""The policy log: packets that policies drop, would drop or allow, read from nflog and written with pod names.

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
from podwire.policy.connectionmatch import Connection
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


LoggedFlow = tuple[str, str, str, int, str, int]
"""The log prefix of the rule that accepted the packet, the protocol, and both ends."""


class PacketLookups(msgspec.Struct, frozen=True):
    """The look-ups that turn a logged packet into a line."""

    node: str
    hit: Callable[[str], RuleHit | None]
    """The rule behind a log prefix."""
    party: Callable[[str], Party]
    """The pod or node that owns an address."""
    why: Callable[[Connection, str], tuple[bool, str]]
    """Whether policies allow a connection now, and why; with a direction, the verdict of policies in audit there."""


class PolicyLog:
    """The log of one node."""

    def __init__(self, lookups: PacketLookups, clock: Clock) -> None:
        self._lookups = lookups
        self._clock = clock
        self._settings = LogSettings(group=0)
        self._changed = asyncio.Event()
        self._recent: deque[tuple[int, LoggedPacket]] = deque(maxlen=_REMEMBERED)
        self._number = 0
        self._flows: dict[LoggedFlow, float] = {}
        self._tokens, self._filled_at = 0.0, clock.monotonic()
        self._skipped = 0
        self._summarized = 0
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
        logged_problem = ""
        while True:
            self._changed.clear()
            if not self._settings.group:
                await self._changed.wait()
                continue
            try:
                source = Nflog(self._settings.group)
            except KernelError as failure:
                if str(failure) != logged_problem:
                    logged_problem = str(failure)
                    self._log.warning("cannot log packets that policies drop", problem=failure)
                await wait_first(self._changed, self._clock.sleep(_AGAIN_S))
                continue
            logged_problem = ""
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
            packets, passed = source.read(int(self._tokens))
        except KernelError as failure:
            self._log.warning("lost the nflog socket of the policy log, opening it again", problem=failure)
            self._broken = True
            self._changed.set()
            return
        self._tokens -= len(packets)
        self._skipped += passed
        for packet in packets:
            self.write(packet)

    def _summarize(self) -> None:
        """Logs how many packets were not logged since the last summary."""
        missing = self._skipped + self._lost
        if missing > self._summarized:
            self._log.warning(
                "policy log: packets above the rate limit were not logged", packets=missing - self._summarized
            )
            self._summarized = missing

    def write(self, packet: Logged) -> None:
        """Writes a line for a packet."""
        hit = self._lookups.hit(packet.prefix)
        if hit is not None and hit.ruling.accept and self._is_known(_flow_of(packet)):
            return
        protocol = "ICMP" if packet.protocol == "ICMPv6" else packet.protocol
        connection = Connection(
            source=self._lookups.party(packet.source),
            destination=self._lookups.party(packet.destination),
            protocol=protocol,
            port=packet.destination_port,
        )
        at_s = packet.at if packet.at is not None else self._clock.now().timestamp()
        why = _apart(packet, connection) if packet.prefix in APART else self._why(connection, hit)
        line = logged_packet(self._lookups.node, at_s, hit, connection, source_port=packet.source_port, why=why)
        self._number += 1
        self._recent.append((self._number, line))
        self._log.info(line.verdict, **line.fields())

    def _why(self, connection: Connection, hit: RuleHit | None) -> str:
        """Why a packet hit the rule; policies may have changed since."""
        audited = hit.direction if hit is not None and hit.ruling.audit else ""
        passes, text = self._lookups.why(connection, audited)
        if hit is None or hit.ruling.accept or not passes:
            return text  # one direction may accept a packet that the other direction drops
        return f"{text}; the rules were different when the packet came ({hit.text})"

    def _is_known(self, flow: LoggedFlow) -> bool:
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
        """The kept lines as JSON, each with its ``number``: lines after number ``after``, at most the ``last`` newest.

        Raises: ValueError when ``after`` or ``last`` is not a number.
        """
        after = int(query.get("after", ["0"])[0])
        last = int(query.get("last", [str(_REMEMBERED)])[0])
        entries = [entry for entry in self._recent if entry[0] > after]
        shown = entries[max(0, len(entries) - last) :]
        return (
            msgspec.json.encode({"number": number, **msgspec.to_builtins(packet)}).decode() for number, packet in shown
        )

    def samples(self) -> list[Metric]:
        """How many packets were logged, skipped and lost."""
        counted = (
            ("podwire_policy_logged_total", "Policy packets that have a line in the log.", self._number),
            ("podwire_policy_log_passed_total", "Policy packets above the rate limit of the log.", self._skipped),
            (
                "podwire_policy_log_lost_total",
                "Policy packets lost in the nflog queue.",
                self._lost,
            ),
        )
        return [Sample(name, text, value, kind="counter") for name, text, value in counted]


def _apart(packet: Logged, connection: Connection) -> str:
    """Why a packet was dropped for a reason other than policies."""
    port = f" {connection.port}" if connection.port else ""
    ends = f"{connection.source.name} -> {connection.destination.name} {connection.protocol}{port}"
    devices = (("from", packet.input), ("to", packet.output))
    devices_text = " ".join(f"{word} {_device(number)}" for word, number in devices if number)
    return f"{ends}: dropped: {APART[packet.prefix]} ({devices_text})"


def _device(number: int) -> str:
    try:
        return socket.if_indextoname(number)
    except OSError:
        return f"device {number}"


def _flow_of(packet: Logged) -> LoggedFlow:
    return (
        packet.prefix,
        packet.protocol,
        packet.source,
        packet.source_port,
        packet.destination,
        packet.destination_port,
    )
