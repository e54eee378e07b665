"""The Events of the Service proxy, as the API server gets them."""

import asyncio

import msgspec
from tests.fakes import scripted_http as http
from tests.fakes.collection import Collection
from tests.fakes.hostile_objects import SERVICE, SLICE

from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.decode import decode_object
from podwire.kube.events import EventRecorder
from podwire.model.node import Node
from podwire.model.service import EndpointSlice, Service
from podwire.proxy.events import ProxyEvents
from podwire.runtime.clock import SystemClock


def test_objects_of_which_something_is_left_out_get_an_event() -> None:
    ports = [{"name": f"p{number}", "port": -number} for number in range(1, 8)]
    service = SERVICE | {"spec": SERVICE["spec"] | {"ports": ports}}
    endpoint_slice = SLICE | {"endpoints": [{"addresses": ["fd00::9"]}]}

    async def handler(_received_request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        return http.answer(writer, {})

    async def run() -> list[http.ReceivedRequest]:
        async with http.ScriptedServer(handler) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            recorder = EventRecorder(client, "podwire", host="n1")
            services, slices = Collection[Service](), Collection[EndpointSlice]()
            events = ProxyEvents(recorder, "n1", Collection[Node](), services)
            services.subscribe(events.service_changed)
            slices.subscribe(events.slice_changed)
            for written in (SERVICE, service, None):
                decoded = decode_object(msgspec.json.encode(written), Service) if written else None
                services.put("default/web", decoded)
            for written in (SLICE, endpoint_slice, None):
                piece = decode_object(msgspec.json.encode(written), EndpointSlice) if written else None
                slices.put("default/web", piece)
            task = asyncio.create_task(recorder.run())
            async with asyncio.timeout(5):
                while len(server.received) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            task.cancel()
            await client.close()
            return server.received

    of_service, of_slice = (request.json for request in asyncio.run(run()))
    assert of_service["involvedObject"]["kind"] == "Service"
    assert (of_service["type"], of_service["reason"]) == ("Warning", "InvalidObject")
    message = of_service["message"]
    assert message.startswith("The Service proxy leaves out: spec.ports[0].port -1: expected 1 to 65535; ")
    assert message.endswith("; spec.ports[4].port -5: expected 1 to 65535; ...")
    assert of_slice["involvedObject"]["kind"] == "EndpointSlice"
    assert of_slice["message"] == (
        "The Service proxy leaves out: endpoints[0].addresses[0] 'fd00::9': expected the IPv4 address of a host"
    )
