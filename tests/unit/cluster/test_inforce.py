"""The page that says which objects are in force on a node."""

import pytest

from podwire.cluster.inforce import InForcePage, difference, lag, parse

PAGE = """policy in force
policy pods shop/web 12
policy pods shop/db 9
policy namespaces shop 3
proxy busy
proxy services shop/web 99
"""
WANTED = {"pods": {"shop/web": "12", "shop/db": "9"}, "namespaces": {"shop": "2"}}


def test_a_line_an_object_where_the_work_is_done() -> None:
    page = InForcePage()
    page.parts["policy"] = lambda: {"pods": {"shop/web-0": "7", "shop/db-0": "9"}, "namespaces": {"shop": "3"}}
    page.parts["proxy"] = lambda: None
    assert list(page.page({})) == [
        "policy in force",
        "policy pods shop/web-0 7",
        "policy pods shop/db-0 9",
        "policy namespaces shop 3",
        "proxy busy",
    ]


def test_the_lines_are_of_the_moment_of_the_request() -> None:
    page, versions = InForcePage(), {"shop/web-0": "7"}
    page.parts["policy"] = lambda: {"pods": versions}
    lines = page.page({})
    versions["shop/web-0"] = "8"
    assert list(lines) == ["policy in force", "policy pods shop/web-0 7"]


def test_all_that_is_wanted_is_there_or_newer() -> None:
    assert lag(PAGE.splitlines(), "policy", WANTED) == ""


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (PAGE.replace("web 12", "web 11"), "pods shop/web is not known at version 12"),
        (PAGE.replace("policy pods shop/db 9\n", ""), "pods shop/db is not known at version 9"),
        (PAGE + "policy pods shop/old 4\n", "pods shop/old is not gone"),
        (PAGE.replace("in force", "busy"), "it is being programmed"),
        ("proxy in force\n", "its agent has no part policy"),
    ],
)
def test_object_that_is_not_in_force_is_named(page: str, problem: str) -> None:
    assert lag(page.splitlines(), "policy", WANTED) == problem


def test_a_kind_of_which_nothing_is_left() -> None:
    page = "policy in force\npolicy networkpolicies shop/deny 7\n"
    assert lag(page.splitlines(), "policy", {"networkpolicies": {}}) == "networkpolicies shop/deny is not gone"
    assert lag(["policy in force"], "policy", {"networkpolicies": {}}) == ""


def test_a_busy_part_has_no_versions() -> None:
    assert parse(["policy busy\n", "proxy in force\n"]) == {"policy": None, "proxy": {}}


def test_all_parts_are_compared_with_the_wanted_versions() -> None:
    page = ["policy in force", "policy pods shop/web 7", "proxy in force", "proxy services shop/web 8"]
    expected = {"pods": {"shop/web": "7"}, "services": {"shop/web": "8"}}
    assert difference(page, expected) == ""
    assert difference(page, expected | {"pods": {}}) == "pods shop/web not in force yet"
    assert difference([*page, "routing busy"], expected) == "routing is being programmed"
