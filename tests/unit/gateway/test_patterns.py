"""Regular expressions are read as the engine reads them, or refused."""

import pytest

from podwire.gateway.patterns import groups_of, matches_whole, pattern_problem


def test_expressions_that_only_other_libraries_read_are_refused() -> None:
    assert not pattern_problem("/a(/|$)(.*)")
    assert pattern_problem("/a(?=b)")
    assert pattern_problem(r"/(a)\1")


def test_without_the_library_of_the_engine_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podwire.gateway.patterns.re2", None)
    pattern = "/without-the-library/(.*)"
    assert "google-re2" in pattern_problem(pattern)
    assert not matches_whole(pattern, "/without-the-library/a")
    assert groups_of(pattern) == 0
