"""The rules of resourceVersion for lists, and how long a page may wait for the next."""

from collections.abc import Callable
from typing import Any

import pytest

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"

RULES: dict[str, tuple[int, str]] = {
    "resourceVersion=0": (200, ""),
    "resourceVersion={old}": (200, ""),
    "resourceVersion={now}": (200, ""),
    "resourceVersion={old}&resourceVersionMatch=NotOlderThan": (200, ""),
    "resourceVersion=0&resourceVersionMatch=NotOlderThan": (200, ""),
    "resourceVersion={now}&resourceVersionMatch=Exact": (200, ""),
    "resourceVersion={now}&limit=1": (200, ""),
    "resourceVersion={old}&resourceVersionMatch=Exact": (410, "Expired"),
    "resourceVersion={old}&limit=1": (410, "Expired"),
    "resourceVersion=999999": (504, "Timeout"),
    "resourceVersion=0&resourceVersionMatch=Exact": (422, "Invalid"),
    "resourceVersion={now}&resourceVersionMatch=About": (422, "Invalid"),
    "resourceVersionMatch=NotOlderThan": (422, "Invalid"),
    "resourceVersion=yesterday": (400, "BadRequest"),
    "limit=1&resourceVersion={now}&continue={token}": (400, "BadRequest"),
    "continue=nonsense": (400, "BadRequest"),
}
"""A query by what comes of it; ``old`` is the version before the last change, ``now`` that of the last."""


@pytest.mark.parametrize("query", RULES)
def test_rules_of_versions(play: Callable[..., None], query: str) -> None:
    expected, reason = RULES[query]

    async def scenario(api: Any) -> None:
        versions = []
        for name in ("a", "b"):
            _, created = await api("POST", CONFIGMAPS, {"metadata": {"name": name}})
            versions.append(created["metadata"]["resourceVersion"])
        _, page = await api("GET", f"{CONFIGMAPS}?limit=1")
        arguments = {"old": versions[0], "now": versions[1], "token": page["metadata"]["continue"]}
        status, answer = await api("GET", f"{CONFIGMAPS}?{query.format(**arguments)}")
        assert (status, answer.get("reason", "")) == (expected, reason), answer
        if status == 200:
            assert [item["metadata"]["name"] for item in answer["items"]][:1] == ["a"]
            assert int(answer["metadata"]["resourceVersion"]) >= int(versions[1])

    play(scenario)


def test_continue_token_is_valid_until_its_snapshot_expires(play: Callable[..., None]) -> None:
    async def following(api: Any) -> tuple[int, dict[str, Any]]:
        _, page = await api("GET", f"{CONFIGMAPS}?limit=1")
        status, answer = await api("GET", f"{CONFIGMAPS}?limit=1&continue={page['metadata']['continue']}")
        return status, answer

    async def fresh(api: Any) -> None:
        for name in "abc":
            await api("POST", CONFIGMAPS, {"metadata": {"name": name}})
        status, answer = await following(api)
        assert (status, answer["items"][0]["metadata"]["name"]) == (200, "b")

    async def expired(api: Any) -> None:
        status, answer = await following(api)
        assert (status, answer["reason"], answer["code"]) == (410, "Expired", 410)
        assert "use the continue token in this response" in answer["message"]

    play(fresh)
    play(expired, list_snapshot_s=-1.0)


def test_expired_token_leads_to_the_rest_as_it_is_now(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        for name in "abcde":
            await api("POST", CONFIGMAPS, {"metadata": {"name": name, "labels": {"odd": str(name in "ace")}}})
        _, first = await api("GET", f"{CONFIGMAPS}?limit=2")
        await api("DELETE", f"{CONFIGMAPS}/c")
        await api("POST", CONFIGMAPS, {"metadata": {"name": "b0"}})
        await api("POST", CONFIGMAPS, {"metadata": {"name": "f"}})
        _, refused = await api("GET", f"{CONFIGMAPS}?limit=2&continue={first['metadata']['continue']}")
        token = refused["metadata"]["continue"]
        status, rest = await api("GET", f"{CONFIGMAPS}?limit=2&continue={token}")
        assert (status, [item["metadata"]["name"] for item in rest["items"]]) == (200, ["d", "e"])
        assert rest["metadata"]["remainingItemCount"] == 1
        assert int(rest["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
        _, selected = await api("GET", f"{CONFIGMAPS}?labelSelector=odd=True&continue={token}")
        assert [item["metadata"]["name"] for item in selected["items"]] == ["e"]
        _, whole = await api("GET", f"{CONFIGMAPS}?continue={token}")
        assert [item["metadata"]["name"] for item in whole["items"]] == ["d", "e", "f"]

    play(scenario, list_snapshot_s=-1.0)


@pytest.mark.parametrize(
    "form", ["", ";as=Table;g=meta.k8s.io;v=v1", ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"]
)
def test_every_form_of_a_page_counts_the_rest(play: Callable[..., None], form: str) -> None:
    async def scenario(api: Any) -> None:
        for name in "abc":
            await api("POST", CONFIGMAPS, {"metadata": {"name": name}})
        _, page = await api("GET", f"{CONFIGMAPS}?limit=1", accept=f"application/json{form}")
        assert page["metadata"]["remainingItemCount"] == 2

    play(scenario)
