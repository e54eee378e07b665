"""Counts what became of the numbered messages of one flow. Pure.

A flow sends messages with the numbers 1, 2, 3, ... and gets each number back. A message without an answer within
:data:`LOST_S` is lost. A flow of TCP whose connection ends is broken: it begins another connection, and the messages
without an answer are lost. Losses are kept as spans of time, so that a report says when; a span ends with the next
answer. A probe that policies deny has no answers: an answer is a leak, and is kept as a span, too.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from podwire.model.wording import count, duration

LOST_S = 5.0
"""Seconds. A retransmission of TCP may take 3 s after the second loss."""
MOST_SPANS = 200
"""Spans that a flow keeps; of later ones only the messages are counted."""

FlowKind = Literal["tcp", "new", "udp", "dns", "dns-tcp", "http", "denied", "denied-udp"]
DENIED: tuple[FlowKind, ...] = ("denied", "denied-udp")
"""Kinds of flows that policies deny, which must have no answers."""


class FlowTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One flow: its kind, the path that it tests (``pod``, ``service``, ``nodeport``, ...), and where it goes.

    ``name`` is the name that a query of DNS asks for, and the host in a request of HTTP; ``record`` is the kind of
    address that a query of DNS asks for.
    """

    kind: FlowKind
    address: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    path: str = "pod"
    name: str = ""
    record: Literal["A", "AAAA"] = "A"


class LossSpan(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Lost messages of one flow without an answer between them; times are seconds since 1970 when they were sent."""

    first: float
    last: float
    number: int
    reason: str


class FlowReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The counts of a flow so far; ``gap_ms`` is the longest time without an answer, ``silent_ms`` the present one.

    ``leaked`` are the answers of a flow that policies deny; these flows lose nothing and are never silent.
    """

    kind: FlowKind
    target: str
    path: str = "pod"
    source: str = ""
    sent: int = 0
    answered: int = 0
    lost: int = 0
    broken: int = 0
    leaked: int = 0
    gap_ms: int = 0
    silent_ms: int = 0
    losses: tuple[LossSpan, ...] = ()


class FlowCount:
    """The counts of one flow; times are seconds of a clock that never goes back.

    ``epoch`` is the time since 1970 when that clock was 0.
    """

    def __init__(self, kind: FlowKind, target: str, now: float, *, path: str = "pod", epoch: float = 0.0) -> None:
        self.kind = kind
        self.target = target
        self.path = path
        self.sent = self.answered = self.lost = self.broken = self.leaked = 0
        self._epoch = epoch
        self._open: dict[int, float] = {}
        self._answered_at = now
        self._gap = 0.0
        self._spans: list[LossSpan] = []
        self._in_span = False

    def send(self, now: float) -> int:
        """The number of the next message."""
        self.sent += 1
        self._open[self.sent] = now
        return self.sent

    def answer(self, number: int, now: float) -> None:
        """Counts an answer; a second one, or one after the message was lost, has no effect."""
        at = self._open.pop(number, None)
        if at is None:
            return
        if self.kind in DENIED:
            self.leaked += 1
            self._add(at, "answered though it is denied")
            return
        self.answered += 1
        self._gap = max(self._gap, now - self._answered_at)
        self._answered_at = now
        self._in_span = False

    def expire(self, now: float) -> None:
        """Counts the messages that have waited too long as lost."""
        for number in [number for number, at in self._open.items() if now - at > LOST_S]:
            self.lose(number, "no answer")

    def lose(self, number: int, reason: str) -> None:
        """Counts a message as lost, unless its fate is known; of a denied flow it is the message that was blocked."""
        at = self._open.pop(number, None)
        if at is None:
            return
        if self.kind in DENIED:
            self._in_span = False
            return
        self.lost += 1
        self._add(at, reason)

    def end(self, reason: str = "the connection ended") -> None:
        """Counts the end of a connection."""
        self.broken += 1
        for number in tuple(self._open):
            self.lose(number, reason)

    def _add(self, at: float, reason: str) -> None:
        at += self._epoch
        if self._in_span and self._spans[-1].reason == reason:
            span = self._spans[-1]
            first, last = min(span.first, at), max(span.last, at)
            self._spans[-1] = LossSpan(first=first, last=last, number=span.number + 1, reason=reason)
        elif len(self._spans) < MOST_SPANS:
            self._spans.append(LossSpan(first=at, last=at, number=1, reason=reason))
            self._in_span = True

    def report(self, now: float) -> FlowReport:
        """The counts so far."""
        silent = 0.0 if self.kind in DENIED else now - self._answered_at
        return FlowReport(
            kind=self.kind,
            target=self.target,
            path=self.path,
            sent=self.sent,
            answered=self.answered,
            lost=self.lost,
            broken=self.broken,
            leaked=self.leaked,
            gap_ms=round(1000 * max(self._gap, silent)),
            silent_ms=round(1000 * silent),
            losses=tuple(self._spans),
        )


def since(report: FlowReport, began: float) -> FlowReport:
    """The report without losses and leaks of messages that were sent before a time, in seconds since 1970."""
    before = [span for span in report.losses if span.last < began]
    number = sum(span.number for span in before)
    denied = report.kind in DENIED
    return msgspec.structs.replace(
        report,
        lost=report.lost - (0 if denied else number),
        leaked=report.leaked - (number if denied else 0),
        losses=tuple(span for span in report.losses if span.last >= began),
    )


def summary(reports: Iterable[FlowReport]) -> list[str]:
    """One line for each kind of flow: how many messages of how many were lost, and how many connections ended."""
    by_kind: dict[str, list[FlowReport]] = {}
    for report in reports:
        by_kind.setdefault(report.kind, []).append(report)
    return [_line(kind, flows) for kind, flows in sorted(by_kind.items())]


def _line(kind: str, flows: list[FlowReport]) -> str:
    sent = sum(flow.sent for flow in flows)
    if kind in DENIED:
        return f"{kind}: {sum(flow.leaked for flow in flows)} of {sent} messages leaked in {count(len(flows), 'flow')}"
    lost, broken = sum(flow.lost for flow in flows), sum(flow.broken for flow in flows)
    gap = max(flow.gap_ms for flow in flows)
    ended = f", {count(broken, 'connection')} ended" if "udp" not in kind and kind != "dns" else ""
    number = count(len(flows), "flow")
    return f"{kind}: {lost} of {sent} messages lost in {number}{ended}, longest gap {duration(gap)}"
