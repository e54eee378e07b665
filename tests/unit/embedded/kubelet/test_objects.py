import asyncio
from typing import Any

import msgspec
import pytest
from tests.fakes.listing_api import ListingApi, play

from podwire.embedded.kubelet.objects import ConfigObjects, references
from podwire.embedded.kubelet.volumes import config_map_data, secret_data
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.events import EventRecorder
from podwire.model.pod import Pod
from podwire.runtime.clock import SystemClock
from podwire.runtime.supervise import Supervisor


def pod(**spec: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}, Pod)


def box(**fields: Any) -> dict[str, Any]:
    return {"name": "c", "image": "i", **fields}


@pytest.mark.parametrize(
    ("spec", "objects"),
    [
        ({"containers": [box()]}, set()),
        (
            {
                "containers": [box(envFrom=[{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}])],
                "initContainers": [box(env=[{"name": "E", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}])],
            },
            {("configmaps", "a"), ("secrets", "b"), ("secrets", "c")},
        ),
        (
            {
                "volumes": [
                    {"name": "v", "configMap": {"name": "a"}},
                    {"name": "w", "secret": {"secretName": "b"}},
                    {"name": "x", "projected": {"sources": [{"secret": {"name": "c"}}, {"configMap": {"name": "d"}}]}},
                    {"name": "y", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
                ]
            },
            {("configmaps", "a"), ("secrets", "b"), ("secrets", "c"), ("configmaps", "d")},
        ),
        (
            {"containers": [box(envFrom=[{"configMapRef": {"name": "kube-root-ca.crt"}}])]},
            {("configmaps", "kube-root-ca.crt")},
        ),
    ],
)
def test_objects_of_a_pod_are_found(spec: dict[str, Any], objects: set[tuple[str, str]]) -> None:
    assert references(pod(**spec)) == objects


def _watches() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("watch ")}


def test_an_object_is_watched_while_a_pod_uses_it() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        client = Client(ApiConfig("http://127.0.0.1:1"), clock)
        first = pod(volumes=[{"name": "v", "configMap": {"name": "a"}}, {"name": "w", "secret": {"secretName": "b"}}])
        second = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, uid="v"))
        async with Supervisor(clock, lambda name, failure: None) as supervisor:
            objects = ConfigObjects(client, supervisor, EventRecorder(client, "kubelet"))
            waiting = [asyncio.ensure_future(objects.ready_for(entry)) for entry in (first, second)]
            await asyncio.sleep(0.01)
            assert _watches() == {"watch configmaps n/a", "watch secrets n/b"}
            objects.release("u")
            await asyncio.sleep(0.01)
            assert len(_watches()) == 2
            objects.release("v")
            await asyncio.sleep(0.01)
            assert not _watches()
            for item in waiting:
                item.cancel()
        await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("plural", "kind", "fields", "problem"),
    [
        ("configmaps", "ConfigMap", {"data": {"k": 5}}, "data[k]: expected a text"),
        ("configmaps", "ConfigMap", {"binaryData": {"k": "a"}}, "binaryData[k]: expected base64"),
        ("secrets", "Secret", {"data": 5}, "data: expected a map of texts"),
    ],
)
def test_object_with_unusable_values_gets_an_event(
    plural: str, kind: str, fields: dict[str, Any], problem: str
) -> None:
    source = {"configMap": {"name": "a"}} if plural == "configmaps" else {"secret": {"secretName": "a"}}

    async def scenario(api: ListingApi, client: Client) -> None:
        events = EventRecorder(client, "kubelet", host="n1")
        async with Supervisor(client.clock, lambda name, failure: None) as supervisor:
            writing = supervisor.start("events", events.run)
            objects = ConfigObjects(client, supervisor, events)
            await objects.ready_for(pod(volumes=[{"name": "v", **source}]))
            await api.reported.wait()
            objects.close()
            writing.cancel()
        assert api.about() == [(kind, "a", "InvalidObject")]
        assert (api.events[0]["involvedObject"]["uid"], problem in api.events[0]["message"]) == ("u1", True)

    play({plural: [{"metadata": {"name": "a", "namespace": "n", "uid": "u1"}, **fields}]}, scenario)


META = {"name": "web", "namespace": "shop"}


@pytest.mark.parametrize(
    ("read", "fields", "problem"),
    [
        (config_map_data, {"data": 5}, "ConfigMap shop/web: data: expected a map of texts"),
        (config_map_data, {"data": {"k": 5}}, "ConfigMap shop/web: data[k]: expected a text"),
        (config_map_data, {"binaryData": {"k": "a"}}, "ConfigMap shop/web: binaryData[k]: expected base64: "),
        (config_map_data, {"binaryData": {"k": "\u00e9"}}, "ConfigMap shop/web: binaryData[k]: expected base64: "),
        (secret_data, {"data": ["k"]}, "Secret shop/web: data: expected a map of texts"),
        (secret_data, {"data": {"k": None}}, "Secret shop/web: data[k]: expected a text"),
    ],
)
def test_hostile_data_names_object_and_field(read: Any, fields: dict[str, Any], problem: str) -> None:
    """Such data ended the task of each pod that uses the object; a ConfigError makes its containers wait."""
    with pytest.raises(ConfigError) as raised:
        read({"metadata": META, **fields})
    assert str(raised.value).startswith(problem)
