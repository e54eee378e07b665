"""The rows of the benchmark of CNI."""

from bench.cni import with_port
from bench.table import Row


def test_host_ports_have_an_aim_of_their_own() -> None:
    add = Row("ADD 1 by 1", "ms", (2.0, 1.8, 2.2), (("podwire with hostPort", (2.3, 2.2, 2.5)), ("ptp", (9.0,))))
    row = with_port(add)
    assert (row.what, row.unit, row.values, row.aim) == ("ADD 1 by 1, with hostPort", "ms", (2.3, 2.2, 2.5), 2.4)
    assert row.met
