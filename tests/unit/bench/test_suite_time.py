"""Tests that two trees have in common."""

from bench.suite_time import in_common


def test_tests_that_one_tree_has_more_often_are_left_out() -> None:
    one = ["unit/test_a", "unit/test_b[1]", "unit/test_b[1]", "e2e/test_a"]
    other = ["unit/test_a", "unit/test_b[1]", "kernel/test_a", "unit/test_b[2]"]
    assert in_common(one, other) == {"unit/test_a"}
    assert in_common(one, one) == set(one)
