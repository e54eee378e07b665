"""A router whose loop runs, with a clock moved by hand and a kernel in memory."""

import asyncio
from collections.abc import Callable, Sequence
from ipaddress import ip_interface

from tests.fakes.clock import FakeClock

from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.nodes import Address, Underlay
from podwire.routing.plan import Plan
from podwire.routing.router import QUIET_S, Router
from podwire.state.network import NetworkState
from podwire.state.ovs import OvsSwitch
from podwire.state.value import StateValue
from podwire.state.wireguard import WireGuard


class MemoryMachine:
    """Holds what it is told."""

    def __init__(self) -> None:
        self.states: list[NetworkState] = []
        self.values: tuple[StateValue, ...] = ()
        self.failures: list[str] = []
        self.program_failures: list[str] = []
        self.carries = True
        self.without: set[str] = set()
        self.has_drifted = False
        self.shakes_hands = True
        self.shakes_hands_with: set[str] | None = None
        """The keys with which a session exists; None: all."""
        self.learned_routes: set[str] = set()
        self.followed = 0
        self.take_time: Callable[[], None] = lambda: None

    def lacks(self, feature: str) -> str:
        return f"the kernel has no {feature}" if feature in self.without else ""

    def underlay(self, addresses: Sequence[Address]) -> Underlay | None:
        return Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)) if self.carries else None

    def hold(self, state: NetworkState) -> Sequence[str]:
        self.states.append(state)
        self.take_time()
        return self.failures

    def follow(self, before: NetworkState, state: NetworkState) -> Sequence[str]:
        assert before == self.states[-1]
        self.followed += 1
        self.states.append(state)
        return self.failures

    def watch(self, changed: Callable[[], None], links: Sequence[str]) -> None:
        self.watched = tuple(links)

    def drifted(self, values: Sequence[StateValue]) -> bool:
        return self.has_drifted

    def sessions(self, values: Sequence[StateValue]) -> frozenset[str]:
        devices = (value for value in values if isinstance(value, WireGuard))
        keys = frozenset(peer.public_key for device in devices for peer in device.peers if self.shakes_hands)
        return keys if self.shakes_hands_with is None else keys & self.shakes_hands_with

    def learned(self, proto: int) -> frozenset[str]:
        return frozenset(self.learned_routes)

    def hold_values(self, values: Sequence[StateValue]) -> Sequence[str]:
        self.values = tuple(values)
        return self.program_failures if any(isinstance(value, WireGuard | OvsSwitch) for value in values) else ()

    def follow_values(self, before: Sequence[StateValue], values: Sequence[StateValue]) -> Sequence[str]:
        return self.hold_values(values)


def node(number: int, annotations: dict[str, str] | None = None) -> Node:
    cidr = f"10.244.{number}.0/24"
    return Node(
        metadata=ObjectMeta(name=f"node-{number}", annotations=annotations or {}),
        spec=NodeSpec(pod_cidr=cidr, pod_cidrs=(cidr,)),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address=f"10.89.0.{10 + number}"),)),
    )


class Lab:
    """A router on node-1 with its loop running."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.machine = MemoryMachine()
        self.nodes = {"node-1": node(1), "node-2": node(2)}
        self.router = Router("node-1", lambda: self.nodes, self.machine, self.clock)
        self.announced: list[Plan] = []
        self.api_answers = True

    async def announce(self, plan: Plan) -> bool:
        self.announced.append(plan)
        return self.api_answers

    async def __aenter__(self) -> "Lab":
        self._tasks = [asyncio.ensure_future(self.router.run(self.announce)), asyncio.ensure_future(self.router.tick())]
        await self.clock.advance(QUIET_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def runs(self) -> int:
        return len(self.machine.states)
