"""Objects that cannot be decoded: left out with an Event, while all others go on."""

import asyncio
from typing import Any

import pytest
from tests.fakes import hostile_objects as hostile
from tests.fakes import scripted_http as http

from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.resources import ENDPOINTSLICES, NAMESPACES, NETWORKPOLICIES, NODES, PODS, SERVICES, Resource
from podwire.runtime.clock import SystemClock

JsonObject = dict[str, Any]
VALID: tuple[tuple[Resource[Any], JsonObject], ...] = (
    (SERVICES, hostile.SERVICE),
    (ENDPOINTSLICES, hostile.SLICE),
    (NODES, hostile.NODE),
    (PODS, hostile.POD),
    (NAMESPACES, hostile.NAMESPACE),
    (NETWORKPOLICIES, hostile.POLICY),
)


def named(item: JsonObject, name: str, version: int = 1) -> JsonObject:
    return item | {"metadata": item["metadata"] | {"name": name, "uid": f"u-{name}", "resourceVersion": str(version)}}


class Api:
    """Answers the lists and watches of one collection, and keeps the Events that are written."""

    def __init__(self, listed: list[JsonObject], watched: list[JsonObject]) -> None:
        self.listed, self.watched = listed, watched
        self.events: list[JsonObject] = []
        self.counted: list[int] = []
        """The counts of Events that came again."""

    async def __call__(self, received_request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        if received_request.method == "PATCH":
            self.counted.append(received_request.json["count"])
            return http.answer(writer, {})
        if received_request.method == "POST":
            self.events.append(received_request.json)
            return http.answer(writer, {})
        if "watch=true" not in received_request.target:
            return http.answer(writer, {"metadata": {"resourceVersion": "2"}, "items": self.listed})
        http.open_stream(writer)
        for event in self.watched:
            http.chunk(writer, event)
        await writer.drain()
        await asyncio.sleep(3600)
        return False

    @property
    def written(self) -> int:
        return len(self.events) + len(self.counted)

    def about(self) -> list[tuple[str, str, str]]:
        """Kind, name and reason of the Events."""
        return [(e["involvedObject"]["kind"], e["involvedObject"]["name"], e["reason"]) for e in self.events]


def follow(api: Api, resource: Resource[Any], events: int) -> Informer[Any]:
    """Follows the collection until the object ``last`` has come and so many Events were written."""

    async def run() -> Informer[Any]:
        async with http.ScriptedServer(api) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            informer, recorder = Informer(client, resource), EventRecorder(client, "podwire-agent", host="n1")
            recorder.follow_rejected(informer)
            tasks = [asyncio.ensure_future(informer.run()), asyncio.ensure_future(recorder.run())]
            async with asyncio.timeout(10):
                while not informer.objects.keys() & {"last", "default/last"} or api.written < events:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
            for task in tasks:
                task.cancel()
            await client.close()
            for waiting in asyncio.all_tasks() - {asyncio.current_task()}:
                waiting.cancel()
            return informer

    return asyncio.run(run())


@pytest.mark.parametrize(("resource", "valid"), VALID, ids=lambda value: getattr(value, "plural", ""))
def test_every_undecodable_form_gets_an_event_and_others_go_on(resource: Resource[Any], valid: JsonObject) -> None:
    names = ("name", "namespace", "uid", "resourceVersion")
    broken = [
        item
        for item in hostile.undecodable(valid, resource.type)
        if isinstance(item["metadata"], dict)
        and all(item["metadata"].get(n) == valid["metadata"].get(n) for n in names)
    ]
    assert len(broken) > 3
    forms = [named(item, f"broken-{number}") for number, item in enumerate(broken)]
    half = len(forms) // 2
    listed = [named(valid, "first"), *forms[:half], named(valid, "second")]
    watched = [{"type": "ADDED", "object": form} for form in (*forms[half:], named(valid, "last", 3))]
    api = Api(listed, watched)
    informer = follow(api, resource, len(forms))
    assert [item.metadata.name for item in informer.objects.values()] == ["first", "second", "last"]
    assert api.about() == [(resource.kind, f"broken-{number}", "InvalidObject") for number in range(len(forms))]
    assert all("cannot be decoded" in event["message"] and "`$" in event["message"] for event in api.events)


def test_one_reason_is_reported_once_for_each_object() -> None:
    broken = named(hostile.SERVICE, "web") | {"spec": {"ports": 7}}
    worse = named(hostile.SERVICE, "web") | {"spec": []}
    changes = [
        broken,
        broken,
        worse,
        worse,
        named(hostile.SERVICE, "web", 3),
        broken,
        named(hostile.SERVICE, "last", 9),
    ]
    api = Api([], [{"type": "MODIFIED", "object": change} for change in changes])
    informer = follow(api, SERVICES, 3)
    assert [event["message"].rpartition("`$")[2] for event in api.events] == [".spec.ports`", ".spec`"]
    assert api.counted == [2], "the first problem, after a valid form"
    assert informer.objects["default/web"].metadata.resource_version == "3"


def test_deleted_object_goes_even_in_an_undecodable_form() -> None:
    broken = named(hostile.SERVICE, "web", 4) | {"spec": {"ports": 7}}
    watched = [{"type": "DELETED", "object": broken}, {"type": "ADDED", "object": named(hostile.SERVICE, "last", 5)}]
    informer = follow(Api([named(hostile.SERVICE, "web")], watched), SERVICES, 0)
    assert list(informer.objects) == ["default/last"]


def test_list_keeps_the_last_valid_form_of_an_undecodable_object() -> None:
    class Relisted(Api):
        async def __call__(self, received_request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
            answered = (
                await super().__call__(received_request, writer)
                if "watch=true" not in received_request.target or self.turned
                else None
            )
            if answered is not None:
                return answered
            self.turned = True
            self.listed = [broken, named(hostile.SERVICE, "last", 5)]
            http.open_stream(writer)
            http.chunk(writer, {"type": "ERROR", "object": {"code": 410}})
            writer.write(b"0\r\n\r\n")
            return True

        turned = False

    broken = named(hostile.SERVICE, "web", 4) | {"spec": {"ports": 7}}
    informer = follow(Relisted([named(hostile.SERVICE, "web")], []), SERVICES, 1)
    assert informer.objects["default/web"].metadata.resource_version == "1"
