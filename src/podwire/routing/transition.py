"""The time after a change of the backend or its options, during which packets may still take the former paths.

A node that switches to a backend that encrypts uses the former backend for peers that have announced no key or with
which no session exists, for :data:`SWITCH_S` at most. So does a node whose new backend has a program that learns
routes, for peers to which there are none yet. A node whose options change keeps sending by the former ones to peers
with which no session exists by the new ones, also for :data:`SWITCH_S` at most.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from podwire.routing.backend import Backend, RouteLearner, SessionHolder
from podwire.routing.plan import Plan
from podwire.routing.settings import RoutingSettings
from podwire.runtime.clock import Clock
from podwire.runtime.registry import Registry
from podwire.state.value import StateValue

SWITCH_S = 30.0
"""More than the nodes of a busy cluster take to announce their keys."""


class SessionReader(Protocol):
    """What a transition needs of the router's machine."""

    def sessions(self, values: Sequence[StateValue]) -> frozenset[str]:
        """The public keys of the peers among values of child processes with which a session exists."""
        ...

    def learned(self, proto: int) -> frozenset[str]:
        """The destinations of the routes that another program has written with this protocol."""
        ...


class BackendTransition:
    """Whether packets of one node may take the paths of its former backend or options, and which sessions exist.

    ``lacks`` in the methods is what the kernel lacks for the configured backend: a node that lacks something does not
    switch.
    """

    def __init__(self, registry: Registry[type[Backend]], machine: SessionReader, clock: Clock) -> None:
        self.sessions: frozenset[str] | None = None
        """The sessions by the last run; None: no packets waited for them."""
        self.learned: frozenset[str] | None = None
        """The networks with learned routes by the last run; None: no packets waited for them."""
        self.has_clear_routes = False
        """Whether the kernel may hold routes to peers that do not encrypt, by the last run."""
        self._switch_until = self._wait_until = float("-inf")
        self._registry = registry
        self._machine = machine
        self._clock = clock

    def begin(self, before: RoutingSettings, after: RoutingSettings) -> None:
        """Starts the time when the backend or its options differ."""
        until = self._clock.monotonic() + SWITCH_S
        if after.backend != before.backend:
            self._switch_until = self._wait_until = until
        elif after.options != before.options:
            self._wait_until = until

    def former(self, plan: Plan | None, lacks: str) -> Mapping[str, str] | None:
        """The backends of the last plan by peer during a switch, else None."""
        return plan.senders if plan is not None and self._is_switching(lacks) else None

    def read_sessions(self, plan: Plan | None, backend: str) -> frozenset[str] | None:
        """The sessions of a backend whose packets wait for them; None when none wait."""
        if plan is None or self._clock.monotonic() >= self._wait_until:
            return None
        if not issubclass(self._registry.load(backend), SessionHolder):
            return None
        return self._machine.sessions(plan.program_values)

    def read_learned(self, plan: Plan | None, backend: str) -> frozenset[str] | None:
        """The networks to which the program of a backend has written routes; None when no packets wait for them."""
        if plan is None or self._clock.monotonic() >= self._switch_until:
            return None
        learner = self._registry.load(backend)
        return self._machine.learned(learner.route_protocol()) if issubclass(learner, RouteLearner) else None

    def encrypts(self, backend: str) -> bool:
        """Whether a backend encrypts."""
        return self._registry.load(backend).options.encrypts

    def needs_run(self, plan: Plan | None, backend: str, lacks: str) -> bool:
        """Whether the time for clear routes is over, or sessions or learned routes differ from the last run."""
        if self.has_clear_routes and self.encrypts(backend) and not self._is_switching(lacks):
            return True
        if self.learned is not None and self.read_learned(plan, backend) != self.learned:
            return True
        return self.sessions is not None and self.read_sessions(plan, backend) != self.sessions

    def _is_switching(self, lacks: str) -> bool:
        """Whether a switch to the configured backend may still wait for the peers."""
        return self._clock.monotonic() < self._switch_until and not lacks
