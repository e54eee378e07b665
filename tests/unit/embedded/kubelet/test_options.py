"""The kubelet's query parameters: streams of exec and attach, parts of logs."""

import datetime

import pytest

from podwire.embedded.kubelet.logs import parse_query
from podwire.embedded.kubelet.remote import StreamOptions, parse_options

NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


@pytest.mark.parametrize("text", ["true", "True", "1", "yes", ""])
def test_streams_are_wanted_in_any_spelling(text: str) -> None:
    expected = StreamOptions(command=("a", "b"), stdin=True, stdout=True, stderr=True)
    names = ("stdin", "stdout", "stderr"), ("input", "output", "error")
    for spelling in names:
        pairs = [("command", "a"), ("command", "b"), ("tty", "0"), *((name, text) for name in spelling)]
        assert parse_options(pairs) == expected


def test_a_terminal_has_no_separate_errors() -> None:
    assert parse_options([("stdout", "1"), ("stderr", "1"), ("tty", "1")]) == StreamOptions(stdout=True, tty=True)


@pytest.mark.parametrize("pairs", [[], [("stdin", "false"), ("stdout", "0")], [("tty", "1"), ("stderr", "1")]])
def test_a_session_without_streams_is_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match="at least 1 of stdin, stdout, stderr"):
        parse_options(pairs)


@pytest.mark.parametrize("text", ["true", "True", "1", "yes", ""])
def test_log_flags_in_any_spelling(text: str) -> None:
    query = parse_query({"follow": text, "previous": text, "timestamps": text}, NOW)
    assert query.follow and query.previous and query.timestamps
    query = parse_query({"follow": "False", "previous": "0"}, NOW)
    assert not (query.follow or query.previous or query.timestamps)


def test_numbers_of_logs_must_be_numbers() -> None:
    assert parse_query({"tailLines": "0"}, NOW).tail_lines == 0
    with pytest.raises(ValueError, match="invalid literal"):
        parse_query({"tailLines": ""}, NOW)
