"""The table of Kubernetes' conformance specs: ``specs/SIG.yaml``, a row for each spec.

A file has groups, and each group specs: ``[SIG] GROUP SPEC [Conformance]`` is the code name of a spec in Kubernetes'
``test/conformance/testdata/conformance.yaml``. The value of a spec is either the list of tests that show the same
behaviour, as paths below ``tests/`` with the test's name, or the reason why no test shows it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
SPECS = HERE / "specs"
KNOWN = HERE / "known.yaml"
_FAILS = ("known to fail:", "needs a real image's program:")
"""How the reason of a row begins when the spec fails in Kubernetes' own suite, too."""


@dataclass(frozen=True)
class Row:
    """One spec: its SIG without brackets, its code name, and either tests or a reason."""

    sig: str
    spec: str
    tests: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Known:
    """What is known not to hold yet; both only get smaller."""

    not_shown: int
    """How many specs no test shows."""
    failures: dict[str, str]
    """Specs that fail in Kubernetes' own suite, with the reason."""


def read_rows(folder: Path = SPECS) -> list[Row]:
    """All rows in the order of the files.

    Raises: ValueError for a row that has neither tests nor a reason.
    """
    rows = []
    for file in sorted(folder.glob("*.yaml")):
        for group, specs in yaml.load(file.read_text(), Loader=yaml.CSafeLoader).items():
            rows += [_row(file.stem, f"[{file.stem}] {group} {spec} [Conformance]", value)
                     for spec, value in specs.items()]  # fmt: skip
    return rows


def _row(sig: str, spec: str, value: Any) -> Row:
    if isinstance(value, str) and value:
        return Row(sig, spec, reason=value)
    if isinstance(value, list) and value and all(isinstance(test, str) and "::" in test for test in value):
        return Row(sig, spec, tests=tuple(value))
    raise ValueError(f"{spec}: expected a list of tests as FILE::NAME, or a reason, found {value!r}")


def read_known(file: Path = KNOWN) -> Known:
    """What is known not to hold yet."""
    document = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
    return Known(document["notShown"], document["failures"] or {})


def expected_failures(rows: list[Row], known: Known) -> dict[str, str]:
    """Specs that fail in Kubernetes' own suite, with the reason: those of the list, and rows that say so."""
    stated = {row.spec: row.reason for row in rows if row.reason.startswith(_FAILS)}
    return {**stated, **known.failures}


def chosen(rows: list[Row], sigs: list[str]) -> list[Row]:
    """The rows of some SIGs, with or without ``sig-`` before their names; all rows for an empty list.

    Raises: ValueError for a SIG without rows.
    """
    expected = {sig if sig.startswith("sig-") else f"sig-{sig}" for sig in sigs}
    there = {row.sig for row in rows}
    if unknown := expected - there:
        raise ValueError(f"no specs of {', '.join(sorted(unknown))}; expected one of {', '.join(sorted(there))}")
    return [row for row in rows if not expected or row.sig in expected]
