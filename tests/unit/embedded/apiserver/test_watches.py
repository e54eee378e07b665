"""Watches, without sockets."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from podwire.embedded.apiserver import store

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


async def relabel(api: Any, name: str, value: str | None) -> None:
    await api("PATCH", f"{CONFIGMAPS}/{name}", {"metadata": {"labels": {"x": value}}}, content_type=MERGE)


def test_watch_sends_existing_objects_then_changes(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CONFIGMAPS, config_map("a"))
        for start in ("", "&resourceVersion=0"):
            events = await api.watch(f"{CONFIGMAPS}?watch=true{start}")
            assert events.short == ["ADDED a"]
        await api("POST", CONFIGMAPS, config_map("b"))
        await relabel(api, "b", "1")
        await api("DELETE", f"{CONFIGMAPS}/b")
        await asyncio.sleep(0.01)
        assert events.short == ["ADDED a", "ADDED b", "MODIFIED b", "DELETED b"]
        versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events.seen]
        assert versions == sorted(set(versions))

    play(scenario)


def test_watch_from_a_version_gets_later_changes(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        _, first = await api("POST", CONFIGMAPS, config_map("a"))
        await api("POST", CONFIGMAPS, config_map("b"))
        version = first["metadata"]["resourceVersion"]
        events = await api.watch(f"{CONFIGMAPS}?watch=true&resourceVersion={version}")
        assert events.short == ["ADDED b"]
        assert (await api("GET", f"{CONFIGMAPS}?watch=true&resourceVersion=999999"))[0] == 504

    play(scenario)


def test_selectors_turn_changes_into_additions_and_deletions(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CONFIGMAPS, config_map("a"))
        events = await api.watch(f"{CONFIGMAPS}?watch=true&labelSelector=x%3D1")
        await relabel(api, "a", "1")
        await api("PATCH", f"{CONFIGMAPS}/a", {"data": {"k": "v"}}, content_type=MERGE)
        await relabel(api, "a", "2")
        await relabel(api, "a", "3")
        await api("DELETE", f"{CONFIGMAPS}/a")
        await asyncio.sleep(0.01)
        assert events.short == ["ADDED a", "MODIFIED a", "DELETED a"]

    play(scenario)


LEAVING: dict[str, dict[str, Any]] = {
    "labelSelector=x%3D1": {"metadata": {"labels": {"x": "2"}}},
    "fieldSelector=type%3Done": {"type": "two"},
}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize("resumed", [False, True], ids=["open", "resumed"])
@pytest.mark.parametrize("selector", LEAVING)
def test_object_that_leaves_a_selection_is_sent_as_before(
    play: Callable[..., None], selector: str, resumed: bool
) -> None:
    async def scenario(api: Any) -> None:
        path = "/api/v1/namespaces/default/events"
        event = {"metadata": {"name": "a", "labels": {"x": "1"}}, "type": "one", "message": "before",
                 "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}}  # fmt: skip
        _, created = await api("POST", path, event)
        query = f"{path}?watch=true&{selector}&resourceVersion={created['metadata']['resourceVersion']}"
        watches = [] if resumed else [await api.watch(query), await api.watch(query, accept=TABLE)]
        _, remaining = await api("PATCH", f"{path}/a", {**LEAVING[selector], "message": "after"}, content_type=MERGE)
        if resumed:
            watches = [await api.watch(query), await api.watch(query, accept=TABLE)]
        await asyncio.sleep(0.01)
        (deleted,), (row,) = (events.seen for events in watches)
        old = {
            **created,
            "metadata": {**created["metadata"], "resourceVersion": remaining["metadata"]["resourceVersion"]},
        }
        assert deleted == {"type": "DELETED", "object": old}
        assert (row["type"], "before" in row["object"]["rows"][0]["cells"]) == ("DELETED", True)

    play(scenario)


def test_deletion_by_an_unlabelling_update_sends_the_object_before(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        body = config_map("a", x="1")
        body["metadata"]["finalizers"] = ["example.com/wait"]
        await api("POST", CONFIGMAPS, body)
        selected = await api.watch(f"{CONFIGMAPS}?watch=true&labelSelector=x%3D1")
        await api("DELETE", f"{CONFIGMAPS}/a")
        await api("PATCH", f"{CONFIGMAPS}/a", {"metadata": {"labels": None, "finalizers": None}}, content_type=MERGE)
        await asyncio.sleep(0.01)
        assert selected.short == ["ADDED a", "MODIFIED a", "DELETED a"]
        modified, deleted = (event["object"]["metadata"] for event in selected.seen[1:])
        assert int(deleted["resourceVersion"]) > int(modified["resourceVersion"])
        assert deleted["labels"] == {"x": "1"}

    play(scenario)


def test_streaming_lists_end_with_a_marked_bookmark(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", CONFIGMAPS, config_map("a"))
        events = await api.watch(
            f"{CONFIGMAPS}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
        )
        assert events.short == ["ADDED a", "BOOKMARK"]
        assert events.seen[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert (await api("GET", f"{CONFIGMAPS}?watch=true&sendInitialEvents=true"))[0] == 422

    play(scenario)


def test_bookmarks_advance_the_version_of_quiet_watches(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        asked = await api.watch(f"{CONFIGMAPS}?watch=true&allowWatchBookmarks=true&fieldSelector=metadata.name%3Da")
        plain = await api.watch(f"{CONFIGMAPS}?watch=true&fieldSelector=metadata.name%3Da")
        _, created = await api("POST", CONFIGMAPS, config_map("b"))
        await asyncio.sleep(0.1)
        assert set(asked.short) == {"BOOKMARK"}
        last = asked.seen[-1]["object"]
        assert (last["kind"], last["apiVersion"]) == ("ConfigMap", "v1")
        assert int(last["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])
        assert plain.short == []

    play(scenario, bookmark_s=0.02)


def test_too_old_version_gets_410_gone(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "HISTORY", 3)

    async def scenario(api: Any) -> None:
        versions = []
        for name in "abcdef":
            _, created = await api("POST", CONFIGMAPS, config_map(name))
            versions.append(created["metadata"]["resourceVersion"])
        status, gone = await api("GET", f"{CONFIGMAPS}?watch=true&resourceVersion={versions[1]}")
        assert (status, gone["reason"]) == (410, "Expired")
        assert gone["message"].startswith("too old resource version")
        events = await api.watch(f"{CONFIGMAPS}?watch=true&resourceVersion={versions[2]}")
        assert events.short == ["ADDED d", "ADDED e", "ADDED f"]

    play(scenario)


def test_tables_send_their_columns_once(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        events = await api.watch(f"{CONFIGMAPS}?watch=true", accept=accept)
        for name in ("a", "b"):
            await api("POST", CONFIGMAPS, config_map(name))
        await asyncio.sleep(0.01)
        assert [bool(e["object"]["columnDefinitions"]) for e in events.seen] == [True, False]
        assert events.seen[1]["object"]["rows"][0]["cells"][0] == "b"

    play(scenario)


def test_client_that_does_not_read_is_disconnected(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        events = await api.watch(f"{CONFIGMAPS}?watch=true")
        events.buffered = 1 << 30
        await api("POST", CONFIGMAPS, config_map("a"))
        assert events.aborted

    play(scenario)


def test_other_namespaces_are_not_shown(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        events = await api.watch(f"{CONFIGMAPS}?watch=true")
        everywhere = await api.watch("/api/v1/configmaps?watch=true&fieldSelector=metadata.name%3Da")
        await api("POST", "/api/v1/namespaces/kube-system/configmaps", config_map("a"))
        await api("POST", "/api/v1/namespaces/kube-system/configmaps", config_map("b"))
        await asyncio.sleep(0.01)
        assert (events.short, everywhere.short) == ([], ["ADDED a"])

    play(scenario)
