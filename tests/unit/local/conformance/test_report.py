"""Reports of conformance."""

import json
from xml.etree import ElementTree

from podwire.local.conformance import report
from podwire.local.conformance.verdicts import CaseResult, Failure

FAILURE = Failure(
    case="two",
    step=1,
    source="x/a",
    target="x/b",
    protocol="UDP",
    port=53,
    family=6,
    expected="allowed",
    observed="nothing arrived",
    evaluator="blocked",
)
RESULTS = (
    CaseResult(file="f.json", case="one", tags=("egress",), checks=10, seconds=0.5),
    CaseResult(file="f.json", case="two", tags=("egress", "udp"), checks=5, failures=(FAILURE,), seconds=0.25),
    CaseResult(
        file="g.json", case="<three>", tags=(), checks=0, problem='create_policy x/p: "spec" & more', seconds=0.1
    ),
)


def test_table_counts_by_file_and_tag_and_names_failures() -> None:
    lines = report.table(RESULTS).splitlines()
    assert [line.split() for line in lines[1:5]] == [
        ["f.json", "2", "1", "1", "15", "1", "0.8"],
        ["egress", "2", "1", "1", "15", "1", "0.8"],
        ["udp", "1", "0", "1", "5", "1", "0.2"],
        ["g.json", "1", "0", "1", "0", "0", "0.1"],
    ]
    assert f"  f.json: {FAILURE}" in lines
    assert '  g.json: <three>: create_policy x/p: "spec" & more' in lines
    assert lines[-1] == "1 of 3 cases passed, 14 of 15 checks, in 1 s"


def test_many_failures_are_cut_in_the_table_alone() -> None:
    many = (CaseResult(file="f.json", case="two", tags=(), checks=60, failures=(FAILURE,) * 60),)
    assert "  and 10 more; -o json has all of them" in report.table(many).splitlines()
    assert len(json.loads(report.as_json(many))["cases"][0]["failures"]) == 60


def test_json_has_everything() -> None:
    document = json.loads(report.as_json(RESULTS))
    assert document["files"][0] == {
        "file": "f.json", "cases": 2, "failedCases": 1, "checks": 15, "failedChecks": 1, "seconds": 0.75,
    }  # fmt: skip
    (failure,) = document["cases"][1]["failures"]
    assert (failure["source"], failure["family"], failure["whose"]) == ("x/a", 6, "the file is wrong")
    assert document["cases"][2]["problem"] == 'create_policy x/p: "spec" & more'


def test_junit_is_xml_with_a_test_for_each_case() -> None:
    root = ElementTree.fromstring(report.junit(RESULTS))
    suites = {suite.get("name"): suite for suite in root}
    assert (suites["f.json"].get("tests"), suites["f.json"].get("failures")) == ("2", "1")
    assert suites["g.json"].get("errors") == "1"
    failure = suites["f.json"].find("testcase[@name='two']/failure")
    assert failure is not None
    assert failure.text == str(FAILURE)
    broken = suites["g.json"].find("testcase[@name='<three>']/error")
    assert broken is not None
    assert broken.get("message") == 'create_policy x/p: "spec" & more'
