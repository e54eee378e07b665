"""Watches of ConfigMaps: selectors, versions, and the order of events."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from tests.e2e.connection import Connection

_LABEL = "watch-this-configmap"


def path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps{name and '/'}{name}"


def make(api: Connection, namespace: str, name: str, label: str) -> dict[str, Any]:
    body = {"metadata": {"name": name, "labels": {_LABEL: label}}, "data": {"mutation": "0"}}
    return dict(api.do("POST", path(namespace), body))


def mutate(api: Connection, namespace: str, name: str, number: int) -> dict[str, Any]:
    return dict(api.do("PATCH", path(namespace, name), {"data": {"mutation": str(number)}}))


def next_events(events: Iterator[dict[str, Any]], number: int) -> list[tuple[str, str, str]]:
    """The next events of a watch: what happened to which object, and its content."""
    return [
        (event["type"], event["object"]["metadata"]["name"], event["object"]["data"]["mutation"])
        for event in islice(events, number)
    ]


def test_watches_by_label_show_what_they_select(api: Connection, namespace: str) -> None:
    version = api.do("GET", path(namespace))["metadata"]["resourceVersion"]
    make(api, namespace, "a", "A")
    make(api, namespace, "b", "B")
    mutate(api, namespace, "a", 1)
    api.do("PATCH", path(namespace, "a"), {"metadata": {"labels": {_LABEL: "other"}}})
    mutate(api, namespace, "a", 2)
    api.do("PATCH", path(namespace, "a"), {"metadata": {"labels": {_LABEL: "A"}}})
    api.do("DELETE", path(namespace, "a"))
    api.do("DELETE", path(namespace, "b"))
    expected = {
        f"{_LABEL}=A": [
            ("ADDED", "a", "0"), ("MODIFIED", "a", "1"), ("DELETED", "a", "1"), ("ADDED", "a", "2"),
            ("DELETED", "a", "2"),
        ],
        f"{_LABEL}=B": [("ADDED", "b", "0"), ("DELETED", "b", "0")],
        f"{_LABEL} in (A,B)": [
            ("ADDED", "a", "0"), ("ADDED", "b", "0"), ("MODIFIED", "a", "1"), ("DELETED", "a", "1"),
            ("ADDED", "a", "2"), ("DELETED", "a", "2"), ("DELETED", "b", "0"),
        ],
    }  # fmt: skip
    for selector, events in expected.items():
        watch = api.watch(path(namespace), labelSelector=selector, resourceVersion=version)
        assert next_events(watch, len(events)) == events
        watch.close()


def test_a_watch_goes_on_from_the_last_version(api: Connection, namespace: str) -> None:
    version = make(api, namespace, "one", "A")["metadata"]["resourceVersion"]
    first = api.watch(path(namespace), labelSelector=f"{_LABEL}=A", resourceVersion=version)
    mutate(api, namespace, "one", 1)
    event = next(first)
    assert (event["type"], event["object"]["data"]["mutation"]) == ("MODIFIED", "1")
    first.close()
    mutate(api, namespace, "one", 2)
    api.do("DELETE", path(namespace, "one"))
    last = event["object"]["metadata"]["resourceVersion"]
    second = api.watch(path(namespace), labelSelector=f"{_LABEL}=A", resourceVersion=last)
    assert next_events(second, 2) == [("MODIFIED", "one", "2"), ("DELETED", "one", "2")]
    second.close()


def test_concurrent_watches_agree_on_the_order(api: Connection, namespace: str) -> None:
    version = api.do("GET", path(namespace))["metadata"]["resourceVersion"]
    for number in range(5):
        make(api, namespace, f"m-{number}", "A")
    for number in range(10):
        mutate(api, namespace, f"m-{number % 5}", number + 1)
    watch = api.watch(path(namespace), labelSelector=_LABEL, resourceVersion=version)
    versions = [event["object"]["metadata"]["resourceVersion"] for event in islice(watch, 15)]
    watch.close()
    assert versions == sorted(versions, key=int)
    for number, start in enumerate(versions[:-1]):
        later = api.watch(path(namespace), labelSelector=_LABEL, resourceVersion=start)
        observed = [
            event["object"]["metadata"]["resourceVersion"] for event in islice(later, len(versions) - number - 1)
        ]
        later.close()
        assert observed == versions[number + 1 :]
