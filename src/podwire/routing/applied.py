"""What the kernel holds of one node's routing by the last run, for the agent's pages and the Node's conditions."""

from podwire.observe.health import Sample
from podwire.observe.log import Log
from podwire.routing.plan import Plan
from podwire.state.network import NetworkState, OwnerMark
from podwire.state.nft import Table
from podwire.state.share import Share
from podwire.state.value import StateValue

_NAMED_PEERS = 3
"""Number of unreached peers in the Node's annotation and its Events; the log has all."""


class AppliedRouting:
    """The last plan and the outcome of the runs; ``backends`` are the names of all backends."""

    def __init__(self, backends: tuple[str, ...]) -> None:
        self.plan: Plan | None = None
        """The last plan that was written, completely or not; None before the first."""
        self.values: tuple[StateValue, ...] = ()
        """The values of further kinds of state that were written with the plan."""
        self.problem = "not started"
        """Why the last run failed; empty when it did not."""
        self.runs = 0
        self.failures = 0
        self._backends = backends
        self._unreached: tuple[str, ...] = ()
        self._log = Log("routing")

    def end(self, problem: str, backend: str) -> None:
        """Ends a run; a problem that differs from that of the last run is logged."""
        if problem:
            self.failures += 1
        if problem != self.problem:
            if problem:
                self._log.warning("cannot apply all of routing; trying again", problem=problem)
            else:
                self._log.info("routing is applied", backend=backend)
        self.problem = problem

    def write(self, plan: Plan, values: tuple[StateValue, ...]) -> None:
        """Takes over a plan that was written; logs each peer that no backend reaches once."""
        self.plan, self.values = plan, values
        unreached = tuple(str(problem) for problem in plan.problems)
        for problem in unreached:
            if problem not in self._unreached:
                self._log.warning("no backend reaches a peer", problem=problem)
        self._unreached = unreached

    @property
    def unreached(self) -> str:
        """The first few peers that no backend reaches, with the reasons; empty when there are none."""
        problems = [f"routing: {problem}" for problem in self._unreached]
        more = [f"and {len(problems) - _NAMED_PEERS} more"] if len(problems) > _NAMED_PEERS else []
        return "; ".join(problems[:_NAMED_PEERS] + more)

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
            for name in self._backends
        ]
        unreached = len(self.plan.problems) if self.plan else 0
        return [
            *samples,
            Sample("podwire_routing_peers_unreached", "Peers that no backend reaches.", unreached),
            Sample("podwire_routing_runs_total", "Runs of the reconciler.", self.runs, kind="counter"),
            Sample("podwire_routing_failures_total", "Runs that failed.", self.failures, kind="counter"),
            Sample("podwire_routing_pod_mtu_bytes", "MTU of pods.", self.plan.pod_mtu if self.plan else 0),
        ]
