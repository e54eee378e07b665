"""Results of a probe, as JSON lines and as the overview of ``podwire up`` (pure).

Each line is one JSON object with the fields from, to, protocol, port, reached, answered_by, source_seen and ms. The
exit status and the tables (:mod:`podwire.local.probe.table`) show which results were not expected.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from podwire.local.probe.plan import HOST, Attempt
from podwire.model.wording import columns

_DENIED = "."
_NOBODY = "-"
_WORSE = "o-.X"
"""The marks in the tables, from best to worst."""


class NodePair(NamedTuple):
    """The node that sends, and another node with the pod that receives; ``network`` is the pod network, if any."""

    node: str
    peer: str
    network: str = ""


class ProbeResult(msgspec.Struct, frozen=True):
    """The result of one attempt."""

    attempt: Attempt
    reached: bool
    answered_by: str = ""
    """``namespace/pod`` of the server, when its answer names them."""
    source_seen: str = ""
    """The client address that the server saw."""
    ms: float = 0.0
    error: str = ""

    @property
    def surprising(self) -> bool:
        """Whether the outcome differs from what the cluster's objects promise."""
        return not self.attempt.either and self.reached != self.attempt.expected

    @property
    def denied(self) -> bool:
        """Whether policies deny the connection and it was not made."""
        return not self.reached and bool(self.attempt.because)


def as_json(result: ProbeResult) -> str:
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


def summary(results: Sequence[ProbeResult]) -> str:
    """One line: how many attempts, how many as expected, the median time of those reached."""
    surprises = sum(1 for r in results if r.surprising)
    times = sorted(r.ms for r in results if r.reached)
    median = f", median {times[len(times) // 2]:.1f} ms" if times else ""
    good = len(results) - surprises
    denied = sum(1 for r in results if r.denied)
    policies = f", {denied} denied by policies" if denied else ""
    bad = f"; {surprises} NOT as expected" if surprises else ""
    return f"{good} of {len(results)} as expected{policies}{median}{bad}"


def overview(results: Sequence[ProbeResult]) -> str:
    """The connectivity table: pods to pods, pods to Services by name, host to NodePorts."""
    pods = [r for r in results if not r.attempt.named and r.attempt.source.name != HOST]
    named = [r for r in results if r.attempt.named]
    host = [r for r in results if r.attempt.source.name == HOST]
    sections = []
    if pods:
        sections.append(f"Pods to pods ({_legend(results)}):\n" + _matrix(pods))
    if named:
        sections.append(
            "Pods to Services by name, from one pod of each node:\n" + _grid(named, _service_port, _node_of)
        )
    if host:
        sections.append("Host to NodePorts:\n" + _grid(host, _node_port, _target_node))
    failed = [r for r in results if r.surprising]
    if failed:
        sections.append(
            "Not as expected:\n"
            + columns(
                [
                    (r.attempt.source.name, "->", r.attempt.target, str(r.attempt.port), _failure(r))
                    for r in failed[:20]
                ],
                "  ",
            )
        )
    return "\n\n".join([*sections, summary(results)])


def _legend(results: Sequence[ProbeResult]) -> str:
    """The meaning of the marks that occur in the results."""
    marks = {_mark(result) for result in results}
    meanings = {_NOBODY: "nobody there", _DENIED: "denied by policies"}
    marks_shown = [f", {mark} {text}" for mark, text in meanings.items() if mark in marks]
    return f"o reached{''.join(marks_shown)}, X not{' as expected' if marks_shown else ''}"


def _mark(result: ProbeResult) -> str:
    if result.surprising:
        return "X"
    return "o" if result.reached else _DENIED if result.denied else _NOBODY


def _failure(result: ProbeResult) -> str:
    return f"reached, yet: {result.attempt.because}" if result.reached else result.error


def _matrix(results: Sequence[ProbeResult]) -> str:
    names = list(dict.fromkeys(r.attempt.source.name for r in results))
    nodes = {r.attempt.source.name: r.attempt.source.node for r in results}
    cells = _cells(results, lambda r: (r.attempt.source.name, r.attempt.target))
    rows = [("#", "POD", "NODE", *(str(n + 1) for n in range(len(names))))]
    for number, name in enumerate(names):
        marks = (_NOBODY if target == name else cells.get((name, target), " ") for target in names)
        rows.append((str(number + 1), name, nodes[name], *marks))
    return columns(rows, "  ")


def _cells(
    results: Sequence[ProbeResult], cell_of: Callable[[ProbeResult], tuple[str, str]]
) -> dict[tuple[str, str], str]:
    """The worst mark of the results in each cell."""
    cells: dict[tuple[str, str], str] = {}
    for result in results:
        mark, cell = _mark(result), cell_of(result)
        cells[cell] = max(cells.get(cell, mark), mark, key=_WORSE.index)
    return cells


def _node_of(result: ProbeResult) -> str:
    return result.attempt.source.node


def _service_port(result: ProbeResult) -> str:
    return f"{result.attempt.target.removeprefix('svc/')} {result.attempt.port}"


def _target_node(result: ProbeResult) -> str:
    return result.attempt.target.partition(":")[0]


def _node_port(result: ProbeResult) -> str:
    return f"{result.attempt.target.rpartition('svc/')[2]} {result.attempt.port}"


def _grid(
    results: Sequence[ProbeResult], row_of: Callable[[ProbeResult], str], column_of: Callable[[ProbeResult], str]
) -> str:
    heads = sorted({column_of(r) for r in results})
    cells = _cells(results, lambda r: (row_of(r), column_of(r)))
    rows = [("SERVICE", *heads)]
    for row in dict.fromkeys(row_of(r) for r in results):
        rows.append((row, *(cells.get((row, head), " ") for head in heads)))
    return columns(rows, "  ")
