"""Differences of a node to its backup."""

from podwire.upgrade.backup.compare import TextKey, compare

BEFORE: dict[TextKey, bytes] = {
    ("kernel", "nft"): b"table ip a {\n  counter packets 5 bytes 9 accept\n}\n",
    ("kernel", "routes"): b"10.0.0.0/24 dev a\n10.0.1.0/24 dev b\n",
    ("kernel", "conntrack"): b"entries 5\n",
}


def test_counters_order_and_connections_are_no_difference() -> None:
    now: dict[TextKey, bytes] = {
        ("kernel", "nft"): b"table ip a {\n  counter packets 7 bytes 11 accept\n}\n",
        ("kernel", "routes"): b"10.0.1.0/24 dev b\n10.0.0.0/24 dev a\n",
        ("kernel", "conntrack"): b"entries 900\n",
    }
    assert compare(BEFORE, now) == ()


def test_missing_and_new_lines_are_told() -> None:
    changed: dict[TextKey, bytes] = {
        ("kernel", "routes"): b"10.0.0.0/24 dev a\n10.0.2.0/24 dev c\n",
        ("kernel", "ipvs"): b"x\n",
    }
    now = BEFORE | changed
    lines = [line for difference in compare(BEFORE, now) for line in difference.lines()]
    assert lines == [
        "kernel ipvs: 0 lines are missing, 1 line is new", "  +x",
        "kernel routes: 1 line is missing, 1 line is new", "  -10.0.1.0/24 dev b", "  +10.0.2.0/24 dev c",
    ]  # fmt: skip


def test_many_lines_are_counted() -> None:
    lines = [*compare({}, {("kernel", "nft"): b"".join(b"%d\n" % n for n in range(9))})[0].lines()]
    assert lines[-1] == "  +... 4 further lines" and len(lines) == 7
