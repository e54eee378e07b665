"""What the agent of one node announces by BGP, at the real API server: all of it but the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from tests.fakes.control_plane import ControlPlane
from tests.unit.local.test_load_balancer_addresses import api_of

from podwire.bgp.configuration import BgpSession, ServiceRoutes
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import ENDPOINTSLICES, EVENTS, METALLB_PEERS, NODES, SERVICEBGPSTATUSES, SERVICES
from podwire.loadbalancer.bgpspeaker import BgpSpeaker
from podwire.loadbalancer.servicestatus import advertised
from podwire.loadbalancer.statusobjects import StatusObjects
from podwire.loadbalancer.view import BalancerView
from podwire.runtime.supervise import Supervisor

ROUTER = {"myASN": 64512, "peerASN": 64600, "peerAddress": "10.89.0.1"}


class BgpAgent:
    """The agent of one node, and the routes that its engine got."""

    def __init__(self, plane: ControlPlane, node: str, supervisor: Supervisor) -> None:
        self.plane, self.node = plane, node
        self.client = Client(api_of(plane), plane.client.clock)
        nodes = Informer(self.client, NODES)
        services, slices = Informer(self.client, SERVICES), Informer(self.client, ENDPOINTSLICES)
        events = EventRecorder(self.client, "podwire-agent")
        self.view = BalancerView(self.client, events, nodes, services, slices)
        self.delivered: list[ServiceRoutes] = []
        self.bgp = BgpSpeaker(node, self.view, "kube-system", self._deliver, supervisor)
        self.statuses = StatusObjects(self.view, node, SERVICEBGPSTATUSES)
        self.bgp.announced = lambda _, now: self.statuses.show(advertised(node, now.announcements))
        for name, body in (self.bgp.tasks() | self.statuses.tasks()).items():
            supervisor.start(name, body)
        for informer in (nodes, services, slices):
            supervisor.start(informer.resource.plural, informer.run)
        supervisor.start("pools", lambda: follow_when_served(self.client, self.view.pools))
        supervisor.start("advertisements", lambda: follow_when_served(self.client, self.view.advertisements))
        supervisor.start("events", events.run)

    async def _deliver(self, routes: ServiceRoutes) -> None:
        self.delivered.append(routes)

    def sessions(self) -> dict[str, BgpSession]:
        """The sessions that the engine has now, by their object."""
        return {session.peer: session for session in self.delivered[-1].sessions} if self.delivered else {}

    async def until(self, check: Callable[[], object]) -> None:
        async def probe() -> bool:
            return bool(check())

        await self.plane.until(probe)

    async def until_refused(self, name: str, text: str) -> None:
        """Returns when an Event on a BGPPeer has this text."""

        async def probe() -> bool:
            events = (await self.client.list(EVENTS)).items
            named = [event["message"] for event in events if event["involvedObject"]["name"] == name]
            return any(text in message for message in named)

        await self.plane.until(probe)

    async def put_peer(self, name: str, **spec: object) -> None:
        async def is_served() -> bool:
            path = METALLB_PEERS.path("metallb-system")
            return (await self.client.raw("GET", path)).status == HTTPStatus.OK

        await self.plane.until(is_served)
        body = {"apiVersion": "metallb.io/v1beta2", "kind": "BGPPeer", "metadata": {"name": name}}
        await self.client.create(METALLB_PEERS, body | {"spec": ROUTER | spec}, "metallb-system")


def _fail(task: str, failure: BaseException) -> None:
    raise AssertionError(task) from failure


@asynccontextmanager
async def bgp_agent(plane: ControlPlane) -> AsyncIterator[BgpAgent]:
    """The agent of the first node, which has an address."""
    (node, *_) = plane.nodes.names
    address = {"type": "InternalIP", "address": "10.89.0.11"}
    await plane.client.patch(NODES, node, {"status": {"addresses": [address]}}, subresource="status")
    started: asyncio.Future[BgpAgent] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with Supervisor(plane.client.clock, _fail) as supervisor:
            started.set_result(BgpAgent(plane, node, supervisor))

    task = asyncio.ensure_future(run())
    agent = await started
    try:
        yield agent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await agent.client.close()
