"""The page of benchmarks: numbers, ratios, aims, and sections that stay."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from bench import machine
from bench.__main__ import BENCHMARKS
from bench.alone import ROOT, read_rows
from bench.table import Row, Section, number, page, quantity, table

COST = Row("wire a pod", "ms", (2.0, 4.0, 3.0), (("ip", (30.0, 33.0, 36.0)),), aim=5)
RATE = Row("writes", "/s", (1500.0,), (("disk alone", (3000.0,)),), aim=2000)
PLAIN = Row("lost", "", (0.0, 0.0))
_PARTS = {
    "__main__", "alone", "compare", "dns_peers", "dns_size", "engines", "executions", "gateway_objects",
    "gateway_peers", "gateway_replacement", "iptables_repairs", "joining", "machine", "podsysctls", "policy_growth",
    "suite_time", "table", "wrk",
}  # fmt: skip
"""Modules of bench/ that are no benchmark by themselves."""


def section(name: str, *rows: Row) -> Section:
    return Section(name=name, about=f"What {name} does.", command=f"python -m bench.{name}", load=0.25, rows=rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.01234, "0.012"), (1.234, "1.23"), (3.0, "3"), (12.34, "12.3"), (123.4, "123"), (27038.4, "27,038")],
)
def test_a_number_has_the_figures_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_a_unit_of_a_word_stands_apart() -> None:
    assert [quantity(12.0, unit) for unit in ("ms", "/s", "%", "")] == ["12 ms", "12/s", "12%", "12"]


def test_a_ratio_says_how_many_times_better_podwire_is() -> None:
    assert COST.ratio("ip") == 11.0
    assert RATE.ratio("disk alone") == 0.5
    assert COST.ratio("disk alone") is None
    assert Row("lost", "", (0.0,), (("other", (2.0,)),)).ratio("other") is None


def test_costs_stay_below_their_aim_and_rates_above() -> None:
    assert COST.met
    assert not Row("wire a pod", "ms", (6.0,), aim=5).met
    assert not RATE.met
    assert Row("writes", "/s", (2000.0,), aim=2000).met
    assert PLAIN.met


def test_table_has_two_columns_per_peer_and_one_for_aims() -> None:
    assert table((COST, RATE, PLAIN)).splitlines() == [
        "| measured | median | spread | ip | ratio | disk alone | ratio | aim |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| wire a pod | 3 ms | 2 to 4, 3 | 33 ms | 11 | - | - | at most 5 ms: met |",
        "| writes | 1,500/s | 1 run | - | - | 3,000/s | 0.500 | at least 2,000/s: missed |",
        "| lost | 0 | 0 to 0, 2 | - | - | - | - | - |",
    ]
    assert table((PLAIN,)).splitlines()[0] == "| measured | median | spread |"


def test_sections_that_were_not_run_stay_and_stand_in_order() -> None:
    order = ("up", "cni", "dns")
    first = page("# Benchmarks\n", (section("dns", RATE), section("up", COST)), "", order)
    again = page("# Benchmarks\n", (section("cni", PLAIN),), first, order)
    headings = [line for line in again.splitlines() if line.startswith("#")]
    assert headings == ["# Benchmarks", "## up", "## cni", "## dns"]
    assert table((COST,)) in again
    assert table((RATE,)) in again
    assert page("# Benchmarks\n", (section("cni", PLAIN),), again, order) == again


def test_rerun_section_is_replaced_and_unknown_section_removed() -> None:
    before = page("# B\n", (section("up", COST), section("old", RATE)), "", ("up", "old"))
    after = page("# B\n", (section("up", PLAIN),), before, ("up",))
    assert table((PLAIN,)) in after
    assert "wire a pod" not in after
    assert "old" not in after


def test_a_section_says_how_it_was_made() -> None:
    text = page("# B\n", (section("up", COST),), "", ("up",))
    assert "Command: `python -m bench.up`. Load of the machine before: 0.2." in text


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"about": "What it does.", "rows": [asdict(COST), asdict(PLAIN)]}))
    assert read_rows(file) == ("What it does.", (COST, PLAIN))


def test_every_benchmark_has_a_file() -> None:
    files = {path.stem for path in (ROOT / "bench").glob("*.py")}
    assert set(BENCHMARKS) == files - _PARTS


def test_the_machine_is_described_in_general_words() -> None:
    arguments = machine.describe()
    assert "cores" in arguments
    assert "Linux" in arguments
    assert "/" not in arguments
