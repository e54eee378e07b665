"""Cells of the tables of policies."""

from podwire.cli.policy_list import shorten


def test_of_many_policies_the_first_ones_are_named() -> None:
    assert shorten(()) == "(none applies)"
    assert shorten(("shop/a", "shop/b", "shop/c")) == "shop/a,shop/b,shop/c"
    assert shorten([f"shop/{n}" for n in range(75)]) == "shop/0,shop/1,shop/2,... (75)"
