"""Formats the results of conformance cases as a table, as JSON and as JUnit XML (pure)."""

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

import msgspec

from podwire.local.conformance.verdicts import CaseResult
from podwire.model.wording import columns

_SHOWN = 50


def table(results: Sequence[CaseResult]) -> str:
    """The numbers of each file and tag, then the failures."""
    rows: list[tuple[str, ...]] = [("FILE", "TAG", "CASES", "PASSED", "FAILED", "CHECKS", "FAILED", "SECONDS")]
    for file, group in _grouped(results).items():
        rows.append(_row(file, "", group))
        rows += [_row("", tag, [result for result in group if tag in result.tags]) for tag in _tags(group)]
    lines = [columns(rows)]
    failed = [line for result in results for line in failures_of(result)]
    if failed:
        lines += ["", "Failed:", *(f"  {line}" for line in failed[:_SHOWN])]
        if len(failed) > _SHOWN:
            lines.append(f"  and {len(failed) - _SHOWN} more; -o json has all of them")
    return "\n".join((*lines, "", summary(results)))


def summary(results: Sequence[CaseResult]) -> str:
    """One line: cases, checks, failures."""
    bad = sum(not result.passed for result in results)
    checks, failures = sum(result.checks for result in results), sum(len(result.failures) for result in results)
    seconds = sum(result.seconds for result in results)
    cases = f"{len(results) - bad} of {len(results)} cases passed"
    return f"{cases}, {checks - failures} of {checks} checks, in {seconds:.0f} s"


def failures_of(result: CaseResult) -> list[str]:
    """One line for each problem and failed check of a case."""
    broken = [f"{result.case}: {result.problem}"] if result.problem else []
    return [f"{result.file}: {line}" for line in (*broken, *map(str, result.failures))]


def as_json(results: Sequence[CaseResult]) -> str:
    """One JSON document with the numbers of each file and all cases."""
    document = {
        "files": [
            {
                "file": file,
                "cases": len(group),
                "failedCases": sum(not result.passed for result in group),
                "checks": sum(result.checks for result in group),
                "failedChecks": sum(len(result.failures) for result in group),
                "seconds": round(sum(result.seconds for result in group), 3),
            }
            for file, group in _grouped(results).items()
        ],
        "cases": [
            {
                "file": result.file,
                "case": result.case,
                "tags": result.tags,
                "passed": result.passed,
                "checks": result.checks,
                "seconds": round(result.seconds, 3),
                "problem": result.problem,
                "failures": [msgspec.to_builtins(failure) | {"whose": failure.whose} for failure in result.failures],
            }
            for result in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def junit(results: Sequence[CaseResult]) -> str:
    """JUnit XML for build servers: a suite for each file, a test for each case."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for file, group in _grouped(results).items():
        numbers = (
            f'tests="{len(group)}" failures="{sum(bool(result.failures) for result in group)}" '
            f'errors="{sum(bool(result.problem) for result in group)}" '
            f'time="{sum(result.seconds for result in group):.3f}"'
        )
        lines.append(f"  <testsuite name={quoteattr(file)} {numbers}>")
        for result in group:
            lines.append(
                f'    <testcase classname={quoteattr(file)} name={quoteattr(result.case)} time="{result.seconds:.3f}">'
            )
            if result.failures:
                text = "\n".join(map(str, result.failures))
                message = quoteattr(f"{len(result.failures)} of {result.checks} checks failed")
                lines.append(f"      <failure message={message}>{escape(text)}</failure>")
            if result.problem:
                lines.append(f"      <error message={quoteattr(result.problem)}/>")
            lines.append("    </testcase>")
        lines.append("  </testsuite>")
    return "\n".join((*lines, "</testsuites>"))


def _grouped(results: Iterable[CaseResult]) -> dict[str, list[CaseResult]]:
    by_file: dict[str, list[CaseResult]] = {}
    for result in results:
        by_file.setdefault(result.file, []).append(result)
    return by_file


def _tags(group: Iterable[CaseResult]) -> list[str]:
    return sorted({tag for result in group for tag in result.tags})


def _row(file: str, tag: str, group: Sequence[CaseResult]) -> tuple[str, ...]:
    bad = sum(not result.passed for result in group)
    numbers = (
        len(group),
        len(group) - bad,
        bad,
        sum(result.checks for result in group),
        sum(len(result.failures) for result in group),
    )
    return (file, tag, *map(str, numbers), f"{sum(result.seconds for result in group):.1f}")
