"""Runs the benchmarks and writes their tables to docs/benchmarks.md.

    python -m bench [--quick] [--output FILE] [NAME ...]

Without names all benchmarks run; with names the other tables stay as they are. Needs root and a prepared machine
(``make setup``); peers that are not installed are left out and named. The exit status is 1 when a benchmark failed.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import machine
from bench.alone import ROOT, read_rows
from bench.table import Section, page, table

BENCHMARKS = (
    "up",
    "probe",
    "api",
    "admission",
    "cni",
    "cni_burst",
    "netlink",
    "routing",
    "bgp",
    "tunnels",
    "tunnel_pairs",
    "datagrams",
    "services",
    "service_changes",
    "repairs",
    "service_packets",
    "flows",
    "iptables",
    "ipvs",
    "loadbalancer",
    "gateway",
    "userspace",
    "policy",
    "dns",
    "dns_faults",
    "dns_kernel",
    "state",
    "upgrade",
    "upgrade_loss",
)
"""Their names, in the order of the page."""

INTRODUCTION = """# Benchmarks

Machine: {machine}.

Medians of several runs; the spread is the least and the most, and how many there were. What stands beside a
measurement was measured in the same run on the same machine, in turns; the ratio says how many times better podwire
is, so below 1 the other one is. Load is the average number of processes that wanted to run in the minute before: with
much more than 0.5 the numbers are pessimistic.

`make bench` writes this page; `python -m bench NAME` one table of it, `python -m bench.NAME` prints one.
`python -m bench.compare OTHER` compares two trees, for example before and after a change.
"""


def measure(name: str, *, quick: bool) -> Section | None:
    """Runs one benchmark in its own process; None when it failed, with a message on standard error."""
    command = ["python", "-m", f"bench.{name}"] + ["--quick"] * quick
    if not quick:
        machine.settle()
    load, begun = machine.load(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        done = subprocess.run([sys.executable, *command[1:], "--rows", str(path)], cwd=ROOT, check=False)
        if done.returncode != 0:
            print(f"bench: {name} failed with {done.returncode}", file=sys.stderr)
            return None
        about, rows = read_rows(path)
    print(f"\n{name}: {time.monotonic() - begun:.0f} s, load before {load:.1f}\n{table(rows)}", flush=True)
    return Section(name=name, about=about, command=" ".join(command), load=load, rows=rows)


def main() -> int:
    """Runs the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements, for a look")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(BENCHMARKS)):
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    failed = False
    for name in arguments.names or BENCHMARKS:
        section = measure(name, quick=arguments.quick)
        if section is None:
            failed = True
            continue
        before = arguments.output.read_text(encoding="utf-8") if arguments.output.exists() else ""
        text = page(INTRODUCTION.format(machine=machine.describe()), (section,), before, BENCHMARKS)
        arguments.output.write_text(text, encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
