"""The results of conformance cases as a table, as JSON and as JUnit's XML (pure)."""

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape, quoteattr

import msgspec

from podwire.local.conformance.verdicts import Result
from podwire.local.probe.result import columns

_SHOWN = 50


def table(results: Sequence[Result]) -> str:
    """Files and tags with their numbers, then what failed."""
    rows: list[tuple[str, ...]] = [("FILE", "TAG", "CASES", "PASSED", "FAILED", "CHECKS", "FAILED", "SECONDS")]
    for file, some in _grouped(results).items():
        rows.append(_row(file, "", some))
        rows += [_row("", tag, [one for one in some if tag in one.tags]) for tag in _tags(some)]
    lines = [columns(rows)]
    failed = [line for one in results for line in failures_of(one)]
    if failed:
        lines += ["", "Failed:", *(f"  {line}" for line in failed[:_SHOWN])]
        if len(failed) > _SHOWN:
            lines.append(f"  and {len(failed) - _SHOWN} more; -o json has all of them")
    return "\n".join((*lines, "", summary(results)))


def summary(results: Sequence[Result]) -> str:
    """One line: cases, checks, failures."""
    bad = sum(not one.passed for one in results)
    checks, failures = sum(one.checks for one in results), sum(len(one.failures) for one in results)
    seconds = sum(one.seconds for one in results)
    return (
        f"{len(results) - bad} of {len(results)} cases hold, {checks - failures} of {checks} checks, in {seconds:.0f} s"
    )


def failures_of(result: Result) -> list[str]:
    """A line for everything that is wrong with a case."""
    broken = [f"{result.case}: {result.problem}"] if result.problem else []
    return [f"{result.file}: {line}" for line in (*broken, *map(str, result.failures))]


def as_json(results: Sequence[Result]) -> str:
    """One document with all of it."""
    document = {
        "files": [
            {
                "file": file,
                "cases": len(some),
                "failedCases": sum(not one.passed for one in some),
                "checks": sum(one.checks for one in some),
                "failedChecks": sum(len(one.failures) for one in some),
                "seconds": round(sum(one.seconds for one in some), 3),
            }
            for file, some in _grouped(results).items()
        ],
        "cases": [
            {
                "file": one.file,
                "case": one.case,
                "tags": one.tags,
                "passed": one.passed,
                "checks": one.checks,
                "seconds": round(one.seconds, 3),
                "problem": one.problem,
                "failures": [msgspec.to_builtins(failure) | {"whose": failure.whose} for failure in one.failures],
            }
            for one in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def junit(results: Sequence[Result]) -> str:
    """The XML that build servers read: a suite for each file, a test for each case."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for file, some in _grouped(results).items():
        numbers = (
            f'tests="{len(some)}" failures="{sum(bool(one.failures) for one in some)}" '
            f'errors="{sum(bool(one.problem) for one in some)}" time="{sum(one.seconds for one in some):.3f}"'
        )
        lines.append(f"  <testsuite name={quoteattr(file)} {numbers}>")
        for one in some:
            lines.append(
                f'    <testcase classname={quoteattr(file)} name={quoteattr(one.case)} time="{one.seconds:.3f}">'
            )
            if one.failures:
                text = "\n".join(map(str, one.failures))
                message = quoteattr(f"{len(one.failures)} of {one.checks} checks failed")
                lines.append(f"      <failure message={message}>{escape(text)}</failure>")
            if one.problem:
                lines.append(f"      <error message={quoteattr(one.problem)}/>")
            lines.append("    </testcase>")
        lines.append("  </testsuite>")
    return "\n".join((*lines, "</testsuites>"))


def _grouped(results: Iterable[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for one in results:
        found.setdefault(one.file, []).append(one)
    return found


def _tags(some: Iterable[Result]) -> list[str]:
    return sorted({tag for one in some for tag in one.tags})


def _row(file: str, tag: str, some: Sequence[Result]) -> tuple[str, ...]:
    bad = sum(not one.passed for one in some)
    numbers = (len(some), len(some) - bad, bad, sum(one.checks for one in some), sum(len(one.failures) for one in some))
    return (file, tag, *map(str, numbers), f"{sum(one.seconds for one in some):.1f}")
