"""Whether an agent holds what is in the API."""

import pytest

from podwire.local.inforce import behind

PAGE = """policy in force
policy pods shop/web 12
policy pods shop/db 9
policy namespaces shop 3
proxy busy
proxy services shop/web 99
"""
WANTED = {"pods": {"shop/web": "12", "shop/db": "9"}, "namespaces": {"shop": "2"}}


def test_all_that_is_wanted_is_there_or_newer() -> None:
    assert behind(PAGE.splitlines(), "policy", WANTED) == ""


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
def test_what_is_lacking_is_named(page: str, problem: str) -> None:
    assert behind(page.splitlines(), "policy", WANTED) == problem


def test_a_kind_of_which_nothing_is_left() -> None:
    page = "policy in force\npolicy networkpolicies shop/deny 7\n"
    assert behind(page.splitlines(), "policy", {"networkpolicies": {}}) == "networkpolicies shop/deny is not gone"
    assert behind(["policy in force"], "policy", {"networkpolicies": {}}) == ""
