"""Keeps one node's routing: from Node objects and settings to the kernel, and back to the Node's annotation.

Every run computes the whole desired state; what follows from a peer is kept while the peer is the same. The first run,
a run after a disturbance, and a run every :data:`RESYNC_S` read the kernel and write the difference; every other run
writes the difference to the last plan.
Guarantees:

1. a change of a Node that matters to routing, of the settings, or of a device, address, route or rule of the kernel is
   followed by a run, one of routing's nftables tables within about a second; without any change a run follows every
   :data:`RESYNC_S`;
2. runs start at least :data:`QUIET_S` apart, more with many peers (a second at most), and ten times as far as the
   last one took (two seconds at most), so a burst is one run, and a busy machine is not kept busy by routing;
3. a run that failed is repeated with a backoff from 0.2 to 10 s, half a second after a change; while this Node has no
   pod CIDR, the next run follows the change of the Node;
4. before the first complete list of Nodes, and of the API objects of a backend in use, nothing is written, so that a
   restart never removes the entries of peers it does not know yet;
5. what this node announces is announced after the kernel and the child processes hold it;
6. a run for a changed Node that leaves the plan as it is does not ask the kernel, and one for another peer writes what
   is different and reads nothing; where that fails, all is compared;
7. while a child process does not hold its values yet, the routes stay as they were; the new ones follow it;
8. under a backend that encrypts, packets to peers are never sent in clear (docs/adr/0016-encryption-fails-closed.md):
   guarantee 7 does not keep clear routes then. For a limited time after a switch to such a backend, or after a change
   of its options, packets may take the former paths (:mod:`podwire.routing.transition`);
9. packets of pods in a network that the node no longer has are refused by rules of their own before the separation of
   the network goes (:attr:`Router.cut_off`);
10. every :data:`CHECK_S` a program or device that the node lacks is looked for, and sysctls and what child
   processes hold are compared, because nobody notifies of their changes; a run follows when one differs.

Cost (CPU, bench/routing.py, vxlan): at 1,000 peers the first run 0.06 s, one for another peer 3 ms, a resync 15 ms; at
5,000 peers 0.55 s, 9 ms and 0.06 s. For a new route the kernel compares the next hop with that of each other route of
the device (net/ipv4/fib_semantics.c, fib_find_info), which takes 0.01 s at 1,000 peers, and 0.28 s at 5,000.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.routing.applied import AppliedRouting
from podwire.routing.backend import Backend
from podwire.routing.egress.holder import EgressAssignment
from podwire.routing.egress.plan import with_egress
from podwire.routing.equipment import Keys, with_equipment
from podwire.routing.nodes import Address, LocalNode, Network, Peer, Underlay
from podwire.routing.own_node import OwnNode
from podwire.routing.peerlist import PeerList
from podwire.routing.plan import Plan, Planner, in_use, staged
from podwire.routing.programs import BackendPrograms
from podwire.routing.registry import BACKENDS
from podwire.routing.settings import RoutingSettings
from podwire.routing.transition import BackendTransition
from podwire.routing.usable import UsableBackends
from podwire.runtime.backoff import Backoff
from podwire.runtime.clock import Clock
from podwire.runtime.registry import Registry
from podwire.state.network import NetworkState
from podwire.state.nft import AbsentTable, Table
from podwire.state.value import StateValue

QUIET_S = 0.05
RESYNC_S = 30.0
CHECK_S = 1.0
_QUIET_PER_PEER_S = 0.005
"""A hundred nodes that start together cause a hundred changes, and each agent plans for all nodes at each change."""
_QUIET_LIMIT_S = 1.0
_QUIET_SHARE = 10
_QUIET_SHARE_LIMIT_S = 2.0
_RETRY_S = 0.5


class Machine(Protocol):
    """The kernel as the router needs it."""

    def lacks(self, feature: str) -> str:
        """The missing feature as text; empty when the kernel has the feature."""
        ...

    def underlay(self, addresses: Sequence[Address]) -> Underlay | None:
        """The device with the node's addresses."""
        ...

    def hold(self, state: NetworkState) -> Sequence[str]:
        """Makes the kernel hold routing's state; returns the failures as text."""
        ...

    def follow(self, before: NetworkState, state: NetworkState) -> Sequence[str]:
        """The same, when the kernel holds the unchanged state ``before``."""
        ...

    def watch(self, changed: Callable[[], None], links: Sequence[str]) -> None:
        """Calls ``changed`` when an object of routing or one of the devices changes."""
        ...

    def drifted(self, values: Sequence[StateValue]) -> bool:
        """Whether a sysctl differs from the state that was held last, or a child process lacks something of values."""
        ...

    def sessions(self, values: Sequence[StateValue]) -> frozenset[str]:
        """The public keys of the peers among values of child processes with which a session exists."""
        ...

    def learned(self, proto: int) -> frozenset[str]:
        """The destinations of the routes that another program has written with this protocol."""
        ...

    def hold_values(self, values: Sequence[StateValue]) -> Sequence[str]:
        """Makes the kernel hold values of further kinds of state; returns the failures as text."""
        ...

    def follow_values(self, before: Sequence[StateValue], values: Sequence[StateValue]) -> Sequence[str]:
        """The same, when the kernel holds the unchanged values ``before``."""
        ...


class Router:
    """One node's routing; ``nodes`` gives the Node objects by name as they are now.

    ``programs.children`` runs the child processes of backends, whose files are in ``own.run_dir``; None runs none of
    them. ``keys`` keeps the key pairs of backends; None keeps none.
    """

    def __init__(
        self,
        node: str,
        nodes: Callable[[], Mapping[str, Node]],
        machine: Machine,
        clock: Clock,
        registry: Registry[type[Backend]] = BACKENDS,
    ) -> None:
        self.node = node
        self.own = OwnNode(node, nodes, machine)
        self.applied = AppliedRouting(tuple(registry))
        self.programs = BackendPrograms(machine, self.disturbed)
        self.keys: Keys | None = None
        self.cut_off: Callable[[Plan], str] = lambda _plan: ""
        """Called with each plan before the kernel gets it: cuts pods off whose network the plan does not have.

        Returns why it cannot; then the kernel stays as it is, and the run is repeated. Empty: it is done.
        """
        self.settings = RoutingSettings()
        self.backends = UsableBackends(registry, machine.lacks)
        self._planner = Planner(self.backends.objects)
        self.cidrs: tuple[Network, ...] = ()
        self.egress: tuple[EgressAssignment, ...] = ()
        self._known_pods: frozenset[str] = frozenset()
        self._unapplied = self.applied.problem
        self._full = True
        self._staged = False
        self._transition = BackendTransition(registry, machine, clock)
        self._peers = PeerList(node)
        self._nodes = nodes
        self._machine = machine
        self._clock = clock
        self._requested = asyncio.Event()
        self._log = Log("routing")

    @property
    def plan(self) -> Plan | None:
        """The last plan that was written, completely or not; None before the first."""
        return self.applied.plan

    @property
    def problem(self) -> str:
        """Why the last run failed; empty when it did not."""
        return self.applied.problem

    @property
    def settled(self) -> bool:
        """Whether the kernel holds the state that follows from the present Nodes."""
        return self.plan is not None and not self.problem and not self._requested.is_set()

    def changed(self) -> None:
        """Requests a run that reads only the API."""
        self._requested.set()

    def disturbed(self) -> None:
        """Requests a run that reads the kernel too."""
        self._full = True
        self._requested.set()

    def configure(self, settings: RoutingSettings) -> None:
        """Sets the settings; a run follows when they differ."""
        if settings != self.settings:
            self._log.info("settings", **settings.fields())
            if self.plan is not None:
                self._transition.begin(self.settings, settings)
            self.settings = settings
            self.changed()

    def take_objects(self, backend: str, objects: Any) -> None:
        """Sets what the API objects of a backend say."""
        self.backends.objects[backend] = objects
        self.changed()

    def lead_out(self, assignments: tuple[EgressAssignment, ...], known: frozenset[str]) -> None:
        """Sets the EgressPolicies, and the addresses of the own pods that are known; a run follows a change."""
        if (assignments, known) != (self.egress, self._known_pods):
            self.egress, self._known_pods = assignments, known
            self.changed()

    def node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        """Callback for the Node collection: requests a run when the change affects routing."""
        if self._peers.differs(key, old, new):
            self.changed()

    async def run(self, announce: Callable[[Plan], Awaitable[bool]]) -> None:
        """Runs until cancelled; calls ``announce`` with each plan that the kernel holds.

        ``announce`` returns whether the peers were informed; if not, it is called again after a backoff.
        """
        backoff = Backoff(0.2, 10.0)
        self.disturbed()
        while True:
            await self._requested.wait()
            self._requested.clear()
            full, self._full = self._full, False
            began = self._clock.monotonic()
            self.reconcile(full=full)
            await self.run_programs()
            duration_s = self._clock.monotonic() - began
            if self.own.waits_for_api:
                backoff.reset()
            elif self.plan is not None and not self.problem and await announce(self.plan):
                backoff.reset()
                await self._clock.sleep(_quiet_s(len(self._peers), duration_s))
            else:
                await self._wait_for_retry(backoff.next_delay_s())
                self.disturbed()

    async def _wait_for_retry(self, delay_s: float) -> None:
        """Returns after the delay, or soon after a change, which may be what the failed run waits for."""
        until = self._clock.monotonic() + delay_s
        while (left_s := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(_RETRY_S, left_s))
            if self._requested.is_set():
                return

    async def tick(self) -> None:
        """Requests a run every :data:`RESYNC_S`, and when a check of every :data:`CHECK_S` says so, until cancelled."""
        due = self._clock.monotonic() + RESYNC_S
        while True:
            await self._clock.sleep(CHECK_S)
            if self._clock.monotonic() >= due or self._is_outdated():
                due = self._clock.monotonic() + RESYNC_S
                self.disturbed()

    def _is_outdated(self) -> bool:
        """Whether a missing program has appeared, the time for a switch is over, or something changed unnoticed."""
        if self.own.waits_for_device or any(not self._machine.lacks(feature) for feature in self.backends.awaited):
            return True
        if self._transition.needs_run(self.plan, self.settings.backend, self._lack):
            return True
        return self.plan is not None and self.settled and self._machine.drifted(self.plan.program_values)

    @property
    def _lack(self) -> str:
        """What the kernel lacks for the configured backend; empty when it lacks nothing."""
        return self.backends.lacks.get(self.settings.backend, "")

    def reconcile(self, *, full: bool = True) -> None:
        """One run; ``plan`` and ``problem`` have the result. Without ``full`` the kernel is assumed to be unchanged."""
        self.applied.runs += 1
        if full:
            self.own.forget_underlay()
        me, problem = self.own.look()
        peers = self._peers.read(self._nodes())
        settings, backends = self.backends.choose(self.settings)
        self._transition.sessions = self._transition.read_sessions(self.plan, settings.backend)
        self._transition.learned = self._transition.read_learned(self.plan, settings.backend)
        former = self._transition.former(self.plan, self._lack)
        used = in_use((*peers, me), settings.backend) & backends.keys() if me is not None else set()
        if unknown := self.backends.unknown_objects(used):
            me, problem = None, f"the objects of {unknown} are not known yet"
        if me is not None:
            me, problem = self._with_equipment(me, peers, {name: backends[name] for name in used})
        if me is None:
            self._unapplied = problem
            self.applied.end(problem, self.settings.backend)
            return
        desired = self._planner.plan(me, peers, settings, backends, self.cidrs, former=former)
        if not self._machine.lacks("nftables"):
            desired = with_egress(desired, me, peers, self.egress, backends, self._known_pods)
        self._staged = bool(self.programs.hold_values(desired, self.applied.values))  # Before routes lead to them.
        self.programs.renew_ending(self.plan, desired, self.applied.values)
        clear = former is not None or not self._transition.encrypts(self.settings.backend)
        if self.plan is not None and self._staged and (clear or not self._transition.has_clear_routes):
            desired = msgspec.structs.replace(desired, state=staged(self.plan.state, desired.state))
        self._transition.has_clear_routes = clear
        if problem := self.cut_off(desired):
            self._unapplied = problem
            self.applied.end(problem, self.settings.backend)
            return
        self._write(me, desired, None if full or self._unapplied else self.plan)

    def _write(self, me: LocalNode, desired: Plan, before: Plan | None) -> None:
        """Makes the kernel hold a plan; ``before`` is the one that it holds unchanged, None: that is not known."""
        values = self._values(desired)
        if before is None:
            failed = [*self._machine.hold(desired.state), *self._machine.hold_values(values)]
        else:
            failed = [*self._machine.follow(before.state, desired.state)] if before.state != desired.state else []
            failed += self._machine.follow_values(self.applied.values, values)
        if before is None or before.state != desired.state:
            links = desired.state.links
            watched = (me.underlay.link, *(link.name for link in links), *(link.lower for link in links if link.lower))
            self._machine.watch(self.disturbed, watched)
        self.applied.write(desired, values)
        self._unapplied = "; ".join(failed)
        problems = filter(None, (self._unapplied, self.programs.problem))
        self.applied.end("; ".join(problems), self.settings.backend)

    async def run_programs(self) -> None:
        """Runs and configures the child processes of the plan, after the kernel holds the state that they need."""
        if self.programs.children is None or self.plan is None or self._unapplied:
            return
        await self.programs.run(self.plan, self.applied.values)
        if self._staged and not self.programs.problem:
            self.changed()
        self.applied.end(self.programs.problem, self.settings.backend)

    def _with_equipment(
        self, me: LocalNode, peers: Sequence[Peer], used: Mapping[str, Backend]
    ) -> tuple[LocalNode | None, str]:
        """The node with keys, features and sessions for the backends in use; or None, and why there are none."""
        usable = {name: backend for name, backend in used.items() if not self.backends.lacks.get(name)}
        me = msgspec.structs.replace(me, sessions=self._transition.sessions, learned=self._transition.learned)
        try:
            return with_equipment(me, peers, usable, self.keys, self._machine.lacks), ""
        except OSError as failure:
            return None, f"cannot keep the keys of routing: {failure}"

    def _values(self, desired: Plan) -> tuple[StateValue, ...]:
        """The values of the plan, and ``AbsentTable`` for tables that are not in the plan."""
        if self._machine.lacks("nftables"):
            return tuple(value for value in desired.values if not isinstance(value, Table))
        present = {value.name for value in desired.values if isinstance(value, Table)}
        absent = (AbsentTable("inet", name) for name in self.backends.tables if name not in present)
        return (*desired.values, *absent)


def _quiet_s(peers: int, duration_s: float) -> float:
    """The delay after a run that took ``duration_s``."""
    planned = min(_QUIET_LIMIT_S, QUIET_S + _QUIET_PER_PEER_S * peers)
    return max(planned, min(_QUIET_SHARE_LIMIT_S, _QUIET_SHARE * duration_s))
