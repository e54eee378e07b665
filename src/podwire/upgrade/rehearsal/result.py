"""What a rehearsal showed: losses there and on the way back, connections, and what the copy does not have. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from podwire.flows import proof
from podwire.flows.proof import LossProof
from podwire.upgrade.plan.values import UpgradePlan
from podwire.upgrade.rehearsal.nodes import CopiedNode
from podwire.upgrade.rehearsal.steps import left_out


class LossCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one direction: lost of sent, and denied ones that leaked."""

    lost: int
    sent: int
    leaked: int
    denied: int

    @property
    def text(self) -> str:
        """As ``0 of 1,234 messages lost, 0 of 56 denied messages leaked``."""
        lost = f"{self.lost:,} of {self.sent:,} messages lost"
        return f"{lost}, {self.leaked:,} of {self.denied:,} denied messages leaked"


class RehearsalResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole result; ``there`` and ``back`` None: that direction was not measured."""

    plan: str
    stands_for: dict[str, str]
    """By node of the copy the node of the cluster."""
    steps: tuple[str, ...] = ()
    """The steps that were tried."""
    by_hand: tuple[str, ...] = ()
    """The steps that were not."""
    there: LossCounts | None = None
    back: LossCounts | None = None
    problems: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    """In what the copy differs from the cluster."""

    @property
    def passed(self) -> bool:
        """Whether nothing was lost and nothing failed."""
        directions = [counts for counts in (self.there, self.back) if counts is not None]
        return not self.problems and not any(counts.lost or counts.leaked for counts in directions)


def counts_of(measured: LossProof | None) -> LossCounts | None:
    """The counts of a proof."""
    if measured is None:
        return None
    lost, sent, leaked, denied = proof.counts(measured)
    return LossCounts(lost=lost, sent=sent, leaked=leaked, denied=denied)


def result_of(plan: UpgradePlan, nodes: Sequence[CopiedNode], differences: Sequence[str]) -> RehearsalResult:
    """The result before anything was tried."""
    manual = left_out(plan)
    return RehearsalResult(
        plan=plan.id,
        stands_for={node.name: node.original for node in nodes},
        steps=tuple(step.id for step in plan.steps if step not in manual),
        by_hand=tuple(step.id for step in manual),
        differences=tuple(differences),
    )


def result_text(result: RehearsalResult) -> str:
    """The result as lines of text."""
    return "".join(f"{line}\n" for line in _lines(result))


def _lines(result: RehearsalResult) -> Iterator[str]:
    verdict = "passed" if result.passed else "FAILED"
    yield f"rehearsal of plan {result.plan}: {verdict}"
    yield "nodes: " + ", ".join(f"{name} for {original}" for name, original in result.stands_for.items())
    yield f"steps: {', '.join(result.steps) or 'none'}"
    if result.by_hand:
        yield f"not tried, since they are for a person: {', '.join(result.by_hand)}"
    for direction, counts in (("upgrade", result.there), ("rollback", result.back)):
        yield f"{direction}: {counts.text if counts is not None else 'not measured'}"
    yield from (f"problem: {problem}" for problem in result.problems)
    yield from (f"the copy differs: {difference}" for difference in result.differences)
