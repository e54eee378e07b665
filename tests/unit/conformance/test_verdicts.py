"""Results become verdicts, a table and an exit status."""

from tests.conformance import verdicts
from tests.conformance.junit import Outcome
from tests.conformance.rows import Row
from tests.conformance.verdicts import Verdict

A, B, C = "[sig-a] one [Conformance]", "[sig-a] two [Conformance]", "[sig-b] three [Conformance]"
ROWS = [
    Row("sig-a", A, tests=("e2e/t.py::x", "e2e/t.py::y[1]")),
    Row("sig-a", B, tests=("e2e/t.py::z",)),
    Row("sig-b", C, reason="needs a real image"),
]
GOOD, BAD = Outcome("passed"), Outcome("failed", "why")


def test_a_spec_passes_with_all_of_its_tests() -> None:
    outcomes = {"e2e/t.py::x[1]": GOOD, "e2e/t.py::x[2]": GOOD, "e2e/t.py::y[1]": GOOD, "e2e/t.py::z": GOOD}
    result = verdicts.of_tests(ROWS, outcomes)
    assert [(item.spec, item.state) for item in result] == [(A, "passed"), (B, "passed"), (C, "not shown")]
    assert verdicts.status(result) == 0


def test_failed_skipped_and_absent_tests_fail_their_spec() -> None:
    result = verdicts.of_tests(ROWS, {"e2e/t.py::x[1]": GOOD, "e2e/t.py::x[2]": BAD, "e2e/t.py::z": Outcome("skipped")})
    assert [item.reason for item in result] == ["e2e/t.py::x: why", "e2e/t.py::z was skipped", "needs a real image"]
    absent = verdicts.of_tests(ROWS, {"e2e/t.py::x": GOOD, "e2e/t.py::y[10]": GOOD, "e2e/t.py::z": GOOD})
    assert absent[0] == Verdict("sig-a", A, "failed", "e2e/t.py::y[1] did not run")
    assert (verdicts.status(result), verdicts.status(absent)) == (1, 1)


def test_known_failures_are_no_failures_until_they_pass() -> None:
    known = {A: "no such program"}
    run = verdicts.of_suite(ROWS, {A: BAD, B: GOOD, C: GOOD}, known)
    assert [(item.state, item.reason) for item in run] == [
        ("known failure", "no such program"), ("passed", ""), ("passed", ""),
    ]  # fmt: skip
    assert verdicts.status(run) == 0
    mended = verdicts.of_suite(ROWS, {A: GOOD, B: GOOD, C: GOOD}, known)
    assert (mended[0].state, mended[0].reason) == ("passes now", "take it out of the list of known failures")
    assert verdicts.status(mended) == 1


def test_suite_must_run_every_spec_and_its_own_steps() -> None:
    run = verdicts.of_suite(ROWS, {A: GOOD, B: GOOD, "[SynchronizedAfterSuite]": BAD}, {})
    assert [(item.sig, item.state, item.reason) for item in run if item.state != "passed"] == [
        ("SynchronizedAfterSuite", "failed", "why"), ("sig-b", "failed", "the suite did not run this spec"),
    ]  # fmt: skip


def test_table_counts_by_sig_and_names_failures() -> None:
    result = [
        Verdict("sig-a", A, "passed"),
        Verdict("sig-a", B, "failed", "why"),
        Verdict("sig-b", C, "not shown", "r"),
    ]
    assert verdicts.table(result).splitlines() == [
        "SIG    SPECS  PASSED  FAILED  NOT SHOWN",
        "sig-a  2      1       1       0",
        "sig-b  1      0       0       1",
        "all    3      1       1       1",
        "",
        "Not shown:",
        f"  {C}: r",
        "",
        "Failed:",
        f"  {B}: why",
    ]
    assert verdicts.listed(result[:2]).splitlines() == [f"passed         {A}", f"failed         {B}"]
