"""The server's requests to the Kubernetes API as metrics: answered, refused, and without an answer."""

import asyncio

import pytest
from tests.fakes import scripted_http as http
from tests.fakes.ports import free_port

from podwire.dns.apicalls import ApiCalls
from podwire.errors import ApiError, ApiUnreachable
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.kube.pool import ApiCall
from podwire.kube.request import ApiRequest
from podwire.kube.resources import SERVICES
from podwire.runtime.clock import SystemClock


def results(calls: ApiCalls) -> dict[tuple[str, str], float]:
    """The numbers of requests by code and method."""
    return {
        (labels[0][1], labels[1][1]): value
        for name, labels, value in calls.series()
        if name == "coredns_kubernetes_rest_client_requests_total"
    }


async def _answer(request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
    if "watch" in request.target:
        return http.answer(writer, {"kind": "Status", "reason": "Expired"}, 410)
    return http.answer(
        writer, {"metadata": {"resourceVersion": "2"}, "items": []}, 404 if request.method == "PUT" else 200
    )


def test_requests_are_counted_by_their_result() -> None:
    async def body() -> None:
        async with http.ScriptedServer(_answer) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            calls = ApiCalls(client.config.url.netloc)
            client.connections.observe = calls.observe
            await client.list(SERVICES)
            with pytest.raises(ApiError):
                await client.update(SERVICES, {}, "shop", name="web")
            with pytest.raises(ApiError):
                await client.connections.open_stream(ApiRequest("GET", "/api/v1/services", {"watch": "true"}))
            assert results(calls) == {("200", "GET"): 1, ("404", "PUT"): 1, ("410", "GET"): 1}
            await client.close()

    asyncio.run(body())


def test_request_without_an_answer_is_an_error() -> None:
    async def body() -> None:
        client = Client(ApiConfig(server=f"http://127.0.0.1:{free_port()}"), SystemClock())
        calls = ApiCalls(client.config.url.netloc)
        client.connections.observe = calls.observe
        with pytest.raises(ApiUnreachable):
            await client.list(SERVICES)
        assert results(calls) == {("<error>", "GET"): 1}
        await client.close()

    asyncio.run(body())


def test_waiting_and_answering_are_measured_apart() -> None:
    calls = ApiCalls("192.0.2.1:6443")
    calls.observe(ApiCall("GET", 200, 0.2, 0.003))
    calls.observe(ApiCall("GET", 200, 0.3, 0.0))
    labels = (("verb", "GET"), ("host", "192.0.2.1:6443"))
    sums = {name: value for name, own, value in calls.series() if own == labels and name.endswith(("_sum", "_count"))}
    prefix = "coredns_kubernetes_rest_client"
    assert (
        sums[f"{prefix}_request_duration_seconds_count"] == sums[f"{prefix}_rate_limiter_duration_seconds_count"] == 2
    )
    assert sums[f"{prefix}_request_duration_seconds_sum"] == pytest.approx(0.5)
    assert sums[f"{prefix}_rate_limiter_duration_seconds_sum"] == pytest.approx(0.003)
