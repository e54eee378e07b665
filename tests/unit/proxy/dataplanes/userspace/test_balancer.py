"""Turns, affinity and its end."""

from podwire.proxy.dataplanes.userspace.balancer import Balancer

A, B, C = ("10.0.0.1", 80), ("10.0.0.2", 80), ("10.0.0.3", 80)


def test_each_in_turn() -> None:
    balancer = Balancer((A, B, C))
    assert [balancer.choose("x", 0) for _ in range(4)] == [A, B, C, A]


def test_turns_begin_anywhere() -> None:
    assert Balancer((A, B, C), first=65535 + 1).choose("x", 0) == B


def test_endpoint_that_failed_is_not_chosen_again() -> None:
    balancer = Balancer((A, B))
    assert balancer.choose("x", 0, {A}) == B
    assert balancer.choose("x", 0, {A, B}) is None
    assert Balancer().choose("x", 0) is None


def test_other_endpoints_go_on_in_turn() -> None:
    balancer = Balancer((A, B, C))
    balancer.choose("x", 0)
    balancer.choose("x", 0)
    balancer.change((A,), 0)
    assert balancer.choose("x", 0) == A


def test_a_client_keeps_its_endpoint_until_the_time_is_over() -> None:
    balancer = Balancer((A, B), affinity_s=10)
    assert [balancer.choose("x", now) for now in (0, 9, 18)] == [A, A, A]
    assert balancer.choose("y", 18) == B
    assert balancer.choose("x", 29) == A
    assert balancer.choose("x", 50) == B


def test_removed_or_tried_endpoint_is_not_sticky() -> None:
    balancer = Balancer((A, B), affinity_s=10)
    balancer.choose("x", 0)
    assert balancer.choose("x", 1, {A}) == B
    assert balancer.choose("x", 2) == B
    balancer.change((A,), 10)
    assert balancer.choose("x", 3) == A
    balancer.change((A, B), 10)
    assert balancer.choose("x", 4) == A
    balancer.forget("x")
    assert balancer.recall("x", 4) is None


def test_expired_entries_are_removed_when_new_ones_arrive() -> None:
    balancer = Balancer((A,), affinity_s=10)
    for number in range(100):
        balancer.choose(f"client {number}", float(number))
    assert list(balancer.remembered()) == [f"client {number}" for number in range(90, 100)]


def test_without_affinity_no_client_is_stored() -> None:
    balancer = Balancer((A, B), affinity_s=10)
    balancer.choose("x", 0)
    balancer.change((A, B), 0)
    assert not balancer.remembered()
    assert balancer.recall("x", 0) is None
