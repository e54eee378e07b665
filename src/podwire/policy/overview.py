"""The pages about the enforcement of policies on a node: desired state, versions in force and metrics."""

from podwire.cluster.inforce import Versions
from podwire.observe.health import Metric, Sample
from podwire.policy.dataplane import PolicyDataPlane
from podwire.policy.flows import FlowKeeper
from podwire.policy.informers import PolicyInformers
from podwire.policy.outcomes import PolicyOutcomes
from podwire.policy.runner import Enforcement
from podwire.policy.switch import Switch
from podwire.state.share import Share


class PolicyOverview:
    """Reads the running enforcement."""

    def __init__(self, enforcement: Enforcement, plane: PolicyDataPlane, informers: PolicyInformers) -> None:
        self._enforcement = enforcement
        self._plane = plane
        self._informers = informers

    def problem(self) -> str:
        """Why this node cannot run pods yet; empty: it can."""
        return self._enforcement.problem

    def share(self) -> Share:
        """The desired state for policies, as last programmed."""
        desired = self._plane.desired()
        return Share(part="policy", desired=desired, note="" if desired else self.problem())

    def in_force(self) -> Versions | None:
        """The versions of all objects that policies depend on; None while the kernel does not hold them yet."""
        return self._informers.versions() if self._enforcement.programmed.is_set() else None

    def samples(self, switch: Switch, outcomes: PolicyOutcomes, flows: FlowKeeper) -> list[Metric]:
        """The metrics."""
        compiler, informers = self._enforcement.compiler, self._informers
        gauges = (
            ("pods", "Pods of this node that policies may select.", len(compiler.pods)),
            ("profiles", "Distinct sets of policies that select pods of this node.", len(compiler.profiles)),
            ("policies", "NetworkPolicies of the cluster.", len(informers.policies.objects)),
            ("cluster_policies", "ClusterNetworkPolicies of the cluster.", len(informers.cluster_policies.objects)),
        )
        counters = (
            ("commits_total", "Policy changes that were put in force.", outcomes.commits),
            ("refusals_total", "Policy changes that the kernel refused.", outcomes.refusals),
            ("flows_forgotten_total", "Tracked flows deleted because policies deny them now.", flows.forgotten),
            ("commit_seconds_total", "Time that policy changes took.", outcomes.seconds),
        )
        modes = {"mode": switch.name, "wanted": switch.configured_mode}
        return [
            Sample("podwire_policy_mode", "The policy data plane in use and the configured one.", 1, modes),
            *(Sample(f"podwire_policy_{name}", text, value) for name, text, value in gauges),
            *(Sample(f"podwire_policy_{name}", text, value, kind="counter") for name, text, value in counters),
        ]
