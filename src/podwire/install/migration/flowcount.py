"""Counts what became of the numbered messages of one flow. Pure.

A flow sends messages with the numbers 1, 2, 3, ... and gets each number back. A message without an answer within
:data:`LOST_S` is lost. A flow of TCP whose connection ends is broken: it begins another connection, and the messages
without an answer are lost.
"""

from collections.abc import Iterable

import msgspec

PORT = 7007
"""The port of the servers of flows."""
LOST_S = 5.0
"""Seconds. A retransmission of TCP may take 3 s after the second loss."""


class FlowReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The counts of a flow so far; ``gap_ms`` is the longest time without an answer, ``silent_ms`` the present one."""

    kind: str
    target: str
    sent: int = 0
    answered: int = 0
    lost: int = 0
    broken: int = 0
    gap_ms: int = 0
    silent_ms: int = 0


class FlowCount:
    """The counts of one flow; times are seconds of a clock that never goes back."""

    def __init__(self, kind: str, target: str, now: float) -> None:
        self.kind = kind
        self.target = target
        self.sent = self.answered = self.lost = self.broken = 0
        self._open: dict[int, float] = {}
        self._answered_at = now
        self._gap = 0.0

    def send(self, now: float) -> int:
        """The number of the next message."""
        self.sent += 1
        self._open[self.sent] = now
        return self.sent

    def answer(self, number: int, now: float) -> None:
        """Counts an answer; a second one, or one after the message was lost, has no effect."""
        if self._open.pop(number, None) is not None:
            self.answered += 1
            self._gap = max(self._gap, now - self._answered_at)
            self._answered_at = now

    def expire(self, now: float) -> None:
        """Counts the messages that have waited too long as lost."""
        for number in [number for number, at in self._open.items() if now - at > LOST_S]:
            del self._open[number]
            self.lost += 1

    def end(self) -> None:
        """Counts the end of a connection."""
        self.broken += 1
        self.lost += len(self._open)
        self._open.clear()

    def report(self, now: float) -> FlowReport:
        """The counts so far."""
        silent = now - self._answered_at
        return FlowReport(
            kind=self.kind,
            target=self.target,
            sent=self.sent,
            answered=self.answered,
            lost=self.lost,
            broken=self.broken,
            gap_ms=round(1000 * max(self._gap, silent)),
            silent_ms=round(1000 * silent),
        )


def summary(reports: Iterable[FlowReport]) -> list[str]:
    """One line for each kind of flow: how many messages of how many were lost, and how many connections ended."""
    by_kind: dict[str, list[FlowReport]] = {}
    for report in reports:
        by_kind.setdefault(report.kind, []).append(report)
    lines = []
    for kind, flows in sorted(by_kind.items()):
        lost, sent = (sum(getattr(flow, field) for flow in flows) for field in ("lost", "sent"))
        broken, gap = sum(flow.broken for flow in flows), max(flow.gap_ms for flow in flows)
        ended = f", {broken} connections ended" if kind != "udp" else ""
        lines.append(f"{kind}: {lost} of {sent} messages lost in {len(flows)} flows{ended}, longest gap {gap} ms")
    return lines
