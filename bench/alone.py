"""What every benchmark is: a name, a text, a function that measures; and how one of them is run by itself.

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
"""Where the tree is; benchmarks start other programs of it from there."""


def run_alone(name: str, about: str | None, run: Callable[[bool], list[Row]]) -> None:
    """The command line of one benchmark."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements, for a look")
    parser.add_argument("--rows", type=Path, help="write the rows to this file as JSON, print nothing")
    given = parser.parse_args()
    rows = run(given.quick)
    if given.rows:
        given.rows.write_text(json.dumps({"about": _paragraphs(about or ""), "rows": [asdict(row) for row in rows]}))
    else:
        print(table(tuple(rows)))


def read_rows(path: Path) -> tuple[str, tuple[Row, ...]]:
    """What a benchmark says of itself, and what it wrote."""
    found = json.loads(path.read_text())
    return found["about"], tuple(_row(one) for one in found["rows"])


def _row(found: dict[str, object]) -> Row:
    peers = tuple((name, tuple(values)) for name, values in found.pop("peers"))  # type: ignore[attr-defined]
    values = tuple(found.pop("values"))  # type: ignore[var-annotated, arg-type]
    return Row(values=values, peers=peers, **found)  # type: ignore[arg-type]


def _paragraphs(docstring: str) -> str:
    """The text of a docstring, without the indented command lines."""
    paragraphs = textwrap.dedent(docstring).strip().split("\n\n")
    return "\n\n".join(p for p in paragraphs if not p.startswith("    "))
