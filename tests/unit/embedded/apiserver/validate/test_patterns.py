"""Regular expressions of definitions."""

import pytest

from podwire.embedded.apiserver.validate.patterns import UnsupportedPatternError, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("^[a-z]+$", "abc", True),
        (r"^a\z", "a", True),
        (r"^a\z", "a\n", False),
        ("^[[:alpha:]_]+$", "aZ_", True),
        ("^[[:alpha:]_]+$", "a1", False),
        ("^[^[:digit:]]$", "5", False),
        (r"^[]a]$", "]", True),
        (r"^[+*?]+$", "+*", True),
        (r"^\d$", "\u0665", False),
        (r"^(?i:AB)(?P<x>c)$", "abc", True),
        (r"^\++$", "++", True),
    ],
)
def test_patterns_of_re2_match(pattern: str, text: str, matches: bool) -> None:  # noqa: FBT001
    assert (compile_pattern(pattern).search(text) is not None) is matches


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", r"missing \), unterminated subpattern at position 0"),
        ("a(?!b)", r"unsupported Perl syntax: `\(\?!` at position 1"),
        ("(?<=a)b", r"unsupported Perl syntax: `\(\?<=` at position 0"),
        (r"(a)\1", r"invalid escape sequence: `\\1` at position 3"),
        ("a*+", r"nested repetition operator: `\*\+` at position 1"),
        (r"^\pL$", r"cannot check the escape sequence `\\p` at position 1"),
        ("[[:nothing:]]", r"invalid character class range: `\[:nothing:\]` at position 1"),
    ],
)
def test_other_patterns_are_refused(pattern: str, problem: str) -> None:
    with pytest.raises(UnsupportedPatternError, match=problem):
        compile_pattern(pattern)
