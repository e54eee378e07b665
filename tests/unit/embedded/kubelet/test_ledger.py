"""Which pods fit onto a node, and the words for those that do not."""

import pytest

from podwire.embedded.kubelet.ledger import NodeLedger

CAPACITY = {"cpu": "2", "memory": "1Gi", "pods": "2", "example.com/chip": "1"}
CASES = {
    "fits": ({"cpu": 1000}, {"cpu": 1000}, ""),
    "cpu": ({"cpu": 1500}, {"cpu": 1000},
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 1500, capacity: 2000"),
    "memory": ({}, {"memory": 2 << 40},
               "OutOfmemory: Node didn't have enough resource: memory, requested: 2199023255, used: 0, "
               "capacity: 1073741824"),
    "extended resource": ({"example.com/chip": 1000}, {"example.com/chip": 1000},
                          "OutOfexample.com/chip: Node didn't have enough resource: example.com/chip, requested: 1, "
                          "used: 1, capacity: 1"),
    "resource that the node does not name": ({}, {"example.com/other": 1000}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_pod_fits_beside_the_others(name: str) -> None:
    held, desired, expected = CASES[name]
    ledger = NodeLedger(CAPACITY)
    ledger.count("a", held)
    result = ledger.shortage("b", desired)
    assert (f"{result.reason}: {result}" if result is not None else "") == expected


def test_pods_are_counted_until_they_are_dropped() -> None:
    ledger = NodeLedger(CAPACITY)
    ledger.count("a", {})
    ledger.count("b", {})
    full = ledger.shortage("c", {})
    assert full is not None and full.reason == "OutOfpods"
    assert str(full) == "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"
    assert ledger.shortage("b", {}) is None
    ledger.drop("a")
    assert ledger.shortage("c", {}) is None


def test_more_than_the_node_has_is_told_apart() -> None:
    ledger = NodeLedger(CAPACITY)
    excess = ledger.excess({"cpu": 5000})
    assert excess is not None
    assert excess.whole == "Node didn't have enough capacity: cpu, requested: 5000, capacity: 2000"
    assert ledger.excess({"cpu": 2000}) is None


def test_port_belongs_to_one_pod_until_it_is_dropped() -> None:
    ledger = NodeLedger(CAPACITY)
    everywhere, here, there = ("0.0.0.0", "TCP", 80), ("192.0.2.1", "TCP", 80), ("192.0.2.2", "TCP", 80)  # noqa: S104
    assert ledger.take_ports("a", (here,))
    assert ledger.take_ports("a", (here,))
    assert not ledger.take_ports("b", (here,))
    assert not ledger.take_ports("b", (("192.0.2.1", "TCP", 81), everywhere))
    assert ledger.take_ports("b", (there, ("192.0.2.1", "UDP", 80)))
    ledger.drop("a")
    ledger.drop("b")
    assert ledger.take_ports("c", (everywhere,))
