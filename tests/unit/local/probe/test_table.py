"""The tables of a probe: what comes first, what is summed up, what fits a terminal, what is left out."""

from podwire.local.probe.plan import Attempt, PacketSource, ProbePort, workload_of
from podwire.local.probe.result import ProbeResult
from podwire.local.probe.table import CHOICES, as_table, choose, fit, render
from podwire.model.meta import ObjectMeta, OwnerReference
from podwire.model.pod import Pod


def tried(source: int, target: int, *, reached: bool = True, expected: bool = True, because: str = "") -> ProbeResult:
    """From a pod of the Deployment web to a pod of the Deployment db."""
    sender = PacketSource(name=f"shop/web-5f-{source:05}", pod_uid=f"u{source}", workload="shop/web")
    attempt = Attempt(
        source=sender,
        target=f"shop/db-7c-{target:05}",
        address="10.0.0.1",
        port=ProbePort(number=80),
        expected=expected,
        because=because,
        workload="shop/db",
    )
    return ProbeResult(attempt, reached=reached, ms=1.0, error="" if reached else "timed out")


DENIED = "shop/web -> shop/db TCP 80: dropped at ingress: isolated by shop/db"
MIXED = (
    tried(1, 1),
    tried(1, 2, reached=False, expected=False, because=DENIED),
    tried(1, 3, reached=False),
    tried(1, 4, expected=False),
)


def test_unexpected_results_come_first() -> None:
    rows = [line.split()[1] for line in as_table(MIXED).splitlines()[1:]]
    assert rows == ["shop/db-7c-00003", "shop/db-7c-00004", "shop/db-7c-00001", "shop/db-7c-00002"]


def test_results_are_chosen_by_a_word() -> None:
    numbers = {show: [MIXED.index(item) for item in choose(MIXED, show)] for show in CHOICES}
    assert numbers == {
        "all": [0, 1, 2, 3], "unexpected": [2, 3], "reached": [0, 3], "failed": [1, 2], "denied": [1],
        "sums": [0, 1, 2, 3],
    }  # fmt: skip


def test_a_filter_leaves_the_last_line_for_all_results() -> None:
    text = render(MIXED, "denied")
    assert text.count("shop/db-7c-") == 1
    assert text.endswith("2 of 4 as expected, 1 denied by policies, median 1.0 ms; 2 NOT as expected")
    assert render(MIXED[:1], "denied") == "1 of 1 as expected, median 1.0 ms"


def test_many_results_are_summed_up_by_workload() -> None:
    results = [tried(a, b, reached=(a, b) != (3, 4)) for a in range(15) for b in range(10)]
    lines = render(results).splitlines()
    assert lines[0] == "Not as expected:"
    assert lines[2].split()[:4] == ["shop/web-5f-00003", "shop/db-7c-00004", "80/TCP", "no"]
    assert lines[4].split() == ["FROM", "TO", "PORT", "TRIED", "REACHED", "DENIED", "UNEXPECTED"]
    assert lines[5].split() == ["shop/web", "shop/db", "80/TCP", "150", "149", "-", "1"]
    assert lines[-1].startswith("149 of 150 as expected")
    assert len(render(results, "all").splitlines()) == 153


def test_a_long_list_of_surprises_is_cut_and_counted() -> None:
    results = [tried(1, b, reached=False) for b in range(130)]
    text = render(results)
    assert "... and 80 more; --show all has every result" in text
    assert text.count("<- expected to be reached") == 50


def test_a_narrow_terminal_loses_columns_then_ends_of_lines() -> None:
    wide = as_table(MIXED)
    assert max(map(len, wide.splitlines())) > 100
    for width in (100, 80, 40):
        narrow = as_table(MIXED, width)
        assert max(map(len, narrow.splitlines())) <= width
        assert len(narrow.splitlines()) == 5
    assert "SOURCE SEEN" not in as_table(MIXED, 100)
    assert "no (timed out)" in as_table(MIXED, 80)
    assert fit([("A", "B"), ("x" * 30, "y")], 10).splitlines() == ["A" + " " * 8 + "…", "x" * 9 + "…"]


def pod(name: str, owner: OwnerReference | None = None, **labels: str) -> Pod:
    owners = (owner,) if owner is not None else ()
    return Pod(metadata=ObjectMeta(name=name, namespace="shop", labels=labels, owner_references=owners))


def test_the_workload_of_a_pod_is_what_made_it() -> None:
    replica_set = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web-5f", uid="1", controller=True)
    stateful_set = OwnerReference(api_version="apps/v1", kind="StatefulSet", name="db", uid="2", controller=True)
    hashed = {"pod-template-hash": "5f"}
    assert workload_of(pod("web-5f-x", replica_set, **hashed)) == "shop/web"
    assert workload_of(pod("db-0", stateful_set)) == "shop/db"
    assert workload_of(pod("alone")) == "shop/alone"
