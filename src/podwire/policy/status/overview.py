"""The policies of a cluster as a table: what they select, where they are in force, what they drop (pure)."""

import datetime
from collections.abc import Iterable, Mapping

import msgspec

from podwire.cluster.addresses import owns_addresses
from podwire.cluster.names import POLICY_ENFORCED
from podwire.cluster.world import World
from podwire.model.meta import key_of
from podwire.model.pod import Pod
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.model.selector import LabelSelector
from podwire.model.wording import duration
from podwire.policy.annotations import AUDIT, ENFORCE, in_audit
from podwire.policy.status.coverage import parse

HEAD = ("NAMESPACE", "NAME", "KIND", "MODE", "SELECTS", "NODES", "IN-FORCE-FOR", "DROPPED", "AUDITED")
NOTHING = "-"


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One policy."""

    namespace: str = ""
    name: str
    kind: str
    mode: str
    """``enforce`` or ``audit``."""
    selects: int
    """The number of pods that the policy selects now."""
    nodes: str = ""
    """``2/3``; empty: no node has reported on this version of the policy."""
    in_force_for_ms: int | None = None
    """None: the policy is not in force on all nodes."""
    missing: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()
    dropped: int | None = None
    """Packets; None: unknown."""
    audited: int | None = None
    not_asked: int = 0
    """How many nodes that enforce policies did not answer: there may be more packets."""

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        short = "ClusterNP" if self.kind == "ClusterNetworkPolicy" else "NetworkPolicy"
        since = duration(self.in_force_for_ms) if self.in_force_for_ms is not None else NOTHING
        more = "+" if self.not_asked else ""
        counts = (NOTHING if count is None else f"{count}{more}" for count in (self.dropped, self.audited))
        return (
            self.namespace or NOTHING,
            self.name,
            short,
            self.mode,
            str(self.selects),
            self.nodes or NOTHING,
            since,
            *counts,
        )


class Packets(msgspec.Struct, frozen=True):
    """Packet counts that the nodes returned."""

    counts: Mapping[tuple[str, str], int]
    """By policy and verdict."""
    not_asked: int = 0
    """How many nodes did not answer."""


def policy_rows(world: World, now: datetime.datetime, packets: Packets | None = None) -> Iterable[PolicyRow]:
    """The policies by namespace and name, cluster policies last."""
    pods: dict[str, list[Pod]] = {}
    for pod in world.pods:
        if owns_addresses(pod):
            pods.setdefault(pod.metadata.namespace, []).append(pod)
    for policy in sorted(world.policies, key=lambda policy: key_of(policy.metadata)):
        own = pods.get(policy.metadata.namespace, ())
        yield _line(policy, "NetworkPolicy", _matching(own, policy.spec.pod_selector), now, packets)
    for cluster_policy in sorted(world.cluster_policies, key=lambda policy: policy.metadata.name):
        yield _line(cluster_policy, "ClusterNetworkPolicy", _subjects(world, pods, cluster_policy), now, packets)


def _matching(pods: Iterable[Pod], selector: LabelSelector) -> int:
    return sum(selector.matches(pod.metadata.labels) for pod in pods)


def _subjects(world: World, pods: Mapping[str, list[Pod]], policy: ClusterNetworkPolicy) -> int:
    subject = policy.spec.subject
    if subject.namespaces is not None:
        namespaces, selector = subject.namespaces, LabelSelector()
    elif subject.pods is not None:
        namespaces, selector = subject.pods.namespace_selector, subject.pods.pod_selector
    else:
        return 0
    matching = (name for name in pods if namespaces.matches(world.labels_of(name)))
    return sum(_matching(pods[name], selector) for name in matching)


def _line(
    policy: NetworkPolicy | ClusterNetworkPolicy,
    kind: str,
    selects: int,
    now: datetime.datetime,
    packets: Packets | None,
) -> PolicyRow:
    meta = policy.metadata
    coverage = parse(meta.annotations.get(POLICY_ENFORCED, ""))
    mode = AUDIT if in_audit(meta.annotations) else ENFORCE
    if coverage is not None and (coverage.generation, coverage.mode or ENFORCE) != (meta.generation, mode):
        coverage = None
    key = key_of(meta)
    return PolicyRow(
        namespace=meta.namespace,
        name=meta.name,
        kind=kind,
        mode=mode,
        selects=selects,
        nodes=coverage.nodes if coverage is not None else "",
        in_force_for_ms=_age_ms(coverage.since, now) if coverage is not None and coverage.since else None,
        missing=coverage.missing if coverage is not None else (),
        not_ready=coverage.not_ready if coverage is not None else (),
        dropped=packets.counts.get((key, "dropped"), 0) if packets is not None else None,
        audited=packets.counts.get((key, "audited"), 0) if packets is not None else None,
        not_asked=packets.not_asked if packets is not None else 0,
    )


def _age_ms(since: str, now: datetime.datetime) -> int | None:
    try:
        instant = datetime.datetime.fromisoformat(since.replace("Z", "+00:00"))
        age = now - instant
    except (ValueError, TypeError):  # no time, or a time without a zone
        return None
    return max(0, round(age.total_seconds() * 1000))
