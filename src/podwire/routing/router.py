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
   guarantee 7 does not keep clear routes then. A running node that switches to such a backend still uses the one of
   before for peers that have not announced a key or with which no session exists, for :data:`SWITCH_S` at most; one
   whose options change keeps sending as before to peers with which no session exists by the new ones, as long;
9. packets of pods in a network that the node no longer has are refused by rules of their own before the separation of
   the network goes (:attr:`Router.cut_off`);
10. every :data:`CHECK_S` a program or device that the node lacks is looked for, and sysctls and what child
   processes hold are compared, because nobody notifies of their changes; a run follows when one differs.

Cost (CPU, bench/routing.py, vxlan): at 1,000 peers the first run 0.09 s, one for another peer 4 ms, a resync 20 ms; at
5,000 peers 0.6 s, 13 ms and 0.09 s.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from podwire.errors import ConfigError
from podwire.model.node import Node
from podwire.observe.health import Sample
from podwire.observe.log import Log
from podwire.routing.backend import Backend, SessionHolder
from podwire.routing.egress.holder import EgressAssignment
from podwire.routing.egress.plan import with_egress
from podwire.routing.equipment import Keys, equipped
from podwire.routing.nodes import Address, LocalNode, Network, Peer, Underlay
from podwire.routing.own_node import OwnNode
from podwire.routing.peerlist import PeerList
from podwire.routing.plan import Plan, Planner, in_use, staged
from podwire.routing.registry import BACKENDS
from podwire.routing.settings import RoutingSettings
from podwire.routing.usable import UsableBackends
from podwire.runtime.backoff import Backoff
from podwire.runtime.children import ChildEvent
from podwire.runtime.clock import Clock
from podwire.runtime.program import Child
from podwire.runtime.registry import Registry
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import AbsentTable, Table
from podwire.state.share import Share
from podwire.state.value import StateValue

QUIET_S = 0.05
RESYNC_S = 30.0
CHECK_S = 1.0
SWITCH_S = 30.0
"""More than the nodes of a busy cluster take to announce their keys."""
_QUIET_PER_PEER_S = 0.005
"""A hundred nodes that start together cause a hundred changes, and each agent plans for all nodes at each change."""
_QUIET_LIMIT_S = 1.0
_QUIET_SHARE = 10
_QUIET_SHARE_LIMIT_S = 2.0
_RETRY_S = 0.5
_NAMED_PEERS = 3
"""Number of unreached peers in the Node's annotation and its Events; the log has all."""


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

    def hold_values(self, values: Sequence[StateValue]) -> Sequence[str]:
        """Makes the kernel hold values of further kinds of state; returns the failures as text."""
        ...

    def follow_values(self, before: Sequence[StateValue], values: Sequence[StateValue]) -> Sequence[str]:
        """The same, when the kernel holds the unchanged values ``before``."""
        ...


class ChildPrograms(Protocol):
    """Runs the child processes of backends, as ``runtime.children`` does."""

    async def apply(self, desired: Iterable[Child]) -> None:
        """Makes exactly these child processes run.

        Raises: OSError; ConfigError when a program refuses its files.
        """
        ...


class Router:
    """One node's routing; ``nodes`` gives the Node objects by name as they are now.

    ``programs`` runs the child processes of backends, whose files are in ``own.run_dir``; None runs none of them.
    ``keys`` keeps the key pairs of backends; None keeps none.
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
        self.programs: ChildPrograms | None = None
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
        self.plan: Plan | None = None
        self.problem = "not started"
        self._unapplied = self.problem
        self._programs_problem = ""
        self.values: tuple[StateValue, ...] = ()
        self.runs = 0
        self.failures = 0
        self._full = True
        self._staged = False
        self._switch_until = self._wait_until = float("-inf")
        self._sessions: frozenset[str] | None = None
        """The sessions by the last run; None: no packets waited for them."""
        self._clear_routes = False
        """Whether the kernel may hold routes to peers that do not encrypt, by the last run."""
        self._peers = PeerList(node)
        self._nodes = nodes
        self._machine = machine
        self._clock = clock
        self._registry = registry
        self._wanted = asyncio.Event()
        self._log = Log("routing")
        self._logged_problems: tuple[str, ...] = ()

    def changed(self) -> None:
        """Requests a run that reads only the API."""
        self._wanted.set()

    def disturbed(self) -> None:
        """Requests a run that reads the kernel too."""
        self._full = True
        self._wanted.set()

    def configure(self, settings: RoutingSettings) -> None:
        """Sets the settings; a run follows when they differ."""
        if settings != self.settings:
            self._log.info("settings", **settings.fields())
            until = self._clock.monotonic() + SWITCH_S
            if self.plan is not None and settings.backend != self.settings.backend:
                self._switch_until = self._wait_until = until
            elif self.plan is not None and settings.options != self.settings.options:
                self._wait_until = until
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
            await self._wanted.wait()
            self._wanted.clear()
            full, self._full = self._full, False
            began = self._clock.monotonic()
            self.reconcile(full=full)
            await self.run_programs()
            taken = self._clock.monotonic() - began
            if self.own.waits_for_api:
                backoff.reset()
            elif self.plan is not None and not self.problem and await announce(self.plan):
                backoff.reset()
                await self._clock.sleep(_quiet_s(len(self._peers), taken))
            else:
                await self._wait_for_retry(backoff.next_delay_s())
                self.disturbed()

    async def _wait_for_retry(self, delay_s: float) -> None:
        """Returns after the delay, or soon after a change, which may be what the failed run waits for."""
        until = self._clock.monotonic() + delay_s
        while (left_s := until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(_RETRY_S, left_s))
            if self._wanted.is_set():
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
        if self._clear_routes and self._encrypts and not self._switching:
            return True
        if self._sessions is not None and self._read_sessions(self.settings.backend) != self._sessions:
            return True
        return self.plan is not None and self.settled and self._machine.drifted(self.plan.program_values)

    def _former(self, backend: str) -> Mapping[str, str] | None:
        """The backends of the last plan by peer during a switch, else None; reads the sessions if packets may wait."""
        self._sessions = self._read_sessions(backend)
        return self.plan.senders if self.plan is not None and self._switching else None

    def _read_sessions(self, backend: str) -> frozenset[str] | None:
        """The sessions of a backend whose packets wait for them; None when none wait."""
        if self.plan is None or self._clock.monotonic() >= self._wait_until:
            return None
        if not issubclass(self._registry.load(backend), SessionHolder):
            return None
        return self._machine.sessions(self.plan.program_values)

    @property
    def _encrypts(self) -> bool:
        return self._registry.load(self.settings.backend).options.encrypts

    @property
    def _switching(self) -> bool:
        """Whether a switch to the configured backend may still wait for the peers."""
        return self._clock.monotonic() < self._switch_until and not self.backends.lacks.get(self.settings.backend)

    def reconcile(self, *, full: bool = True) -> None:
        """One run; ``plan`` and ``problem`` have the result. Without ``full`` the kernel is assumed to be unchanged."""
        self.runs += 1
        if full:
            self.own.forget_underlay()
        me, problem = self.own.look()
        peers = self._peers.read(self._nodes())
        settings, backends = self.backends.choose(self.settings)
        former = self._former(settings.backend)
        used = in_use((*peers, me), settings.backend) & backends.keys() if me is not None else set()
        if unknown := self.backends.unknown_objects(used):
            me, problem = None, f"the objects of {unknown} are not known yet"
        if me is not None:
            me, problem = self._equipped(me, peers, {name: backends[name] for name in used})
        if me is None:
            self._unapplied = problem
            self._end(problem)
            return
        desired = self._planner.plan(me, peers, settings, backends, self.cidrs, former=former)
        if not self._machine.lacks("nftables"):
            desired = with_egress(desired, me, peers, self.egress, backends, self._known_pods)
        self._staged = bool(self._hold_program_values(desired))  # Before routes lead to the processes.
        self._empty_programs(desired)
        clear = former is not None or not self._encrypts
        if self.plan is not None and self._staged and (clear or not self._clear_routes):
            desired = msgspec.structs.replace(desired, state=staged(self.plan.state, desired.state))
        self._clear_routes = clear
        if problem := self.cut_off(desired):
            self._unapplied = problem
            self._end(problem)
            return
        self._write(me, desired, None if full or self._unapplied else self.plan)

    def _write(self, me: LocalNode, desired: Plan, before: Plan | None) -> None:
        """Makes the kernel hold a plan; ``before`` is the one that it holds unchanged, None: that is not known."""
        values = self._values(desired)
        if before is None:
            failed = [*self._machine.hold(desired.state), *self._machine.hold_values(values)]
        else:
            failed = [*self._machine.follow(before.state, desired.state)] if before.state != desired.state else []
            failed += self._machine.follow_values(self.values, values)
        if before is None or before.state != desired.state:
            links = desired.state.links
            watched = (me.underlay.link, *(link.name for link in links), *(link.lower for link in links if link.lower))
            self._machine.watch(self.disturbed, watched)
        self.plan, self.values = desired, values
        self._log_problems(tuple(str(problem) for problem in desired.problems))
        self._unapplied = "; ".join(failed)
        self._end("; ".join(filter(None, (self._unapplied, self._programs_problem))))

    async def run_programs(self) -> None:
        """Runs and configures the child processes of the plan, after the kernel holds the state that they need."""
        if self.programs is None or self.plan is None or self._unapplied:
            return
        try:
            await self.programs.apply(self.plan.children)
        except (OSError, ConfigError) as failure:
            self._programs_problem = f"cannot run the programs of routing: {failure}"
        else:
            self._programs_problem = self._hold_program_values(self.plan)
            if self._staged and not self._programs_problem:
                self.changed()
        self._end(self._programs_problem)

    def _hold_program_values(self, desired: Plan) -> str:
        """Gives the child processes that run their values; returns the failures."""
        if self.programs is None or not desired.program_values:
            return ""
        return "; ".join(self._machine.follow_values(self.values, (*self.values, *desired.program_values)))

    def _empty_programs(self, desired: Plan) -> None:
        """Asks the child processes that end now once more: they carry what they have before their devices go."""
        kept = {type(value) for value in desired.program_values}
        ends = [value for value in self.plan.program_values if type(value) not in kept] if self.plan else []
        if self.programs is not None and ends:
            self._machine.follow_values(self.values, (*self.values, *ends))

    def note_child(self, event: ChildEvent) -> None:
        """Logs an event of a child process; one that is started again has to be configured again."""
        if event.event == "ended":
            self._log.warning("child process ended and is started again", name=event.name, pid=event.pid)
            self.disturbed()
        else:
            self._log.info("adopted the child process of an earlier agent", name=event.name, pid=event.pid)

    def _equipped(
        self, me: LocalNode, peers: Sequence[Peer], used: Mapping[str, Backend]
    ) -> tuple[LocalNode | None, str]:
        """The node with keys, features and sessions for the backends in use; or None, and why there are none."""
        usable = {name: backend for name, backend in used.items() if not self.backends.lacks.get(name)}
        me = msgspec.structs.replace(me, sessions=self._sessions)
        try:
            return equipped(me, peers, usable, self.keys, self._machine.lacks), ""
        except OSError as failure:
            return None, f"cannot keep the keys of routing: {failure}"

    def _values(self, desired: Plan) -> tuple[StateValue, ...]:
        """The values of the plan, and ``AbsentTable`` for tables that are not in the plan."""
        if self._machine.lacks("nftables"):
            return tuple(value for value in desired.values if not isinstance(value, Table))
        present = {value.name for value in desired.values if isinstance(value, Table)}
        absent = (AbsentTable("inet", name) for name in self.backends.tables if name not in present)
        return (*desired.values, *absent)

    def _end(self, problem: str) -> None:
        if problem:
            self.failures += 1
        if problem != self.problem:
            if problem:
                self._log.warning("cannot apply all of routing; trying again", problem=problem)
            else:
                self._log.info("routing is applied", backend=self.settings.backend)
        self.problem = problem

    def _log_problems(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._logged_problems:
                self._log.warning("no backend reaches a peer", problem=problem)
        self._logged_problems = problems

    @property
    def unreached(self) -> str:
        """The first few peers that no backend reaches, with the reasons; empty when there are none."""
        problems = [f"routing: {problem}" for problem in self._logged_problems]
        more = [f"and {len(problems) - _NAMED_PEERS} more"] if len(problems) > _NAMED_PEERS else []
        return "; ".join(problems[:_NAMED_PEERS] + more)

    @property
    def settled(self) -> bool:
        """Whether the kernel holds the state that follows from the present Nodes."""
        return self.plan is not None and not self.problem and not self._wanted.is_set()

    def share(self, owner: OwnerMark) -> Share:
        """The desired state of the kernel, by the last plan."""
        return Share(
            part="routing",
            protocol=owner.route_protocol,
            alias=owner.alias_prefix,
            note="" if self.plan is not None else self.problem,
            desired=(
                owner.stamp(self.plan.state) if self.plan is not None else NetworkState(),
                *(value.canonical() if isinstance(value, Table) else value for value in self.values),
                *(self.plan.program_values if self.plan is not None else ()),
            ),
        )

    def samples(self) -> list[Sample]:
        """The metrics of routing."""
        senders = list(self.plan.senders.values()) if self.plan else []
        samples = [
            Sample(
                "podwire_routing_peers",
                "Peers by the backend that packets to them take.",
                senders.count(name),
                {"backend": name},
            )
            for name in self._registry
        ]
        unreached = len(self.plan.problems) if self.plan else 0
        return [
            *samples,
            Sample("podwire_routing_peers_unreached", "Peers that no backend reaches.", unreached),
            Sample("podwire_routing_runs_total", "Runs of the reconciler.", self.runs, kind="counter"),
            Sample("podwire_routing_failures_total", "Runs that failed.", self.failures, kind="counter"),
            Sample("podwire_routing_pod_mtu_bytes", "MTU of pods.", self.plan.pod_mtu if self.plan else 0),
        ]


def _quiet_s(peers: int, taken_s: float) -> float:
    """The delay after a run that took ``taken_s``."""
    planned = min(_QUIET_LIMIT_S, QUIET_S + _QUIET_PER_PEER_S * peers)
    return max(planned, min(_QUIET_SHARE_LIMIT_S, _QUIET_SHARE * taken_s))
