"""Reports of Ginkgo and pytest are read."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.conformance.junit import Outcome, read_ginkgo, read_pytest

GINKGO = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="7586" disabled="7133" errors="0" failures="1" time="12.5">
  <testsuite name="Kubernetes e2e suite" package="/usr/local/bin" tests="7586" skipped="7133" failures="1">
    <properties><property name="FocusStrings" value="\\[Conformance\\]"></property></properties>
    <testcase name="[SynchronizedBeforeSuite]" classname="Kubernetes e2e suite" status="passed" time="0.4"></testcase>
    <testcase name="[It] [sig-apps] Job works [Conformance]" classname="Kubernetes e2e suite" status="passed" time="1">
    </testcase>
    <testcase name="[It] [sig-apps] Job isn&#39;t run" classname="Kubernetes e2e suite" status="skipped" time="0">
      <skipped message="skipped"></skipped>
    </testcase>
    <testcase name="[It] [sig-node] Pods fail [Conformance]" classname="Kubernetes e2e suite" status="failed" time="2">
      <failure message="expected true to be false&#xA;at line 3" type="failed">[FAILED] long</failure>
      <system-err>STEP: ...</system-err>
    </testcase>
    <testcase name="[It] [sig-node] Pods hang [Conformance]" classname="Kubernetes e2e suite" status="timedout">
      <error message="" type="timedout"></error>
    </testcase>
    <testcase name="[SynchronizedAfterSuite]" classname="Kubernetes e2e suite" status="failed" time="0">
      <failure message="no nodes" type="failed"></failure>
    </testcase>
  </testsuite>
</testsuites>
"""
PYTEST = """<testsuites><testsuite name="pytest">
<testcase classname="tests.e2e.test_a" name="test_b[x y]" time="0.1" />
<testcase classname="tests.e2e.test_a" name="test_c"><error message="failed on teardown&#10;more">x</error></testcase>
<testcase classname="tests.e2e.test_a" name="test_c" time="0.1" />
<testcase classname="tests.unit.d.test_e" name="test_f"><skipped type="pytest.skip" message="no root" /></testcase>
</testsuite></testsuites>
"""


def test_specs_of_ginkgo_have_their_code_names(tmp_path: Path) -> None:
    report = tmp_path / "junit_01.xml"
    report.write_text(GINKGO)
    assert read_ginkgo(report) == {
        "[sig-apps] Job works [Conformance]": Outcome("passed"),
        "[sig-node] Pods fail [Conformance]": Outcome("failed", "expected true to be false"),
        "[sig-node] Pods hang [Conformance]": Outcome("failed", "timedout"),
        "[SynchronizedAfterSuite]": Outcome("failed", "no nodes"),
    }


def test_tests_of_pytest_have_path_and_worst_result(tmp_path: Path) -> None:
    report = tmp_path / "tests.xml"
    report.write_text(PYTEST)
    assert read_pytest(report) == {
        "e2e/test_a.py::test_b[x y]": Outcome("passed"),
        "e2e/test_a.py::test_c": Outcome("failed", "failed on teardown"),
        "unit/d/test_e.py::test_f": Outcome("skipped"),
    }


def test_a_report_that_is_cut_is_an_error(tmp_path: Path) -> None:
    report = tmp_path / "cut.xml"
    report.write_text(GINKGO[:700])
    with pytest.raises(ElementTree.ParseError):
        read_ginkgo(report)
