"""The status of policies on one node: which are in force, what they drop, what their rules count, metrics."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from podwire.cluster.world import World
from podwire.errors import KernelError
from podwire.http.pages import Page, Query
from podwire.kernel.features import Features
from podwire.kube.client import Client
from podwire.model.changed import Changed
from podwire.model.meta import Object, ObjectMeta
from podwire.model.node import Node
from podwire.model.policy import ClusterNetworkPolicy, NetworkPolicy
from podwire.observe.distribution import Distribution, doubling_bounds
from podwire.observe.health import Health, Metric, Sample
from podwire.observe.log import Log
from podwire.policy.connectionmatch import Connection
from podwire.policy.dataplane import PolicyDataPlane
from podwire.policy.evaluate import EvaluationOptions
from podwire.policy.nodereport import PolicyReport
from podwire.policy.objects import Sources
from podwire.policy.packetlog import PacketLookups, PolicyLog
from podwire.policy.runner import Enforcement
from podwire.policy.settings import SILENT, PolicySettings
from podwire.policy.status.counts import Counted
from podwire.policy.status.nodes import COUNTERS_PAGE, LOG_PAGE
from podwire.policy.status.series import Series

_BUCKETS = doubling_bounds(0.001, 14)
"""Seconds: 1 ms to 8 s."""


Explain = Callable[[World, Connection, EvaluationOptions, str], tuple[bool, str]]
"""Returns whether policies allow a connection, and why. With the name of a direction: the result of audit there."""


class PolicyStatus:
    """The policy status published by one agent.

    ``plane`` returns counters and logged rules, ``explain`` the reason for a line of the log.
    """

    def __init__(self, client: Client, node: str, sources: Sources, plane: PolicyDataPlane, explain: Explain) -> None:
        self._explain = explain
        self._client = client
        self._sources = sources
        self._plane = plane
        self._node = node
        self._rules = EvaluationOptions()
        self._delays = Distribution(_BUCKETS)
        self._series = Series()
        self._failed_at = 0.0
        self._failing = 0
        self._logs: bool | None = None
        self._log = Log("policy")
        self._enforcement: Enforcement | None = None
        self.report = PolicyReport(client, node, self._own_node, self._meta)

    def follow(self, enforcement: Enforcement) -> None:
        """Publishes the status of this enforcement from now on."""
        self._enforcement = enforcement
        lookups = PacketLookups(self._node, self._plane.hit, enforcement.compiler.party, self._why)
        self.log = PolicyLog(lookups, self._client.clock)

    def configure(self, settings: PolicySettings) -> PolicySettings:
        """Takes over settings; returns those in effect here: without nflog in the kernel, logging is off."""
        self._rules = EvaluationOptions(own_node_egress=settings.own_node_egress)
        log = settings.log if settings.log.group and self._can_log() else SILENT
        self.log.configure(log)
        return msgspec.structs.replace(settings, log=log)

    def _can_log(self) -> bool:
        if self._logs is None:
            answer = Features().probe("nflog")
            self._logs = bool(answer)
            if not answer:
                self._log.warning("cannot log packets that policies drop", problem=answer)
        return self._logs

    def committed(self, changed: Mapping[Changed, float]) -> None:
        """Takes over changes that are in force now; the values are when each was received (monotonic)."""
        now = self._client.clock.monotonic()
        for received in changed.values():
            self._delays.observe(now - received)
        self._failing = 0
        self.report.committed(changed)

    def refused(self, failure: KernelError) -> None:
        """Takes over that the kernel refused a change."""
        self._failing = 1
        self._failed_at = self._client.clock.now().timestamp()
        self.report.refused(str(failure))

    def tasks(self, health: Health) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks to run, by name; metrics are added to ``health``."""
        health.metrics["policy status"] = self._samples
        health.metrics["policy log"] = self.log.samples
        return {"policy report": self.report.run, "policy log": self.log.run}

    def pages(self) -> dict[str, Page]:
        """The pages that the agent serves, by path."""
        return {LOG_PAGE: self.log.page, COUNTERS_PAGE: self._counters}

    def _counters(self, _query: Query) -> Iterator[str]:
        for counted in self._counts():
            yield msgspec.json.encode(counter(counted)).decode()

    def _counts(self) -> tuple[Counted, ...]:
        try:
            return self._plane.counts()
        except KernelError as failure:
            self._log.warning("cannot read the counters of policy rules", problem=failure)
            return ()

    def _samples(self) -> list[Metric]:
        programmed = self._enforcement is None or self._enforcement.programmed.is_set()
        lag = self._enforcement.waiting_s if self._enforcement is not None else 0.0
        samples: list[Metric] = [
            self._delays.histogram(
                "podwire_policy_programming_seconds", "Time from receiving a change until it is in force."
            ),
            Sample("podwire_policy_current", "1 while every known change is in force, else 0.", float(programmed)),
            Sample("podwire_policy_lag_seconds", "How long the oldest pending change has waited.", lag),
            Sample(
                "podwire_policy_refused", "Whether the kernel refused the last change (1) or not (0).", self._failing
            ),
            Sample(
                "podwire_policy_last_error_timestamp_seconds",
                "When the kernel last refused a change, in seconds since 1970; 0: never.",
                self._failed_at,
            ),
        ]
        for name, text, labels, value in self._series.samples(self._counts()):
            samples.append(Sample(name, text, value, labels, kind="counter"))
        return samples

    def _own_node(self) -> Node | None:
        return self._sources.nodes.objects.get(self._node)

    def _meta(self, kind: str, key: str) -> ObjectMeta | None:
        sources: Mapping[str, Mapping[str, Any]] = {
            "NetworkPolicy": self._sources.policies.objects,
            "ClusterNetworkPolicy": self._sources.cluster_policies.objects,
        }
        policy: NetworkPolicy | ClusterNetworkPolicy | None = sources[kind].get(key)
        return policy.metadata if policy is not None else None

    def _why(self, connection: Connection, audited: str) -> tuple[bool, str]:
        return self._explain(self.world(connection), connection, self._rules, audited)

    def world(self, connection: Connection) -> World:
        """The objects that the verdict on one connection depends on."""
        ends = (connection.source, connection.destination)
        pods = tuple(end.pod for end in ends if end.pod is not None)
        spaces = {pod.metadata.namespace for pod in pods}
        sources = self._sources
        namespaces: tuple[Object, ...] = tuple(
            sources.namespaces.objects[name] for name in spaces if name in sources.namespaces.objects
        )
        return World(
            pods=pods,
            namespaces=namespaces,
            nodes=tuple(sources.nodes.objects[end.node] for end in ends if end.node in sources.nodes.objects),
            policies=tuple(
                policy for policy in sources.policies.objects.values() if policy.metadata.namespace in spaces
            ),
            cluster_policies=tuple(sources.cluster_policies.objects.values()),
        )


def counter(counted: Counted) -> dict[str, object]:
    """The counter of a rule as the page shows it."""
    hit = counted.hit
    return {
        "policies": hit.policies,
        "direction": hit.direction.lower(),
        "rule": hit.rule if hit.rule >= 0 else None,
        "verdict": hit.verdict,
        "packets": counted.count.packets,
        "bytes": counted.count.bytes,
    }
