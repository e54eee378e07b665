"""The loop that reports on how many nodes each policy is in force: an annotation, and Events when that changes.

Each agent reports in one small object (``policy.status.report``). NetworkPolicy has no status field, so the result is
the annotation ``podwire.io/enforced`` (``policy.status.coverage``) and the Events ``Enforced`` and ``PartlyEnforced``.

Guarantees: 1. a policy that is in force on all nodes is annotated with the report of the last node; 2. a policy that is
not is annotated after 2 s, or at once when all missing nodes give a reason, and again when the reasons change; 3. the
same value is not written twice, and one policy gets at most two writes a second; 4. when a node is added, removed, or
becomes Ready or NotReady, all policies are updated at 20 writes a second; 5. an annotation with an unknown value
produces an Event ``AnnotationNotKnown``.

Cost: a change of a policy costs each node one small write; this loop reads each node's report and writes once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from podwire.cluster.names import POLICY_ENFORCED, POLICY_REPORT
from podwire.errors import NotFound
from podwire.kube.client import MERGE_PATCH
from podwire.kube.controller import Environment
from podwire.kube.events import Severity, reference
from podwire.kube.informer import Informer
from podwire.kube.optional import follow_when_served
from podwire.kube.resources import CLUSTERNETWORKPOLICIES, CONFIGMAPS, NETWORKPOLICIES, NODES, Json, Resource
from podwire.model.changed import Changed
from podwire.model.node import Node
from podwire.model.wording import count
from podwire.policy.annotations import problems
from podwire.policy.status import report as reports
from podwire.policy.status.coverage import Coverage, NodeReport, coverage_of, keep_since, newest_step, parse
from podwire.policy.status.digest import AnyPolicy, History
from podwire.policy.status.report import KINDS, EnforcedPolicies
from podwire.runtime.supervise import Supervisor

COMPONENT = "podwire-policy"
_INTERVAL_S = 0.5
_PATIENCE_S = 2.0
_SPREAD_S = 0.05


class PolicyStatusController:
    """NetworkPolicies and ClusterNetworkPolicies of a cluster."""

    def __init__(self, environment: Environment) -> None:
        self._client = environment.client
        self._clock = environment.clock
        self._nodes = environment.of(NODES)
        self._events = environment.recorder(COMPONENT)
        self._policies: dict[str, Informer[Any]] = {
            "NetworkPolicy": environment.of(NETWORKPOLICIES),
            "ClusterNetworkPolicy": Informer(self._client, CLUSTERNETWORKPOLICIES),
        }
        self._events.follow_rejected(self._policies["ClusterNetworkPolicy"])
        label = f"{POLICY_REPORT}={reports.LABEL_VALUE}"
        self._report_informer: Informer[Json] = Informer(
            self._client, CONFIGMAPS, namespace=reports.NAMESPACE, label_selector=label
        )
        self._reports: dict[str, EnforcedPolicies] = {}
        self._node_reports: dict[str, NodeReport] = {}
        self._histories: dict[str, History] = {}
        self._changed_s: dict[Changed, float] = {}
        self._began_s = 0.0
        self._coverage: dict[Changed, Coverage] = {}
        self._wrote: dict[Changed, str] = {}
        """The last value written to the annotation; the informer may not show it yet."""
        self._open: set[Changed] = set()
        self._problems: dict[Changed, tuple[str, ...]] = {}
        self._loop = environment.loop("policystatus", self._reconcile, interval_s=_INTERVAL_S)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop when reports and policies of both kinds are listed."""
        supervisor.start("policystatus reports", self._report_informer.run)
        policies = self._policies["ClusterNetworkPolicy"]
        supervisor.start("policystatus clusternetworkpolicies", lambda: follow_when_served(self._client, policies))
        supervisor.start("policystatus", lambda: self._begin(supervisor))

    async def _begin(self, supervisor: Supervisor) -> None:
        await self._report_informer.synced.wait()
        self._began_s = self._clock.monotonic()
        for kind in KINDS:
            policies = self._policies[kind]
            await policies.synced.wait()
            self._histories[kind] = History((key, policy.metadata) for key, policy in policies.objects.items())
            policies.subscribe(self._follower(kind), replay=False)
        for name, node in self._nodes.objects.items():
            self._node_changed(name, None, node)
        self._nodes.subscribe(self._node_changed, replay=False)
        self._report_informer.subscribe(self._reported)
        for kind in KINDS:
            for key in self._policies[kind].objects:
                self._loop.touch(Changed(kind, key))
        self._loop.start(supervisor, workers=4)

    def _follower(self, kind: str) -> Callable[[str, AnyPolicy | None, AnyPolicy | None], None]:
        def on_change(key: str, old: AnyPolicy | None, new: AnyPolicy | None) -> None:
            policy_key = Changed(kind, key)
            if self._histories[kind].put(key, new.metadata if new is not None else None):
                if old is None or new is None or old.metadata.uid != new.metadata.uid:
                    self._forget(policy_key)
                self._changed_s[policy_key] = self._clock.monotonic()
                self._loop.touch(policy_key)
            elif new is not None and new.metadata.annotations.get(POLICY_ENFORCED) != self._wrote.get(policy_key):
                self._loop.touch(policy_key)

        return on_change

    def _forget(self, policy_key: Changed) -> None:
        """Drops the data of a policy."""
        self._coverage.pop(policy_key, None)
        self._changed_s.pop(policy_key, None)
        self._wrote.pop(policy_key, None)
        self._open.discard(policy_key)

    def _node_changed(self, name: str, _old: Node | None, _new: Node | None) -> None:
        self._update_node(name)

    def _reported(self, _key: str, old: Json | None, new: Json | None) -> None:
        report = reports.parse((new or old or {}).get("data") or {})
        if new is None:
            self._reports.pop(report.node, None)
        else:
            self._reports[report.node] = report
        self._update_node(report.node)

    def _update_node(self, name: str) -> None:
        """Updates a node, and queues the policies whose coverage may have changed."""
        before, node, report = self._node_reports.pop(name, None), self._nodes.get(name), self._reports.get(name)
        if node is not None and report is not None:
            self._node_reports[name] = NodeReport(node.ready, report)
        after = self._node_reports.get(name)
        if before == after:
            return
        if before is None or after is None or before.ready != after.ready:
            self._touch_all()
            return
        for kind in KINDS:
            history = self._histories[kind]
            was, now = (newest_step(history, kind, node_report.report) for node_report in (before, after))
            for key in history.between(was, now) if was < now else ():
                self._loop.touch(Changed(kind, key))
        for policy_key in self._open:
            self._loop.touch(policy_key)

    def _touch_all(self) -> None:
        keys = [Changed(kind, key) for kind in KINDS for key in self._policies[kind].objects]
        for number, policy_key in enumerate(keys):
            self._loop.queue.add_after(policy_key, _INTERVAL_S + number * _SPREAD_S)

    async def _reconcile(self, policy_key: Changed) -> None:
        kind, key = policy_key.kind, policy_key.key
        policy = self._policies[kind].get(key)
        if policy is None:
            self._forget(policy_key)
            self._problems.pop(policy_key, None)
            return
        self._report_problems(policy_key, policy)
        coverage = coverage_of(key, kind, policy, self._histories[kind], self._node_reports)
        if coverage is None:
            return
        waited_s = self._clock.monotonic() - self._changed_s.get(policy_key, self._began_s)
        if not coverage.complete and waited_s < _PATIENCE_S and not (coverage.missing and coverage.explained):
            self._loop.queue.add_after(policy_key, _PATIENCE_S - waited_s)
            return
        written = policy.metadata.annotations.get(POLICY_ENFORCED, "")
        before = self._coverage.get(policy_key)
        if before is None and not self._histories[kind].changed(key):
            before = parse(written)  # The annotation of an earlier controller is still correct.
        now = keep_since(before, coverage)
        self._wrote[policy_key] = now.text()
        if written != now.text():
            await self._write(kind, policy, now)
        if before is None or _event_fields(before) != _event_fields(now):
            self._report_coverage(kind, policy, now)
        self._coverage[policy_key] = now
        (self._open.discard if now.complete else self._open.add)(policy_key)

    async def _write(self, kind: str, policy: AnyPolicy, now: Coverage) -> None:
        meta = policy.metadata
        patch = {"metadata": {"annotations": {POLICY_ENFORCED: now.text()}}}
        try:
            await self._client.patch(_RESOURCES[kind], meta.name, patch, meta.namespace, patch_type=MERGE_PATCH)
        except NotFound:
            return  # The policy is being deleted.

    def _report_coverage(self, kind: str, policy: AnyPolicy, now: Coverage) -> None:
        """Writes an Event about the change."""
        state = "In audit" if now.mode else "In force"
        if now.complete:
            text = f"{state} on {_nodes(now)}, {now.took} after the nodes received the change"
            self._event(kind, policy, "Normal", "Enforced", text)
        else:
            text = f"{state} on {_nodes(now)}; not on {'; '.join(now.missing) or 'any Ready node'}"
            self._event(kind, policy, "Warning", "PartlyEnforced", text)

    def _report_problems(self, policy_key: Changed, policy: AnyPolicy) -> None:
        """Writes an Event for each annotation with an unknown value."""
        texts = problems(policy.metadata.annotations)
        if texts != self._problems.get(policy_key, ()):
            self._problems[policy_key] = texts
            for text in texts:
                self._event(policy_key.kind, policy, "Warning", "AnnotationNotKnown", text)

    def _event(self, kind: str, policy: AnyPolicy, severity: Severity, reason: str, message: str) -> None:
        self._events.event(reference(_RESOURCES[kind].api_version, kind, policy.metadata), severity, reason, message)


def _event_fields(coverage: Coverage) -> tuple[object, ...]:
    """The fields whose change causes an Event; a change of the number of nodes alone does not."""
    return coverage.generation, coverage.mode, coverage.complete, coverage.missing


_RESOURCES: Mapping[str, Resource[Any]] = {
    "NetworkPolicy": NETWORKPOLICIES,
    "ClusterNetworkPolicy": CLUSTERNETWORKPOLICIES,
}


def _nodes(now: Coverage) -> str:
    """``2 of 3 nodes``."""
    done, _, ready = now.nodes.partition("/")
    return f"{done} of {count(int(ready), 'node')}"
