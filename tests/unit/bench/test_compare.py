"""Two trees compared: the best of all runs, and how many times better this tree is."""

from bench.compare import OTHER, beside, best, text, worse
from bench.table import Row


def cost(*values: float, subject: str = "wire a pod", unit: str = "ms") -> Row:
    return Row(subject, unit, values, (("ip", (30.0,)),), aim=5)


def test_best_is_the_least_cost_and_the_highest_rate() -> None:
    runs = [(cost(3.0, 5.0), cost(90.0, subject="rate", unit="/s")), (cost(2.0), cost(80.0, subject="rate", unit="/s"))]
    assert best(runs) == {"wire a pod": Row("wire a pod", "ms", (2.0,)), "rate": Row("rate", "/s", (90.0,))}


def test_rows_of_one_tree_alone_are_left_out() -> None:
    own = best([(cost(2.0), cost(1.0, subject="new"), cost(1.0, subject="other unit"))])
    other = best([(cost(4.0), cost(1.0, subject="old"), cost(1.0, subject="other unit", unit="s"))])
    assert beside(own, other) == (Row("wire a pod", "ms", (2.0,), ((OTHER, (4.0,)),)),)


def test_ratio_below_the_least_names_its_row() -> None:
    rows = beside(best([(cost(2.0), cost(5.0, subject="slow"))]), best([(cost(4.0), cost(4.0, subject="slow"))]))
    assert worse(rows, 0.9) == ("slow",)
    assert worse(rows, 0.8) == ()


def test_table_shows_both_trees_and_the_ratio() -> None:
    lost = cost(0.0, subject="lost", unit="")
    rows = beside(best([(cost(2.0), lost)]), best([(cost(5.0), lost)]))
    assert text(rows).splitlines()[2:] == ["| wire a pod | 2 ms | 5 ms | 2.50 |", "| lost | 0 | 0 | - |"]
