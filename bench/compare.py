"""Compares the benchmarks of this tree with those of another one, in turns.

    python -m bench.compare OTHER [NAME ...] [--cpu] [--repeats N] [--full] [--least RATIO]

OTHER is a worktree with its own ``.venv``, for example of an earlier commit (``git worktree add``, ``make setup``).
Each benchmark runs N times in each tree, by turns, so that both meet the same noise. What is compared is the best value
of all runs, which other work on the machine disturbs least, and the processor time of the benchmark with its ended
children. The ratio says how many times better this tree is; below 1 the other one is. Rows are matched by their names.
The sizes are those of ``--quick``, unless ``--full`` is given. The exit status is 1 when a benchmark fails in either
tree, or when a ratio is below the least one.

With ``--cpu`` a benchmark reads the processor time of its process, the kernel's included, wherever it would read the
clock, which tells little on a busy machine. That suits benchmarks whose work is done in the process that measures:
services, netlink, iptables, policy.
"""

import argparse
import compileall
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.__main__ import BENCHMARKS
from bench.alone import ROOT, read_rows
from bench.table import Row, number, quantity

OTHER = "other tree"

_BY_PROCESSOR_TIME = "import time\ntime.perf_counter = time.process_time\n"
"""What Python runs at the start of a benchmark and of its processes, as ``sitecustomize``."""


def measure(tree: Path, name: str, *, quick: bool, cpu: bool) -> tuple[Row, ...]:
    """The rows of one run of a benchmark in a tree; none when it failed, of which it tells itself."""
    before = _children_s()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        environment = dict(os.environ)
        if cpu:
            (Path(folder) / "sitecustomize.py").write_text(_BY_PROCESSOR_TIME)
            environment["PYTHONPATH"] = folder
        arguments = [str(tree / ".venv/bin/python"), "-m", f"bench.{name}", *["--quick"] * quick, "--rows", str(file)]
        done = subprocess.run(arguments, cwd=tree, env=environment, check=False)
        if done.returncode != 0:
            print(f"bench.compare: {name} failed in {tree} with {done.returncode}", file=sys.stderr)
            return ()
        return *read_rows(file)[1], Row("the whole benchmark: CPU time", "s", (_children_s() - before,))


def _children_s() -> float:
    """Processor time of all children that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def best(runs: Sequence[tuple[Row, ...]]) -> dict[str, Row]:
    """The rows of several runs by their names, each with the best value of all runs, without aims and peers."""
    rows: dict[str, Row] = {}
    for row in (row for run in runs for row in run):
        values = row.values + (rows[row.what].values if row.what in rows else ())
        value = max(values) if row.more_is_better else min(values)
        rows[row.what] = replace(row, values=(value,), peers=(), aim=None)
    return rows


def beside(own: dict[str, Row], other: dict[str, Row]) -> tuple[Row, ...]:
    """The rows that both trees have, in the order of this one, with the other tree's values beside them."""
    return tuple(
        replace(row, peers=((OTHER, other[subject].values),))
        for subject, row in own.items()
        if subject in other and other[subject].unit == row.unit
    )


def text(rows: tuple[Row, ...]) -> str:
    """A Markdown table of rows as :func:`beside` makes them."""
    lines = ["| measured | this tree | other tree | ratio |", "| --- | --- | --- | --- |"]
    for row in rows:
        ratio = row.ratio(OTHER)
        values = [quantity(values[0], row.unit) for values in (row.values, dict(row.peers)[OTHER])]
        lines.append(f"| {' | '.join([row.what, *values, '-' if ratio is None else number(ratio)])} |")
    return "\n".join(lines)


def worse(rows: tuple[Row, ...], least: float) -> tuple[str, ...]:
    """The names of the rows whose ratio is below ``least``."""
    ratios = {row.what: row.ratio(OTHER) for row in rows}
    return tuple(subject for subject, ratio in ratios.items() if ratio is not None and ratio < least)


def main() -> int:
    """Runs what was named in both trees."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("other", type=Path, metavar="OTHER", help="the tree to compare with")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--cpu", action="store_true", help="processor time instead of the clock")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs in each tree (default: 3)")
    parser.add_argument("--full", action="store_true", help="the sizes of the page, which take long")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="exit with 1 when a ratio is below")
    value = parser.parse_intermixed_args()
    for tree in (value.other, ROOT):
        compileall.compile_dir(tree / "src", quiet=2)
    failed = False
    for name in value.names or BENCHMARKS:
        runs: dict[Path, list[tuple[Row, ...]]] = {value.other.resolve(): [], ROOT: []}
        for _ in range(value.repeats):
            for tree, result in runs.items():
                result.append(measure(tree, name, quick=not value.full, cpu=value.cpu))
        other, own = (best(results) for results in runs.values())
        rows = beside(own, other)
        print(f"\n{name}: {len(own) - len(rows)} rows of this tree alone, {len(other) - len(rows)} of the other")
        print(text(rows), flush=True)
        for subject in worse(rows, value.least):
            print(f"bench.compare: {name}: {subject}: worse than {value.least}", file=sys.stderr)
        failed |= bool(worse(rows, value.least)) or any(not run for results in runs.values() for run in results)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
