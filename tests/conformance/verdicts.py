"""Compares results of specs with what is known, and writes the table of a run (pure).

A failure that is not known is wrong, and so is a known failure that passes: the list of known failures only shrinks
when somebody takes it out.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.conformance.junit import Outcome
from tests.conformance.rows import Row

from podwire.model.wording import columns

PASSED, FAILED, KNOWN, SURPRISE, NOT_SHOWN = "passed", "failed", "known failure", "passes now", "not shown"
STATES = (PASSED, FAILED, KNOWN, SURPRISE, NOT_SHOWN)
_WRONG = (FAILED, SURPRISE)


@dataclass(frozen=True)
class Verdict:
    """The state of one spec, and the reason for a state other than passed."""

    sig: str
    spec: str
    state: str
    reason: str = ""


def of_tests(rows: Iterable[Row], outcomes: Mapping[str, Outcome]) -> list[Verdict]:
    """A verdict for each row: it passes when every one of its tests passes.

    A test without parameters in brackets stands for all of its parameters.
    """
    return [_of_row(row, outcomes) for row in rows]


def _of_row(row: Row, outcomes: Mapping[str, Outcome]) -> Verdict:
    if not row.tests:
        return Verdict(row.sig, row.spec, NOT_SHOWN, row.reason)
    for test in row.tests:
        named = [outcome for name, outcome in outcomes.items() if name == test or name.startswith(f"{test}[")]
        if not named:
            return Verdict(row.sig, row.spec, FAILED, f"{test} did not run")
        for outcome in named:
            if outcome.result == "failed":
                return Verdict(row.sig, row.spec, FAILED, f"{test}: {outcome.message}")
        if all(outcome.result == "skipped" for outcome in named):
            return Verdict(row.sig, row.spec, FAILED, f"{test} was skipped")
    return Verdict(row.sig, row.spec, PASSED)


def of_suite(rows: Iterable[Row], outcomes: Mapping[str, Outcome], known: Mapping[str, str]) -> list[Verdict]:
    """A verdict for each spec that Kubernetes' own suite ran, for each row that it did not run, and for its set-up."""
    sigs = {row.spec: row.sig for row in rows}
    verdicts = [_of_spec(sigs.get(spec, _sig_of(spec)), spec, outcome, known) for spec, outcome in outcomes.items()]
    verdicts += [
        Verdict(sig, spec, FAILED, "the suite did not run this spec")
        for spec, sig in sigs.items()
        if spec not in outcomes
    ]
    return sorted(verdicts, key=lambda verdict: (verdict.sig, verdict.spec))


def _of_spec(sig: str, spec: str, outcome: Outcome, known: Mapping[str, str]) -> Verdict:
    reason = known.get(spec, "")
    if outcome.result == "failed":
        return Verdict(sig, spec, KNOWN if reason else FAILED, reason or outcome.message)
    return Verdict(
        sig, spec, SURPRISE if reason else PASSED, "take it out of the list of known failures" * bool(reason)
    )


def _sig_of(spec: str) -> str:
    return spec.partition("]")[0].removeprefix("[")


def status(verdicts: Iterable[Verdict]) -> int:
    """The exit status: 1 for a failure that is not known, and for a known failure that passes."""
    return int(any(verdict.state in _WRONG for verdict in verdicts))


def table(verdicts: Sequence[Verdict]) -> str:
    """The numbers of each SIG, then every spec that did not pass."""
    used = [state for state in STATES if any(verdict.state == state for verdict in verdicts)] or [PASSED]
    counts: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        counts.setdefault(verdict.sig, Counter())[verdict.state] += 1
    rows = [("SIG", "SPECS", *map(str.upper, used))]
    rows += [(sig, str(count.total()), *(str(count[state]) for state in used)) for sig, count in counts.items()]
    if len(counts) > 1:
        total = sum(counts.values(), Counter[str]())
        rows.append(("all", str(total.total()), *(str(total[state]) for state in used)))
    lines = [columns(rows)]
    for state in (NOT_SHOWN, KNOWN, SURPRISE, FAILED):
        results = [verdict for verdict in verdicts if verdict.state == state]
        if results:
            lines += ["", f"{state.capitalize()}:", *(f"  {item.spec}: {item.reason}" for item in results)]
    return "\n".join(lines)


def listed(verdicts: Iterable[Verdict]) -> str:
    """One line for each spec: state and code name."""
    return "\n".join(f"{verdict.state:<13}  {verdict.spec}" for verdict in verdicts)
