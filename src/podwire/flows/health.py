"""Whether flows are healthy: all have answers, all senders send, and no more messages were lost than allowed.

A sender whose process hangs writes no more counts: its last ones say that all was well. So the number of messages of
each sender must have grown since the check before, at the latest :data:`QUIET_S` after the check began.
"""

from collections.abc import Iterable
from typing import Protocol

from podwire.errors import ClusterError
from podwire.flows.count import FlowReport
from podwire.model.wording import count
from podwire.runtime.clock import Clock

QUIET_S = 30.0
"""Seconds that a flow may stay without an answer after a step, and a sender without a message."""
_POLL_S = 0.5


class WatchedFlows(Protocol):
    """The flows of a cluster, as :class:`podwire.flows.run.FlowRun` runs them."""

    async def reports(self) -> list[FlowReport]:
        """The counts so far."""
        ...

    def silent(self, reports: list[FlowReport]) -> list[str]:
        """The flows without answers, in words."""
        ...

    def senders(self) -> frozenset[str]:
        """The sources whose senders run."""
        ...

    async def settle(self) -> list[FlowReport]:
        """The counts when the fate of every message is known."""
        ...


class FlowHealth:
    """The checks of one run, one after the other; ``most_lost`` is the number of messages that may be lost in all."""

    def __init__(self, flows: WatchedFlows, clock: Clock, most_lost: int) -> None:
        self._flows = flows
        self._clock = clock
        self._most_lost = most_lost
        self._sent: dict[str, int] = {}

    async def problems(self, *, decided: bool) -> list[str]:
        """What is wrong, in words; empty when nothing is.

        ``decided``: it first waits until the fate of all messages is known, so that a loss counts now.
        """
        if decided:
            try:
                self._sent = sent_by_source(await self._flows.reports())
                await self._flows.settle()
            except ClusterError as failure:
                return [str(failure)]
        until = self._clock.monotonic() + QUIET_S
        while True:
            reports = await self._flows.reports()
            sent = sent_by_source(reports)
            problems = [*self._flows.silent(reports), *self._hanging(sent)]
            if not problems or self._clock.monotonic() >= until:
                break
            await self._clock.sleep(_POLL_S)
        self._sent = sent
        lost = sum(flow.lost for flow in reports)
        if lost > self._most_lost:
            were = "was" if lost == 1 else "were"
            problems.append(f"{count(lost, 'message')} {were} lost, at most {self._most_lost} may be")
        return problems

    def _hanging(self, sent: dict[str, int]) -> list[str]:
        return [
            f"the sender of {source} sends nothing: it has sent {count(number, 'message')}, as many as before"
            for source, number in sorted(sent.items())
            if source in self._flows.senders() and self._sent.get(source) == number
        ]


def sent_by_source(reports: Iterable[FlowReport]) -> dict[str, int]:
    """The number of messages that each source has sent."""
    sent: dict[str, int] = {}
    for flow in reports:
        sent[flow.source] = sent.get(flow.source, 0) + flow.sent
    return sent
