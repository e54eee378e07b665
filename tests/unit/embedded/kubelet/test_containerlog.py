"""The format of container logs, and the selection of lines."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from podwire.embedded.kubelet import logs
from podwire.embedded.kubelet.containerlog import PART, Line, LogWriter, parse, render, stamp

T0 = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def test_stamp() -> None:
    assert stamp(T0) == "2026-01-02T03:04:05.000006000Z"


def test_lines_round_trip() -> None:
    assert parse(render("t", "stdout", b"a b", whole=True)) == Line("t", "stdout", b"a b\n")
    assert parse(render("t", "stderr", b"", whole=True)) == Line("t", "stderr", b"\n")
    assert parse(render("t", "stdout", b"part", whole=False)) == Line("t", "stdout", b"part")
    assert parse(b"torn") is None


def test_writer_joins_partial_lines_and_splits_long_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(str(path))
    writer.write("stdout", b"one\ntw", T0)
    writer.write("stderr", b"err\n", T0)
    writer.write("stdout", b"o\n" + b"x" * (PART + 5) + b"\nend", T0)
    writer.close(T0)
    lines, size = logs.read_lines(path)
    texts = [line.text for line in lines]
    assert texts == [b"one\n", b"err\n", b"two\n", b"x" * PART, b"xxxxx\n", b"end"]
    assert size == path.stat().st_size


LINES = [Line(f"2026-01-02T03:04:0{n}.000000000Z", "stderr" if n == 2 else "stdout", b"%d\n" % n) for n in range(5)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, b"0\n1\n2\n3\n4\n"),
        ({"tailLines": "2"}, b"3\n4\n"),
        ({"tailLines": "0"}, b""),
        ({"tailLines": "99"}, b"0\n1\n2\n3\n4\n"),
        ({"sinceTime": "2026-01-02T03:04:03Z"}, b"3\n4\n"),
        ({"sinceSeconds": "2"}, b"4\n"),
        ({"limitBytes": "3"}, b"0\n1"),
        ({"stream": "stderr"}, b"2\n"),
        ({"tailLines": "1", "timestamps": "true"}, b"2026-01-02T03:04:04.000000000Z 4\n"),
    ],
    ids=str,
)
def test_selection_of_lines(query: dict[str, str], expected: bytes) -> None:
    assert logs.choose(LINES, logs.parse_query(query, T0)) == expected


def test_wrong_log_options_are_errors() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        logs.parse_query({"tailLines": "x"}, T0)
