"""Reports the outcome of each policy change to flows, status, Events, the log and the counters of the metrics."""

from collections.abc import Callable, Mapping

from podwire.errors import KernelError
from podwire.kube.events import EventRecorder, reference
from podwire.model.changed import Changed
from podwire.model.node import Node
from podwire.observe.log import Log
from podwire.policy.compile import Compiler
from podwire.policy.dataplane import PolicyDataPlane
from podwire.policy.flows import FlowKeeper
from podwire.policy.nodepods import PolicyDelta
from podwire.policy.nodestatus import PolicyStatus


class PolicyOutcomes:
    """The reporter of the enforcement on one node; ``node`` returns its Node, None while it is not known."""

    def __init__(
        self,
        compiler: Compiler,
        plane: PolicyDataPlane,
        flows: FlowKeeper,
        status: PolicyStatus,
        events: EventRecorder,
        node: Callable[[], Node | None],
    ) -> None:
        self._compiler = compiler
        self._plane = plane
        self._flows = flows
        self._status = status
        self._events = events
        self._node = node
        self._log = Log("policy")
        self.commits = 0
        self.refusals = 0
        self.seconds = 0.0
        """What all commits took."""
        self.loaded: Callable[[], None] = lambda: None
        """Called after each load of everything."""

    def committed(self, delta: PolicyDelta, duration_s: float, changed: Mapping[Changed, float], *, full: bool) -> None:
        """Takes over a change that is in force; ``changed`` has its causes and when each was received."""
        self._flows.committed(delta, full=full)
        self._status.committed(changed)
        self.commits += 1
        self.seconds += duration_s
        if full:
            profiles, pods = len(self._compiler.profiles), len(self._compiler.pods)
            self._log.info("policies in force", pods=pods, profiles=profiles, plane=self._plane.name)
            self.loaded()

    def refused(self, failure: KernelError) -> None:
        """Takes over that the kernel refused a change; the last good rules stay in force."""
        self.refusals += 1
        self._status.refused(failure)
        node = self._node()
        if node is not None:
            subject = reference("v1", "Node", node.metadata)
            self._events.event(subject, "Warning", "PoliciesNotProgrammed", str(failure))
