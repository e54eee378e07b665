"""Health, version and metrics of the API server, and warnings about what is stored and no more."""

import json
from collections.abc import Callable
from typing import Any

from podwire.http.message import Response


def test_health_of_all_checks_and_of_single_checks(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        async def get(path: str) -> tuple[int, str]:
            answer = await api.raw("GET", path)
            assert isinstance(answer, Response)
            return answer.status, answer.body.decode()

        for path in ("/healthz", "/livez", "/readyz", "/readyz/ping"):
            assert await get(path) == (200, "ok")
        assert (await get("/readyz?verbose"))[1].splitlines() == [
            "[+]ping ok", "[+]journal ok", "[+]bootstrap ok", "readyz check passed",
        ]  # fmt: skip
        assert "ping" not in (await get("/livez?verbose&exclude=ping"))[1]
        assert (await get("/healthz/nonsense"))[0] == 404
        api.server.health.checks |= {"journal": lambda: False}
        assert await get("/readyz") == (500, "[+]ping ok\n[-]journal failed\n[+]bootstrap ok\nreadyz check failed\n")
        assert await get("/readyz?exclude=journal") == (200, "ok")
        assert await get("/livez") == (200, "ok")

    play(scenario)


def test_metrics_count_stored_objects_and_need_a_user(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        await api("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})
        answer = await api.raw("GET", "/metrics")
        lines = answer.body.decode().splitlines()
        assert 'apiserver_storage_objects{resource="configmaps"} 2' in lines
        assert 'apiserver_storage_objects{resource="namespaces"} 4' in lines
        assert (await api.raw("GET", "/metrics", user=None)).status == 403

    play(scenario)


def test_kinds_without_effect_come_with_a_warning(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        request = {"name": "r", "exactly": {"deviceClassName": "d"}}
        body = json.dumps({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}})
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        answer = await api.raw("POST", path, body.encode())
        assert answer.status == 201
        assert "the scheduler allocates no devices" in dict(answer.headers)["Warning"]

    play(scenario)
