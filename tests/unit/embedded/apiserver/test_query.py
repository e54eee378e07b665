"""Options in query strings are read as Kubernetes reads them."""

from collections.abc import Callable
from typing import Any

import pytest

from podwire.http.answer import Streaming
from podwire.http.message import Response, is_true

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
TRUE = ("True", "true", "TRUE", "1", "t", "yes", "", "2", "no")
FALSE = ("false", "False", "FALSE", "0")


@pytest.mark.parametrize("text", TRUE)
def test_values_other_than_false_and_zero_are_true(text: str) -> None:
    assert is_true(text)


@pytest.mark.parametrize("text", [*FALSE, None])
def test_false_zero_and_absent_are_false(text: str | None) -> None:
    assert not is_true(text)


@pytest.mark.parametrize(
    ("query", "watched"),
    [
        *((f"watch={text}", True) for text in TRUE),
        *((f"watch={text}", False) for text in FALSE),
        ("watch", True),
        ("watch=false&watch=true", False),
    ],
)
def test_a_watch_is_asked_for_in_any_spelling(play: Callable[..., None], query: str, watched: bool) -> None:
    async def scenario(api: Any) -> None:
        assert isinstance(await api.raw("GET", f"{CONFIGMAPS}?{query}"), Streaming) is watched

    play(scenario)


def test_one_object_is_read_not_watched(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CONFIGMAPS, {"metadata": {"name": "a"}})
        status, answer = await api("GET", f"{CONFIGMAPS}/a?watch=true")
        assert (status, answer["metadata"]["name"]) == (200, "a")
        events = await api.watch("/api/v1/watch/namespaces/default/configmaps/a")
        assert events.short == ["ADDED a"]

    play(scenario)


def test_bookmarks_and_initial_events_in_any_spelling(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        events = await api.watch(
            f"{CONFIGMAPS}?watch=yes&sendInitialEvents=True&allowWatchBookmarks=t&resourceVersionMatch=NotOlderThan"
        )
        assert events.seen[-1]["type"] == "BOOKMARK"
        assert events.seen[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}

    play(scenario)


def test_conflicts_are_forced_in_any_spelling(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        apply = {"content_type": "application/apply-patch+yaml"}
        for manager, force, expected in (("a", "false", 201), ("b", "0", 409), ("b", "yes", 200)):
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"key": manager}}
            path = f"{CONFIGMAPS}/m?fieldManager={manager}&force={force}"
            assert (await api("PATCH", path, body, **apply))[0] == expected, (manager, force)

    play(scenario)


def test_orphans_are_kept_in_any_spelling(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        _, owner = await api("POST", CONFIGMAPS, {"metadata": {"name": "owner"}})
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
        await api("POST", CONFIGMAPS, {"metadata": {"name": "owned", "ownerReferences": [reference]}})
        assert (await api("DELETE", f"{CONFIGMAPS}/owner?orphanDependents=yes"))[0] == 200
        await api.settle()
        status, remaining = await api("GET", f"{CONFIGMAPS}/owned")
        assert status == 200 and "ownerReferences" not in remaining["metadata"]

    play(scenario)


REFUSED = {
    "limit=": 400,
    "limit=five": 400,
    "limit=1_0": 400,
    "limit=99999999999999999999": 400,
    "watch=1&timeoutSeconds=": 400,
    "sendInitialEvents=true": 422,
}
"""Queries of a list, with the status of the answer."""


@pytest.mark.parametrize("query", REFUSED)
def test_numbers_that_cannot_be_read_are_refused(play: Callable[..., None], query: str) -> None:
    async def scenario(api: Any) -> None:
        assert (await api("GET", f"{CONFIGMAPS}?{query}"))[0] == REFUSED[query]

    play(scenario)


def test_a_negative_limit_is_no_limit(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for name in "ab":
            await api("POST", CONFIGMAPS, {"metadata": {"name": name}})
        _, answer = await api("GET", f"{CONFIGMAPS}?limit=-1")
        assert len(answer["items"]) == 2 and "continue" not in answer["metadata"]

    play(scenario)


@pytest.mark.parametrize("query", ["dryRun=", "dryRun=Some", "dryRun=All&dryRun=Some"])
def test_every_value_of_dry_run_is_checked(play: Callable[..., None], query: str) -> None:
    async def scenario(api: Any) -> None:
        status, answer = await api("POST", f"{CONFIGMAPS}?{query}", {"metadata": {"name": "a"}})
        assert status == 400 and "dryRun: Unsupported value" in answer["message"]

    play(scenario)


@pytest.mark.parametrize(
    ("query", "agent", "indented"),
    [
        ("", "", False),
        ("?pretty=true", "", True),
        ("?pretty=True", "", True),
        ("?pretty=yes", "", False),
        ("", "curl/8.5", True),
        ("?pretty=false", "curl/8.5", False),
        ("?pretty=", "curl/8.5", True),
    ],
)
def test_answers_are_indented_for_people(play: Callable[..., None], query: str, agent: str, indented: bool) -> None:
    async def scenario(api: Any) -> None:
        for path, status in ((CONFIGMAPS, 200), (f"{CONFIGMAPS}/none", 404), ("/apis", 200)):
            answer = await api.raw("GET", path + query, user_agent=agent)
            assert isinstance(answer, Response) and answer.status == status
            assert (b'\n  "kind": ' in answer.body) is indented, path

    play(scenario)
