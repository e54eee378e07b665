"""Which node answers for an address, at the real API server: handover, death, cuts, stops, an API server that is away.

The kernel of a node is a model with the real rule: an address expires, at most a second late, unless it is renewed.
After each step of time the test looks at all kernels: two of them never have the same address.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from tests.fakes.control_plane import ControlPlane, StartControlPlane
from tests.unit.local.test_load_balancer_addresses import api_of, make_pool, make_service, prepare, until_shown

from podwire.errors import ApiUnreachable, KernelError
from podwire.kernel.leased_addresses import LeasedAddress
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.informer import Informer
from podwire.kube.request import ApiAnswer, ApiRequest
from podwire.kube.resources import (
    ENDPOINTSLICES,
    L2ADVERTISEMENTS,
    LEASES,
    NODES,
    SERVICEL2STATUSES,
    SERVICES,
)
from podwire.loadbalancer.servicestatus import answered
from podwire.loadbalancer.speaker import L2Speaker
from podwire.loadbalancer.statusobjects import StatusObjects
from podwire.loadbalancer.view import BalancerView
from podwire.local.controllers import LocalControllerConfig
from podwire.runtime.clock import Clock

CONFIG = LocalControllerConfig(parts=("loadbalancer",))
VIP = "192.0.2.0"


class ModelKernel:
    """The addresses of one node, with their ends."""

    def __init__(self, clock: Clock, late_s: float = 1.0) -> None:
        self._clock = clock
        self._late_s = late_s
        self._ends: dict[LeasedAddress, float] = {}
        self.announced: list[str] = []

    def own_device(self) -> str:
        return "eth0"

    def read(self) -> frozenset[LeasedAddress]:
        now = self._clock.monotonic()
        return frozenset(leased for leased, end in self._ends.items() if now < end)

    def addresses(self) -> frozenset[str]:
        return frozenset(leased.address for leased in self.read())

    def renew(self, addresses: Iterable[LeasedAddress], valid_s: int) -> tuple[KernelError, ...]:
        for leased in addresses:
            self._ends[leased] = self._clock.monotonic() + valid_s + self._late_s
        return ()

    def remove(self, addresses: Iterable[LeasedAddress]) -> tuple[KernelError, ...]:
        for leased in addresses:
            self._ends.pop(leased, None)
        return ()

    def announce(self, addresses: Iterable[LeasedAddress]) -> int:
        self.announced += [leased.address for leased in addresses]
        return 1


class CutClient(Client):
    """A client whose requests fail, and whose watches hear nothing more, while ``cut``."""

    cut = False
    slow_s = 0.0
    """How much longer a renewal of a Lease takes."""

    async def _checked(self, request: ApiRequest) -> ApiAnswer:
        if self.cut:
            raise ApiUnreachable("cut")
        if self.slow_s and request.method == "PATCH":
            await self.clock.sleep(self.slow_s)
        answer = await super()._checked(request)
        if self.cut:
            raise ApiUnreachable("cut")
        return answer


class Speaker:
    """The agent of one node, as far as it answers for addresses."""

    def __init__(self, plane: ControlPlane, name: str, kernel: ModelKernel) -> None:
        self.name, self.kernel = name, kernel
        self.client = CutClient(api_of(plane), plane.client.clock)
        nodes = Informer(self.client, NODES)
        services, slices = Informer(self.client, SERVICES), Informer(self.client, ENDPOINTSLICES)
        events = EventRecorder(self.client, "podwire-agent")
        self.view = BalancerView(self.client, events, nodes, services, slices)
        self.speaker = L2Speaker(self.client, name, "kube-system", self.view, kernel)
        self.statuses = StatusObjects(self.view, name, SERVICEL2STATUSES)
        self.speaker.followed = self._followed
        self.speaker.announced = lambda choice: self.statuses.take_over(choice.services, self.speaker.alive())
        tasks = self.speaker.tasks() | self.statuses.tasks()
        del tasks["l2 heartbeats"]
        bodies = [*tasks.values(), nodes.run, services.run, slices.run, events.run]
        self.tasks = [asyncio.ensure_future(body()) for body in bodies]

    def _followed(self) -> None:
        self.statuses.show(answered(self.name, self.speaker.held, self.speaker.choices))

    async def kill(self) -> None:
        """Ends the agent at once; the kernel stays."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.close()


class Speakers:
    """The agents of three nodes, and a watchman who counts the owners of each address."""

    def __init__(self, plane: ControlPlane, names: list[str], late_s: float = 1.0) -> None:
        self.plane = plane
        self.clock = plane.client.clock
        self.kernels = {name: ModelKernel(self.clock, late_s) for name in names}
        self.agents = {name: Speaker(plane, name, self.kernels[name]) for name in names}
        self.most = 0
        """The largest number of nodes that had one address at one time."""
        self.history: list[tuple[float, tuple[str, ...]]] = []

    def owners(self, address: str = VIP) -> tuple[str, ...]:
        return tuple(name for name, kernel in self.kernels.items() if address in kernel.addresses())

    async def watch(self) -> None:
        while True:
            owners = self.owners()
            everywhere = Counter(address for kernel in self.kernels.values() for address in kernel.addresses())
            self.most = max(self.most, *everywhere.values(), 0)
            if not self.history or self.history[-1][1] != owners:
                self.history.append((self.clock.monotonic(), owners))
            await self.clock.sleep(0.01)

    async def until(self, check: Callable[[], bool]) -> None:
        async def probe() -> bool:
            return check()

        await self.plane.until(probe)

    async def owner(self) -> str:
        """The node that answers, once there is one."""
        await self.until(lambda: len(self.owners()) == 1)
        return self.owners()[0]

    async def wait(self, seconds: float) -> None:
        await self.clock.sleep(seconds)


@asynccontextmanager
async def speakers(plane: ControlPlane, late_s: float = 1.0, *, with_service: bool = True) -> AsyncIterator[Speakers]:
    """Three nodes, one Service with endpoints on all of them, or none yet.

    Kernels remove addresses ``late_s`` too late.
    """
    await prepare(plane)
    await make_pool(plane)
    advertisement = {"apiVersion": "metallb.io/v1beta1", "kind": "L2Advertisement", "metadata": {"name": "all"}}
    await plane.client.create(L2ADVERTISEMENTS, advertisement, "metallb-system")
    if with_service:
        await make_served(plane)
    created = Speakers(plane, plane.nodes.names, late_s)
    watch = asyncio.ensure_future(created.watch())
    try:
        yield created
        assert created.most == 1, created.history
    finally:
        watch.cancel()
        await asyncio.gather(watch, *(agent.kill() for agent in created.agents.values()), return_exceptions=True)


async def make_served(plane: ControlPlane, name: str = "web", address: str = VIP) -> None:
    """Makes a Service, with endpoints on all nodes."""
    await make_service(plane, name)
    await until_shown(plane, name, [address])
    await put_endpoints(plane, *plane.nodes.names, service=name)


def chosen(names: Iterable[str], address: str) -> str:
    """The node that is elected for an address when all nodes are alive and have endpoints."""
    return min(names, key=lambda name: hashlib.sha256(f"{name}#{address}".encode()).digest())


async def put_endpoints(plane: ControlPlane, *nodes: str, service: str = "web") -> None:
    body = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{service}-1", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [f"10.244.0.{n}"], "nodeName": node} for n, node in enumerate(nodes, 1)],
        "ports": [{"port": 80}],
    }
    kind = "application/apply-patch+yaml"
    await plane.client.patch(ENDPOINTSLICES, f"{service}-1", body, "default", patch_type=kind)


def test_an_address_moves_when_its_node_dies(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            assert s.kernels[first].announced[:1] == [VIP]
            s.agents[first].client.cut = True
            await s.agents[first].kill()
            died = s.clock.monotonic()
            await s.until(lambda: bool(s.owners()) and s.owners() != (first,))
            assert s.history[-1][0] - died < 5.0, s.history

    asyncio.run(run())


def test_a_new_owner_announces_an_address_for_five_seconds(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            await s.wait(8)
            assert s.kernels[first].announced == [VIP] * 5
            await s.agents[first].kill()
            await s.until(lambda: bool(s.owners()) and s.owners() != (first,))
            second = await s.owner()
            await s.wait(8)
            assert s.kernels[second].announced == [VIP] * 5
            assert s.kernels[first].announced == [VIP] * 5

    asyncio.run(run())


def test_a_node_that_is_cut_off_gives_up_first(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            s.agents[first].client.cut = True
            await s.until(lambda: bool(s.owners()) and s.owners() != (first,))
            s.agents[first].client.cut = False
            await s.until(lambda: s.owners() == (first,))

    asyncio.run(run())


def test_a_restarted_agent_keeps_its_addresses(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            await s.wait(3)
            before = len(s.history)
            for _ in range(3):
                await s.agents[first].kill()
                await s.wait(0.5)
                s.agents[first] = Speaker(p, first, s.kernels[first])
                await s.wait(4)
            assert s.history[before:] == []

    asyncio.run(run())


def test_an_agent_that_comes_back_late_takes_nothing_away(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            await s.agents[first].kill()
            await s.until(lambda: bool(s.owners()) and s.owners() != (first,))
            s.agents[first] = Speaker(p, first, s.kernels[first])
            await s.until(lambda: s.owners() == (first,))

    asyncio.run(run())


def test_addresses_follow_endpoints_with_policy_local(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            await p.client.patch(SERVICES, "web", {"spec": {"externalTrafficPolicy": "Local"}}, "default")
            for node in ("node-1", "node-2", "node-3", "node-1"):
                await put_endpoints(p, node)
                await s.until(lambda node=node: s.owners() == (node,))  # type: ignore[misc]
            await put_endpoints(p)
            await s.until(lambda: s.owners() == ())

    asyncio.run(run())


def test_addresses_without_a_service_are_forgotten(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            await s.owner()
            await p.client.delete(SERVICES, "web", "default")
            await s.until(lambda: s.owners() == ())

            async def no_claims() -> bool:
                leases = await p.client.list(LEASES, "kube-system", label_selector="podwire.io/l2-address")
                return not leases.items

            await p.until(no_claims)

    asyncio.run(run())


def test_addresses_stay_while_every_agent_lacks_the_api(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            await s.wait(2)
            before = len(s.history)
            talk = asyncio.ensure_future(exchange(s))
            await p.restart(12.0)
            await s.wait(8)
            assert s.history[before:] == [], s.history
            assert s.owners() == (first,)
            talk.cancel()

    asyncio.run(run())


def test_addresses_of_several_nodes_stay_without_the_api(plane: StartControlPlane) -> None:
    """A node that keeps an address because nobody has contact must not look to others as if it had contact."""

    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            both = {VIP: await s.owner()}
            for number in range(1, 16):
                address = f"192.0.2.{number}"
                await make_served(p, f"web-{number}", address)
                if (node := chosen(s.agents, address)) != both[VIP]:
                    both[address] = node
                    break
            assert len(both) == 2
            await s.until(lambda: {address: s.owners(address) for address in both} == {a: (both[a],) for a in both})
            await s.wait(2)
            talk = asyncio.ensure_future(exchange(s))
            s.agents[both[VIP]].client.cut = True  # The two lose contact at different times.
            await s.wait(0.7)
            away = asyncio.ensure_future(p.restart(12.0))
            s.agents[both[VIP]].client.cut = False
            while not away.done():
                await s.wait(0.05)
                assert {address: s.owners(address) for address in both} == {a: (both[a],) for a in both}
            talk.cancel()

    asyncio.run(run())


def test_addresses_return_when_agents_report_a_lost_api_late(plane: StartControlPlane) -> None:
    """The messages of agents take so long that the holder has given up its address by then."""

    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            await s.wait(2)
            before = len(s.history)
            talk = asyncio.ensure_future(exchange(s, delay_s=0.9))
            away = asyncio.ensure_future(p.restart(12.0))
            await s.wait(9)
            assert s.owners() == (first,), s.history
            await away
            await s.wait(8)
            assert s.owners() == (first,)
            changes = [owners for _, owners in s.history[before:]]
            assert set(changes) <= {(), (first,)} and len(changes) <= 2, s.history
            talk.cancel()

    asyncio.run(run())


def test_slow_renewals_do_not_shorten_lifetimes(plane: StartControlPlane) -> None:
    """Lifetimes are whole seconds: after a renewal that took 0.4 s they would end 0.6 s before they have to."""

    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p, late_s=0.0) as s:
            for agent in s.agents.values():
                agent.client.slow_s = 0.4
            first = await s.owner()
            await s.wait(3)
            holder = s.agents[first]
            holder.client.cut = True
            await s.until(lambda: not holder.speaker.has_contact())
            await s.wait(1.3)
            assert s.owners() == (first,), s.history

    asyncio.run(run())


async def exchange(s: Speakers, delay_s: float = 0.0) -> None:
    """Carries the messages of agents to each other; each agent sends at moments of its own."""

    async def carry(sender: Speaker, first_s: float) -> None:
        await s.clock.sleep(first_s)
        while True:
            contact = sender.speaker.tell_contact()
            await s.clock.sleep(delay_s)
            for agent in s.agents.values():
                agent.speaker.heartbeats.messages[sender.name] = (s.clock.monotonic(), contact)
            await s.clock.sleep(0.25)

    await asyncio.gather(*(carry(agent, 0.09 * number) for number, agent in enumerate(s.agents.values())))


def test_a_node_that_alone_lacks_the_api_gives_up(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p) as s:
            first = await s.owner()
            talk = asyncio.ensure_future(exchange(s))
            s.agents[first].client.cut = True
            await s.until(lambda: bool(s.owners()) and s.owners() != (first,))
            talk.cancel()

    asyncio.run(run())


def test_nodes_renew_seldom_until_a_service_has_an_address(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p, with_service=False) as s:
            await s.until(lambda: all(len(agent.speaker.alive()) == 3 for agent in s.agents.values()))
            await s.wait(3)
            renewals: list[str] = []
            s.agents["node-1"].speaker.leases.informer.subscribe(lambda key, *_: renewals.append(key), replay=False)
            await s.wait(30)
            assert 6 <= len(renewals) <= 12, renewals
            await make_served(p)
            first = await s.owner()
            await s.wait(6)
            assert s.owners() == (first,)
            assert sum(agent.speaker.moves for agent in s.agents.values()) == 1

    asyncio.run(run())


def test_node_that_died_without_addresses_gets_none(plane: StartControlPlane) -> None:
    async def run() -> None:
        async with plane(nodes=3, config=CONFIG) as p, speakers(p, with_service=False) as s:
            await s.until(lambda: all(len(agent.speaker.alive()) == 3 for agent in s.agents.values()))
            first = chosen(s.agents, VIP)
            await s.agents[first].kill()
            await s.wait(20)
            await make_served(p)
            await s.until(lambda: bool(s.owners()))
            await s.wait(6)
            assert first not in {name for _, owners in s.history for name in owners}, s.history

    asyncio.run(run())
