"""Custom objects when they are read: later defaults of their definition, and field selectors."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.embedded.apiserver.converted_tabs import GROUP, V1, V2, tab
from tests.unit.embedded.apiserver.converted_tabs import definition as tab_definition
from tests.unit.embedded.apiserver.test_conversionwebhooks import until
from tests.unit.embedded.apiserver.test_customresources import DEFINITIONS, GADGETS, MERGE, definition

Play = Callable[..., None]
OBJECT: dict[str, Any] = {"type": "object"}
DEFINITION = f"{DEFINITIONS}/gadgets.example.com"


def colors(*paths: str, **properties: Any) -> dict[str, Any]:
    """A definition with ``spec.color``, ``spec.count`` and ``spec.on``, and selectable fields."""
    body = definition()
    [version] = body["spec"]["versions"]
    fields = {"color": {"type": "string"}, "count": {"type": "integer"}, "on": {"type": "boolean"}, **properties}
    schema = {**OBJECT, "properties": {"spec": {**OBJECT, "properties": fields}}}
    version |= {"schema": {"openAPIV3Schema": schema}, "selectableFields": [{"jsonPath": path} for path in paths]}
    version.pop("subresources")
    return body


def defaulted(**defaults: Any) -> dict[str, Any]:
    """A patch of the definition: fields ``a`` and ``b`` with these defaults."""
    fields = {name: {"type": "string", **({"default": defaults[name]} if name in defaults else {})} for name in "ab"}
    version = definition()["spec"]["versions"][0]
    version["schema"] = {"openAPIV3Schema": {**OBJECT, "properties": {"spec": {**OBJECT, "properties": fields}}}}
    return {"spec": {"versions": [version]}}


def gadget(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


def test_defaults_fill_objects_that_are_stored_already(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEFINITIONS, {**definition(), "spec": definition()["spec"] | defaulted()["spec"]})
        await api("POST", GADGETS, gadget("old"))
        await api("PATCH", DEFINITION, defaulted(a="A"), content_type=MERGE)
        _, old = await api("GET", f"{GADGETS}/old")
        assert old["spec"] == {"a": "A"}
        await api("POST", GADGETS, gadget("new"))
        await api("PATCH", DEFINITION, defaulted(b="B"), content_type=MERGE)
        _, listed = await api("GET", GADGETS)
        assert [item["spec"] for item in listed["items"]] == [{"a": "A", "b": "B"}, {"b": "B"}]
        events = await api.watch(f"{GADGETS}?watch=true")
        assert [event["object"]["spec"] for event in events.seen] == [{"a": "A", "b": "B"}, {"b": "B"}]
        _, patched = await api("PATCH", f"{GADGETS}/old", [{"op": "test", "path": "/spec/b", "value": "B"}],
                               content_type="application/json-patch+json")  # fmt: skip
        assert patched["spec"] == {"b": "B"}
        await api("PATCH", DEFINITION, defaulted(), content_type=MERGE)
        _, old = await api("GET", f"{GADGETS}/old")
        assert old["spec"] == {"b": "B"}

    play(scenario)


def test_changed_definition_ends_the_watches_of_its_objects(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEFINITIONS, definition())
        events = await api.watch(f"{GADGETS}?watch=true")
        await api("PATCH", DEFINITION, {"metadata": {"labels": {"a": "b"}}}, content_type=MERGE)
        assert not events.closed
        await api("PATCH", DEFINITION, defaulted(a="A"), content_type=MERGE)
        assert events.closed

    play(scenario)


SELECTIONS = {
    "spec.color=blue": ["a", "c"],
    "spec.color!=blue": ["b", "d"],
    "spec.color=": ["d"],
    "spec.color=blue,spec.count=2": ["c"],
    "spec.on=true": ["b"],
    "spec.color=blue,metadata.name!=a": ["c"],
}


@pytest.mark.parametrize("selector", SELECTIONS)
def test_lists_and_watches_select_by_fields(play: Play, selector: str) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEFINITIONS, colors(".spec.color", ".spec.count", ".spec.on"))
        specs = {
            "a": {"color": "blue", "count": 1},
            "b": {"color": "red", "on": True},
            "c": {"color": "blue", "count": 2},
        }
        for name, spec in {**specs, "d": {}}.items():
            await api("POST", GADGETS, gadget(name, **spec))
        _, listed = await api("GET", f"{GADGETS}?fieldSelector={selector}")
        assert [item["metadata"]["name"] for item in listed["items"]] == SELECTIONS[selector]
        events = await api.watch(f"{GADGETS}?watch=true&fieldSelector={selector}")
        assert events.short == [f"ADDED {name}" for name in SELECTIONS[selector]]

    play(scenario)


def test_object_enters_and_leaves_a_selection(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEFINITIONS, colors(".spec.color"))
        await api("POST", GADGETS, gadget("a", color="blue"))
        await api("POST", GADGETS, gadget("b", color="red"))
        events = await api.watch(f"{GADGETS}?watch=true&fieldSelector=spec.color=blue")
        await api("PATCH", f"{GADGETS}/b", {"spec": {"color": "blue"}}, content_type=MERGE)
        await api("PATCH", f"{GADGETS}/a", {"spec": {"color": "red"}}, content_type=MERGE)
        status, _ = await api("DELETE", f"{GADGETS}?fieldSelector=spec.color=blue")
        await until(lambda: len(events.seen) == 4)
        assert (status, events.short) == (200, ["ADDED a", "ADDED b", "DELETED a", "DELETED b"])
        assert {event["object"]["spec"]["color"] for event in events.seen} == {"blue"}
        _, remaining = await api("GET", GADGETS)
        assert [item["metadata"]["name"] for item in remaining["items"]] == ["a"]

    play(scenario)


def test_other_fields_cannot_be_selected_by(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEFINITIONS, colors(".spec.color"))
        status, refused = await api("GET", f"{GADGETS}?fieldSelector=spec.count=1")
        assert (status, refused["message"]) == (400, "field label not supported: spec.count")

    play(scenario)


def test_selection_by_default_value(play: Play) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", DEFINITIONS, colors(".spec.color"))
        await api("POST", GADGETS, gadget("a"))
        body = colors(".spec.color", color={"type": "string", "default": "blue"})
        await api("PATCH", DEFINITION, {"spec": {"versions": body["spec"]["versions"]}}, content_type=MERGE)
        _, listed = await api("GET", f"{GADGETS}?fieldSelector=spec.color=blue")
        assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]

    play(scenario)


def test_fields_are_those_of_the_version_that_was_asked_for(play: Play, converter: Any) -> None:
    """v1 has ``spec.hostPort``, v2 has ``spec.host``; objects are stored in v2."""

    async def scenario(api: Any) -> None:
        async with converter() as hook:
            body = tab_definition(hook.url, hook.bundle)
            first, second = body["spec"]["versions"]
            first["selectableFields"] = [{"jsonPath": ".spec.hostPort"}]
            second["selectableFields"] = [{"jsonPath": ".spec.host"}]
            await api("POST", DEFINITIONS, body)
            for name, port in (("a", "h:1"), ("b", "h:2"), ("c", "i:1")):
                await api("POST", V1, tab(name, hostPort=port))
            _, listed = await api("GET", f"{V2}?fieldSelector=spec.host=h")
            assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b"]
            _, listed = await api("GET", f"{V1}?fieldSelector=spec.hostPort=h:1")
            assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]
            status, _ = await api("GET", f"{V1}?fieldSelector=spec.host=h")
            assert status == 400
            events = await api.watch(f"{V1}?watch=true&fieldSelector=spec.hostPort=h:1")
            await until(lambda: len(events.seen) == 1)
            await api("PATCH", f"{V2}/b", {"spec": {"port": "1"}}, content_type=MERGE)
            await api("PATCH", f"{V2}/a", {"spec": {"port": "9"}}, content_type=MERGE)
            await until(lambda: len(events.seen) == 3)
            assert events.short == ["ADDED a", "ADDED b", "DELETED a"]
            assert {event["object"]["apiVersion"] for event in events.seen} == {f"{GROUP}/v1"}
            assert [event["object"]["spec"]["hostPort"] for event in events.seen] == ["h:1"] * 3
            await api("DELETE", f"{V1}?fieldSelector=spec.hostPort=h:1")
            _, remaining = await api("GET", V2)
            assert [item["metadata"]["name"] for item in remaining["items"]] == ["a", "c"]

    play(scenario)


def test_defaults_are_filled_before_a_conversion(play: Play, converter: Any) -> None:
    async def scenario(api: Any) -> None:
        async with converter() as hook:
            body = tab_definition(hook.url, hook.bundle)
            await api("POST", DEFINITIONS, body)
            await api("POST", V1, tab("a", hostPort="h:1"))
            fields = body["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
            fields["note"]["default"] = "later"
            await api("PATCH", f"{DEFINITIONS}/tabs.{GROUP}", {"spec": {"versions": body["spec"]["versions"]}},
                      content_type=MERGE)  # fmt: skip
            for path in (V1, V2):
                _, result = await api("GET", f"{path}/a")
                assert result["spec"]["note"] == "later"

    play(scenario)


PATH = "spec.versions[0].selectableFields"
REFUSED: dict[str, tuple[list[str], str]] = {
    "none": ([""], f"{PATH}[0].jsonPath: Required value"),
    "no dot": (["spec.color"], f'{PATH}[0].jsonPath: Invalid value: "spec.color": is an invalid path: expected names'),
    "unknown": ([".spec.odd"], f'{PATH}[0].jsonPath: Invalid value: ".spec.odd": is an invalid path: does not refer'),
    "metadata": ([".metadata.name"], f'{PATH}[0]: Invalid value: ".metadata.name": must not point to fields in meta'),
    "object": ([".spec"], f'{PATH}[0]: Invalid value: ".spec": must point to a field of type string, boolean or'),
    "twice": ([".spec.color", ".spec.color"], f'{PATH}[1]: Duplicate value: ".spec.color"'),
    "too many": ([f".spec.f{n}" for n in range(9)], f"{PATH}: Too many: 9: must have at most 8 items"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_selectable_fields_that_are_refused(play: Play, case: str) -> None:
    paths, problem = REFUSED[case]

    async def scenario(api: Any) -> None:
        more = {f"f{n}": {"type": "string"} for n in range(9)}
        status, refused = await api("POST", DEFINITIONS, colors(*paths, **more))
        [cause] = refused["details"]["causes"]
        assert status == 422
        assert f"{cause['field']}: {cause['message']}".startswith(problem)

    play(scenario)
