"""The page that says which objects are in force."""

from podwire.agent.seen import Seen


def test_a_line_an_object_where_the_work_is_done() -> None:
    seen = Seen()
    seen.parts["policy"] = lambda: {"pods": {"shop/web-0": "7", "shop/db-0": "9"}, "namespaces": {"shop": "3"}}
    seen.parts["proxy"] = lambda: None
    assert list(seen.page({})) == [
        "policy in force",
        "policy pods shop/web-0 7",
        "policy pods shop/db-0 9",
        "policy namespaces shop 3",
        "proxy busy",
    ]


def test_the_lines_are_of_the_moment_of_the_request() -> None:
    seen, versions = Seen(), {"shop/web-0": "7"}
    seen.parts["policy"] = lambda: {"pods": versions}
    lines = seen.page({})
    versions["shop/web-0"] = "8"
    assert list(lines) == ["policy in force", "policy pods shop/web-0 7"]
