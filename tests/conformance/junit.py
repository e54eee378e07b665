"""Reads JUnit reports: those of pytest, and those of Ginkgo, which Kubernetes' own suite writes.

Ginkgo writes a ``testcase`` for each spec of the binary, with ``[It]`` before its name and its labels behind, and
``skipped`` for the specs that its focus leaves out. Set-up and reports of the suite are test cases, too: a set-up that
fails ends the run.
"""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

_IT = "[It] "
_BAD = ("failure", "error")


@dataclass(frozen=True)
class Outcome:
    """The result of one test: ``passed``, ``failed`` or ``skipped``; what it says about it."""

    result: str
    message: str = ""


def read_ginkgo(report: Path) -> dict[str, Outcome]:
    """Specs that ran, by code name. What the suite itself does before and after specs is there when it failed.

    Raises: ElementTree.ParseError for a file that is no XML.
    """
    result = {}
    for case in _cases(report):
        name, outcome = case.get("name", ""), _outcome(case)
        if name.startswith(_IT):
            if outcome.result != "skipped":
                result[name.removeprefix(_IT)] = outcome
        elif outcome.result == "failed":
            result[name] = outcome
    return result


def read_pytest(report: Path) -> dict[str, Outcome]:
    """Tests by path and name, as in ``e2e/test_pods.py::test_probes[exec]``.

    A test with several entries, such as a failed call and a failed end of a fixture, has the worst result.

    Raises: ElementTree.ParseError for a file that is no XML.
    """
    outcomes: dict[str, Outcome] = {}
    for case in _cases(report):
        module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        name = f"{module}.py::{case.get('name', '')}"
        outcome = _outcome(case)
        if name not in outcomes or outcome.result == "failed":
            outcomes[name] = outcome
    return outcomes


def _cases(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).iter("testcase"))


def _outcome(case: ElementTree.Element) -> Outcome:
    for child in case:
        if child.tag in _BAD:
            lines = (child.get("message") or child.text or "").strip().splitlines()
            return Outcome("failed", lines[0] if lines else case.get("status", ""))
    if any(child.tag == "skipped" for child in case):
        return Outcome("skipped")
    return Outcome("passed")
