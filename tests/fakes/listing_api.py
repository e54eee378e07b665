"""An API that lists fixed objects, sends fixed changes to watches, and keeps the Events that are written."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.fakes import scripted_http as http

from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.runtime.clock import SystemClock


class ListingApi:
    """``listed`` has the objects of each plural, ``changed`` those that a watch sends; none by default."""

    def __init__(
        self, listed: Mapping[str, list[dict[str, Any]]], changed: Mapping[str, list[dict[str, Any]]] | None = None
    ) -> None:
        self._listed = listed
        self._changed = changed or {}
        self.events: list[dict[str, Any]] = []
        self.reported = asyncio.Event()
        """Set when an Event was written."""

    async def answer(self, received_request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        """Answers one request."""
        path, _, query = received_request.target.partition("?")
        if received_request.method == "POST":
            self.events.append(received_request.json)
            self.reported.set()
            return http.answer(writer, {})
        if "watch=true" not in query:
            items = self._listed.get(path.rpartition("/")[2], [])
            return http.answer(writer, {"metadata": {"resourceVersion": "2"}, "items": items})
        http.open_stream(writer)
        for item in self._changed.get(path.rpartition("/")[2], ()):
            http.chunk(writer, {"type": "MODIFIED", "object": item})
        await writer.drain()
        await asyncio.sleep(3600)
        return False

    def about(self) -> list[tuple[str, str, str]]:
        """Kind and name of the object, and reason of each Event."""
        return [(e["involvedObject"]["kind"], e["involvedObject"]["name"], e["reason"]) for e in self.events]


def play(
    listed: Mapping[str, list[dict[str, Any]]],
    scenario: Callable[[ListingApi, Client], Awaitable[None]],
    changed: Mapping[str, list[dict[str, Any]]] | None = None,
) -> None:
    """Runs a scenario with a client of such an API."""

    async def run() -> None:
        api = ListingApi(listed, changed)
        async with http.ScriptedServer(api.answer) as server:
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), SystemClock())
            async with asyncio.timeout(60):
                await scenario(api, client)
            await client.close()
            for waiting in asyncio.all_tasks() - {asyncio.current_task()}:
                waiting.cancel()

    asyncio.run(run())
