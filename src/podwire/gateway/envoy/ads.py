"""The server that feeds engines: incremental aggregated discovery (Delta ADS) over gRPC on a Unix socket.

Each engine has one stream. Engines keep serving what they have while the server is away; when it returns they say which
versions they have, and get only what differs.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from podwire.gateway.envoy.clusters import TYPE_PREFIX, Json
from podwire.gateway.envoy.resources import Resources
from podwire.gateway.envoy.snapshot import (
    EngineRefusal,
    EngineState,
    ResourceKey,
    ResourceSnapshot,
    ResourceUpdate,
)
from podwire.observe.log import Log
from podwire.runtime.tasks import TaskSet


class DiscoveryServer(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):  # type: ignore[misc]
    """Serves the newest resources to all engines that connect."""

    def __init__(self, socket: Path, on_refusal: Callable[[EngineRefusal], None]) -> None:
        self._socket = socket
        self._on_refusal = on_refusal
        self.on_answer: Callable[[], None] = lambda: None
        """Called after each answer of an engine."""
        self._snapshot = ResourceSnapshot()
        self._wakers: set[asyncio.Event] = set()
        self._states: set[EngineState] = set()
        self._server: grpc.aio.Server | None = None
        self._log = Log("gateway.discovery")
        self._readers = TaskSet(lambda name, error: self._log.error("task failed", task=name, failure=error))

    async def start(self) -> None:
        """Listens; a socket that an earlier process left is replaced."""
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20)])
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Ends all streams; the engines keep what they have."""
        if self._server is not None:
            await self._server.stop(0)
        await self._readers.close()

    def publish(self, resources: Resources) -> None:
        """The resources that engines should have from now on."""
        known = dict(self._snapshot.unreadable)
        changed = self._snapshot.replace(resources)
        for (kind, name), message in self._snapshot.unreadable.items() - known.items():
            self._on_refusal(EngineRefusal(kind=kind, names=(name,), message=message))
        if changed:
            for waker in self._wakers:
                waker.set()

    def publish_some(self, kind: str, values: dict[str, Json]) -> None:
        """Replaces some resources of a type; all others stay."""
        if self._snapshot.replace_some(kind, values):
            for waker in self._wakers:
                waker.set()

    def has(self, resources: Resources) -> bool:
        """Whether these are the resources that engines should have."""
        return all(
            {name: packed.value for name, packed in self._snapshot.of(kind).items()} == values
            for kind, values in resources.items()
        )

    @property
    def engines(self) -> int:
        """How many engines are connected."""
        return len(self._states)

    @property
    def in_step(self) -> bool:
        """Whether every connected engine has answered for the newest resources."""
        return all(state.in_step for state in self._states)

    def refused(self) -> dict[ResourceKey, str] | None:
        """What engines say about those of the newest resources that they refuse; None while one has not answered."""
        if not self._states or not self.in_step:
            return None
        refused = {key: message for state in self._states for key, message in state.refused.items()}
        return refused | self._snapshot.unreadable

    async def DeltaAggregatedResources(  # noqa: N802
        self, requests: AsyncIterator[discovery_pb2.DeltaDiscoveryRequest], _context: object
    ) -> AsyncIterator[discovery_pb2.DeltaDiscoveryResponse]:
        """The stream of one engine."""
        state, waker = EngineState(self._snapshot, self._on_refusal), asyncio.Event()
        reader = self._readers.start("engine", _read(requests, state, self._woken(waker)))
        self._wakers.add(waker)
        self._states.add(state)
        try:
            while not reader.done():
                await waker.wait()
                waker.clear()
                while responses := state.responses():
                    for response in responses:
                        yield _message(response)
        finally:
            self._wakers.discard(waker)
            self._states.discard(state)
            reader.cancel()

    def _woken(self, waker: asyncio.Event) -> Callable[[], None]:
        def wake() -> None:
            waker.set()
            self.on_answer()

        return wake


async def _read(
    requests: AsyncIterator[discovery_pb2.DeltaDiscoveryRequest], state: EngineState, wake: Callable[[], None]
) -> None:
    try:
        async for request in requests:
            state.request(
                request.type_url.removeprefix(TYPE_PREFIX),
                subscribe=request.resource_names_subscribe,
                unsubscribe=request.resource_names_unsubscribe,
                versions=dict(request.initial_resource_versions),
                nonce=request.response_nonce,
                error=request.error_detail.message,
            )
            wake()
    finally:
        wake()


def _message(response: ResourceUpdate) -> discovery_pb2.DeltaDiscoveryResponse:
    return discovery_pb2.DeltaDiscoveryResponse(
        type_url=TYPE_PREFIX + response.kind,
        nonce=response.nonce,
        removed_resources=list(response.removed),
        resources=[
            discovery_pb2.Resource(name=name, version=packed.version, resource=packed.message)
            for name, packed in response.resources.items()
        ],
    )
