"""The form of a benchmark (a name, a text, a function that measures), and how to run a single benchmark.

``python -m bench.NAME [--quick]`` prints the table; with ``--rows FILE`` the rows go into that file, which is how
``python -m bench`` collects them. Each runs in a process of its own, because some enter a network namespace and all
leave their mark on the collector and the caches.
"""

import argparse
import json
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from bench.table import Row, table

ROOT = Path(__file__).parents[1]
"""The checkout; benchmarks start its programs from there."""


def run_alone(name: str, about: str | None, run: Callable[[bool], list[Row]]) -> None:
    """The command line of one benchmark."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements, for a look")
    parser.add_argument("--rows", type=Path, help="write the rows to this file as JSON, print nothing")
    arguments = parser.parse_args()
    rows = run(arguments.quick)
    if arguments.rows:
        arguments.rows.write_text(
            json.dumps({"about": _paragraphs(about or ""), "rows": [asdict(row) for row in rows]})
        )
    else:
        print(table(tuple(rows)))


def read_rows(path: Path) -> tuple[str, tuple[Row, ...]]:
    """The description of a benchmark and its rows, from the file that it wrote."""
    document = json.loads(path.read_text())
    return document["about"], tuple(_row(row) for row in document["rows"])


def _row(fields: dict[str, object]) -> Row:
    peers = tuple((name, tuple(values)) for name, values in fields.pop("peers"))  # type: ignore[attr-defined]
    values = tuple(fields.pop("values"))  # type: ignore[var-annotated, arg-type]
    return Row(values=values, peers=peers, **fields)  # type: ignore[arg-type]


def _paragraphs(docstring: str) -> str:
    """The text of a docstring, without the indented command lines."""
    paragraphs = textwrap.dedent(docstring).strip().split("\n\n")
    return "\n\n".join(p for p in paragraphs if not p.startswith("    "))
