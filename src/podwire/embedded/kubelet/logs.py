"""Reads container logs for ``kubectl logs``: the last lines, lines since a time, with timestamps, following.

The log of a container is at most 20 MiB (a file of 10 MiB and its predecessor), so both files are read completely. A
client that follows gets new output every 0.1 s until the container's run has ended and all output is sent.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from podwire.embedded.kubelet.containerlog import Line, parse
from podwire.http.answer import Stream
from podwire.http.message import is_true
from podwire.runtime.clock import Clock, parse_rfc3339

_POLL_S = 0.1
_CHUNK = 1 << 18
_TAIL_LINES = 80
_TAIL_BYTES = 2048


class LogQuery(msgspec.Struct, frozen=True):
    """The selection of log lines that a client requests; None means no limit."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    limit_bytes: int | None = None
    since: datetime | None = None
    stream: str = ""


def parse_query(parameters: dict[str, str], now: datetime) -> LogQuery:
    """The query parameters of ``/containerLogs``.

    Raises: ValueError for a parameter that is not a number or not a time.
    """

    def flag(name: str) -> bool:
        return is_true(parameters.get(name))

    def number(name: str) -> int | None:
        return int(parameters[name]) if name in parameters else None

    since = parse_rfc3339(parameters["sinceTime"]) if parameters.get("sinceTime") else None
    seconds = number("sinceSeconds")
    stream = parameters.get("stream", "").lower()
    return LogQuery(
        follow=flag("follow"), previous=flag("previous"), timestamps=flag("timestamps"),
        tail_lines=number("tailLines"), limit_bytes=number("limitBytes"),
        since=now - timedelta(seconds=seconds) if seconds is not None else since,
        stream="" if stream == "all" else stream,
    )  # fmt: skip


def choose(lines: Iterable[Line], query: LogQuery) -> bytes:
    """The text of the lines that the query selects."""
    chosen = [line for line in lines if _matches(line, query)]
    if query.tail_lines is not None:
        chosen = chosen[len(chosen) - query.tail_lines :] if query.tail_lines else []
    data = b"".join(_render(line, query) for line in chosen)
    return data if query.limit_bytes is None else data[: query.limit_bytes]


def _matches(line: Line, query: LogQuery) -> bool:
    if query.stream and line.stream != query.stream:
        return False
    return query.since is None or parse_rfc3339(f"{line.time[:26]}Z") >= query.since


def _render(line: Line, query: LogQuery) -> bytes:
    return line.time.encode() + b" " + line.text if query.timestamps else line.text


def read_lines(path: Path) -> tuple[list[Line], int]:
    """All complete lines of a log file and its predecessor, and the number of bytes read from the file."""
    older_path = path.with_name(f"{path.name}.1")
    older = older_path.read_bytes() if older_path.exists() else b""
    current = path.read_bytes() if path.exists() else b""
    end = current.rfind(b"\n") + 1
    lines = [parse(record) for record in (older + current[:end]).splitlines(keepends=True)]
    return [line for line in lines if line is not None], end


def log_tail(path: Path) -> str:
    """The end of a log as a termination message: at most 80 lines and 2048 bytes."""
    lines, _ = read_lines(path)
    return b"".join(line.text for line in lines[-_TAIL_LINES:])[-_TAIL_BYTES:].decode(errors="replace")


async def follow(  # noqa: PLR0913
    path: Path, query: LogQuery, offset: int, ended: Callable[[], bool], stream: Stream, clock: Clock
) -> None:
    """Sends the lines appended to a log until ``ended`` returns True and all is sent, or the client disconnects."""
    query = msgspec.structs.replace(query, tail_lines=None)
    rest = b""
    while not stream.closed:
        complete = ended()
        data = _read_from(path, offset)
        if data is None:
            offset, rest = 0, b""
            continue
        offset += len(data)
        *records, rest = (rest + data).split(b"\n")
        lines = (parse(record + b"\n") for record in records)
        stream.write(choose((line for line in lines if line is not None), query))
        await stream.drain()
        if not data:
            if complete:
                break
            await clock.sleep(_POLL_S)
    stream.close()


def _read_from(path: Path, offset: int) -> bytes | None:
    """The next bytes; None when a new file has replaced the file."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size < offset:
                return None
            file.seek(offset)
            return file.read(_CHUNK)
    except FileNotFoundError:
        return b""
