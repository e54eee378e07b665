"""Results of probes as JSON lines, as a flat table and as the overview of ``podwire up``; pure.

One JSON object a line, fields: from, to, protocol, port, reached, answered_by, source_seen, ms. What
was expected is told by the exit status and the table.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from podwire.local.probe.plan import HOST, Attempt


class Result(msgspec.Struct, frozen=True):
    """What one attempt found."""

    attempt: Attempt
    reached: bool
    answered_by: str = ""
    """``namespace/pod`` if the server said so."""
    source_seen: str = ""
    """The client address that the server saw."""
    ms: float = 0.0
    error: str = ""

    @property
    def surprising(self) -> bool:
        """Whether the outcome differs from what the cluster's objects promise."""
        return self.reached != self.attempt.expected


def as_json(result: Result) -> str:
    """One line of JSON."""
    attempt = result.attempt
    return msgspec.json.encode(
        {
            "from": attempt.source.name,
            "to": attempt.target,
            "protocol": attempt.port.protocol,
            "port": attempt.port.number,
            "reached": result.reached,
            "answered_by": result.answered_by,
            "source_seen": result.source_seen,
            "ms": round(result.ms, 2),
        }
    ).decode()


def as_table(results: Sequence[Result]) -> str:
    """A row an attempt, in columns."""
    head = ("FROM", "TO", "PORT", "REACHED", "ANSWERED BY", "SOURCE SEEN", "MS", "")
    rows = [
        (
            r.attempt.source.name,
            r.attempt.target,
            str(r.attempt.port),
            "yes" if r.reached else f"no ({r.error})" if r.error else "no",
            r.answered_by or "-",
            r.source_seen or "-",
            f"{r.ms:.1f}",
            _surprise(r),
        )
        for r in results
    ]
    return columns([head, *rows])


def _surprise(result: Result) -> str:
    if not result.surprising:
        return ""
    return "<- expected to be reached" if result.attempt.expected else "<- not expected to be reached"


def columns(rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Rows as aligned columns, two spaces apart, without trailing blanks."""
    table = [tuple(row) for row in rows]
    widths = [max(len(row[i]) for row in table if i < len(row)) for i in range(max(map(len, table), default=0))]
    lines = ("  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in table)
    return "\n".join(indent + line for line in lines)


def summary(results: Sequence[Result]) -> str:
    """One line: how many attempts, how many as expected, the median time of those reached."""
    surprises = sum(1 for r in results if r.surprising)
    times = sorted(r.ms for r in results if r.reached)
    median = f", median {times[len(times) // 2]:.1f} ms" if times else ""
    good = len(results) - surprises
    return f"{good} of {len(results)} as expected{median}" + (f"; {surprises} NOT as expected" if surprises else "")


def overview(results: Sequence[Result]) -> str:
    """The connectivity table: pods to pods, pods to Services by name, host to NodePorts."""
    pods = [r for r in results if not r.attempt.named and r.attempt.source.name != HOST]
    named = [r for r in results if r.attempt.named]
    host = [r for r in results if r.attempt.source.name == HOST]
    parts = []
    if pods:
        parts.append("Pods to pods (o reached, X not):\n" + _matrix(pods))
    if named:
        parts.append("Pods to Services by name, from one pod of each node:\n" + _grid(named, _service_port, _node_of))
    if host:
        parts.append("Host to NodePorts:\n" + _grid(host, _node_port, _target_node))
    failed = [r for r in results if r.surprising]
    if failed:
        parts.append(
            "Not as expected:\n"
            + columns(
                [(r.attempt.source.name, "->", r.attempt.target, str(r.attempt.port), r.error) for r in failed[:20]],
                "  ",
            )
        )
    return "\n\n".join([*parts, summary(results)])


def _matrix(results: Sequence[Result]) -> str:
    names = list(dict.fromkeys(r.attempt.source.name for r in results))
    nodes = {r.attempt.source.name: r.attempt.source.node for r in results}
    cells: dict[tuple[str, str], bool] = {}
    for r in results:
        at = (r.attempt.source.name, r.attempt.target)
        cells[at] = cells.get(at, True) and not r.surprising
    rows = [("#", "POD", "NODE", *(str(n + 1) for n in range(len(names))))]
    for number, name in enumerate(names):
        marks = ("-" if other == name else _mark(cells.get((name, other))) for other in names)
        rows.append((str(number + 1), name, nodes[name], *marks))
    return columns(rows, "  ")


def _mark(good: bool | None) -> str:
    return " " if good is None else "o" if good else "X"


def _node_of(result: Result) -> str:
    return result.attempt.source.node


def _service_port(result: Result) -> str:
    return f"{result.attempt.target.removeprefix('svc/')} {result.attempt.port}"


def _target_node(result: Result) -> str:
    return result.attempt.target.partition(":")[0]


def _node_port(result: Result) -> str:
    return f"{result.attempt.target.rpartition('svc/')[2]} {result.attempt.port}"


def _grid(results: Sequence[Result], row_of: Callable[[Result], str], column_of: Callable[[Result], str]) -> str:
    heads = sorted({column_of(r) for r in results})
    cells: dict[tuple[str, str], bool] = {}
    for r in results:
        at = (row_of(r), column_of(r))
        cells[at] = cells.get(at, True) and not r.surprising
    rows = [("SERVICE", *heads)]
    for row in dict.fromkeys(row_of(r) for r in results):
        rows.append((row, *(_mark(cells.get((row, head))) for head in heads)))
    return columns(rows, "  ")
