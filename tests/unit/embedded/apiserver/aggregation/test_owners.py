"""Objects whose owners are in extension API servers, or of kinds that nobody serves."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.embedded.apiserver.aggregation.conftest import GROUP, ROOT, SERVICES, until

from podwire.http.message import Response, text_response

Play = Callable[..., None]
Object = dict[str, Any]

MAPS = "/api/v1/namespaces/default/configmaps"
FLUNDERS = f"{ROOT}/namespaces/default/flunders"
OWNER: Object = {"apiVersion": f"{GROUP}/v1", "kind": "Flunder", "metadata": {"name": "f", "uid": "uid-f"}}


def owned(name: str, **changes: str) -> Object:
    reference = {"apiVersion": f"{GROUP}/v1", "kind": "Flunder", "name": "f", "uid": "uid-f", **changes}
    return {"metadata": {"name": name, "ownerReferences": [reference]}}


async def gone(api: Any, name: str) -> None:
    await until(api, f"{MAPS}/{name}", '"NotFound"')


async def stays(api: Any, name: str) -> None:
    await api.settle(60)
    assert (await api("GET", f"{MAPS}/{name}"))[0] == 200


def test_dependent_goes_with_its_owner_in_an_extension(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            extension.objects = [OWNER]
            await register(api, extension.port)
            await api("POST", MAPS, owned("a"))
            await stays(api, "a")
            assert (await api.raw("DELETE", f"{FLUNDERS}/f")) is not None
            await gone(api, "a")
            assert any(request.path == f"{FLUNDERS}/f" for request in extension.asked)

    play_with_proxy(scenario)


def test_owner_that_never_existed_in_an_extension_is_gone(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            await register(api, extension.port)
            await api("POST", MAPS, owned("missing"))
            await gone(api, "missing")
            extension.objects = [{**OWNER, "metadata": {"name": "f", "uid": "another"}}]
            await api("POST", MAPS, owned("another"))
            await gone(api, "another")

    play_with_proxy(scenario)


@pytest.mark.parametrize(
    "answer",
    [
        text_response(404, "nothing here"), text_response(404, "[]"), text_response(500, "{}"),
        text_response(403, "{}"), Response(200, b"{}"), Response(200, b'{"metadata": 1}'), Response(200, b"["),
        Response(404, b"{}"),
    ],
)  # fmt: skip
def test_unclear_answer_deletes_nothing(play_with_proxy: Play, serve: Any, register: Any, answer: Response) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            await register(api, extension.port)
            extension.broken = answer
            await api("POST", MAPS, owned("a"))
            await stays(api, "a")
            assert any(request.path == f"{FLUNDERS}/f" for request in extension.asked)

    play_with_proxy(scenario)


def test_dependents_outlive_an_extension_that_is_away(play_with_proxy: Play, serve: Any, register: Any) -> None:
    async def scenario(api: Any) -> None:
        async with serve() as extension:
            extension.objects = [OWNER]
            await register(api, extension.port)
            await api("POST", MAPS, owned("a"))
            await stays(api, "a")
            assert (await api("DELETE", f"{SERVICES}/v1.{GROUP}"))[0] == 200
            await api("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, content_type="application/merge-patch+json")
            await api("POST", MAPS, owned("b"))
            await stays(api, "a")
            await stays(api, "b")
            extension.objects.clear()
            await register(api, extension.port)
            await gone(api, "a")
            await gone(api, "b")

    play_with_proxy(scenario)


@pytest.mark.parametrize(
    ("changes", "remaining"),
    [
        ({"apiVersion": "unknown.example.com/v1"}, True),
        ({"apiVersion": "apps/v1beta1", "kind": "Deployment"}, True),
        ({"apiVersion": "apps/v1", "kind": "Unknown"}, True),
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, False),
        ({"apiVersion": "v1", "kind": "ConfigMap"}, False),
    ],
)
def test_only_owners_of_served_kinds_are_known_to_be_gone(play: Play, changes: dict[str, str], remaining: bool) -> None:  # noqa: FBT001
    async def scenario(api: Any) -> None:
        await api("POST", MAPS, owned("a", **changes))
        if remaining:
            await stays(api, "a")
        else:
            await gone(api, "a")

    play(scenario)


def test_dependents_go_with_the_definition_of_their_owner(play: Play) -> None:
    async def scenario(api: Any) -> None:
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        spec = {"group": "own.example.com", "scope": "Namespaced", "names": {"plural": "tops", "kind": "Top"},
                "versions": [version]}  # fmt: skip
        await api("POST", definitions, {"metadata": {"name": "tops.own.example.com"}, "spec": spec})
        tops = "/apis/own.example.com/v1/namespaces/default/tops"
        _, top = await api("POST", tops, {"metadata": {"name": "f"}})
        api_version, uid = "own.example.com/v1", top["metadata"]["uid"]
        for number in range(3):
            await api("POST", MAPS, owned(f"m{number}", apiVersion=api_version, kind="Top", uid=uid))
        await stays(api, "m0")
        assert (await api("DELETE", f"{definitions}/tops.own.example.com"))[0] == 200
        for number in range(3):
            await gone(api, f"m{number}")

    play(scenario)
