"""DaemonSets: one pod on every node that matches.

``plan`` is pure: from nodes, pods and the current revision it computes the nodes that get a pod and the pods to delete.
Each pod has a node affinity to its node by name, and the scheduler binds the pod. A rolling update first replaces pods
that are not available, then at most ``maxUnavailable`` pods at a time; with ``maxSurge`` the new pod starts before the
old pod is deleted. Source: ``k8s.io/kubernetes/pkg/controller/daemon``.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence

import msgspec

from podwire.embedded.scheduler.matching import node_matches, untolerated
from podwire.embedded.workloads.podstate import active, available_in_s, victims
from podwire.embedded.workloads.podwriter import OwnerPods, PodWriter
from podwire.embedded.workloads.replicaset import claimants, orphans_of
from podwire.embedded.workloads.revisions import HASH, Revisions
from podwire.embedded.workloads.rollout import resolve
from podwire.embedded.workloads.statuswriter import write_status
from podwire.embedded.workloads.template import Json, PodOwner, pod_of, with_label
from podwire.kube.controller import Environment
from podwire.kube.resources import DAEMONSETS, NODES, PODS
from podwire.model.node import Node, Taint
from podwire.model.pod import Pod, PodSpec, Toleration
from podwire.model.workload import DaemonSet, DaemonSetStatus, changed_status
from podwire.runtime.supervise import Supervisor

_INTERVAL_S = 0.02
_TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ("node.kubernetes.io/not-ready", "NoSchedule"),
    ("node.kubernetes.io/unreachable", "NoSchedule"),
)
_NETWORK = ("node.kubernetes.io/network-unavailable", "NoSchedule")


class DaemonSetPlan(msgspec.Struct, frozen=True):
    """Nodes that get a pod, pods to delete, the status, seconds until the next plan (None: on change)."""

    create: tuple[str, ...]
    delete: tuple[Pod, ...]
    status: DaemonSetStatus
    again_s: float | None


class DaemonSetInputs(msgspec.Struct, frozen=True):
    """The inputs of a plan; ``digest`` is the hash of the current revision."""

    nodes: Mapping[str, Node]
    pods: tuple[Pod, ...]
    digest: str
    now: datetime.datetime


class _NodePods(msgspec.Struct):
    """The pods of one node: those of the current revision, and those of older revisions."""

    new: list[Pod]
    old: list[Pod]


def plan(daemon: DaemonSet, inputs: DaemonSetInputs) -> DaemonSetPlan:
    """The plan for a DaemonSet; while it is being deleted, the plan creates and deletes no pods."""
    pods_by_node = _group_by_node(daemon, inputs)
    probe = probe_pod(daemon)
    running = {name for name, node in inputs.nodes.items() if should_run(probe, node)}
    create: list[str] = []
    delete = [pod for pod in inputs.pods if pod.status.phase == "Failed" and not _terminating(pod)]
    for name, node_pods in pods_by_node.items():
        staying = name in inputs.nodes and should_stay(probe, inputs.nodes[name])
        extra = (*node_pods.new[1:], *node_pods.old[1:]) if staying else (*node_pods.new, *node_pods.old)
        delete += victims(extra, len(extra))
    busy = {_node_of(pod) for pod in inputs.pods if not pod.finished}
    create += sorted(running - busy)
    if daemon.spec.update_strategy.type == "RollingUpdate":
        more, fewer = _roll(daemon, inputs, {n: p for n, p in pods_by_node.items() if n in running}, len(running))
        create += more
        delete += [pod for pod in fewer if pod not in delete]
    if daemon.metadata.deletion_timestamp is not None:
        create, delete = [], []
    waits = [available_in_s(pod, daemon.spec.min_ready_seconds, inputs.now) for pod in inputs.pods]
    status = _status(daemon, inputs, pods_by_node, running)
    return DaemonSetPlan(tuple(create), tuple(delete), status, min((wait for wait in waits if wait), default=None))


def probe_pod(daemon: DaemonSet) -> Pod:
    """A typed pod of the template with the tolerations that every pod of a DaemonSet gets."""
    spec = msgspec.convert(daemon.spec.template.get("spec") or {}, PodSpec)
    tolerations = tuple(Toleration(key=key, operator="Exists", effect=effect) for key, effect in _TOLERATED)
    return Pod(spec=msgspec.structs.replace(spec, tolerations=(*spec.tolerations, *tolerations)))


def should_run(probe: Pod, node: Node) -> bool:
    """Whether a node must have a pod."""
    if probe.spec.node_name and probe.spec.node_name != node.metadata.name:
        return False
    if not node_matches(probe, node) or node.metadata.deletion_timestamp is not None:
        return False
    return untolerated(probe.spec.tolerations, node.spec.taints, ("NoSchedule", "NoExecute")) is None


def should_stay(probe: Pod, node: Node) -> bool:
    """Whether an existing pod may stay on a node; NoSchedule taints do not affect existing pods."""
    taints: tuple[Taint, ...] = node.spec.taints
    return node_matches(probe, node) and untolerated(probe.spec.tolerations, taints, ("NoExecute",)) is None


def pod_body(daemon: DaemonSet, digest: str, node: str) -> Json:
    """The pod for one node."""
    template = with_label(daemon.spec.template, HASH, digest)
    owner = PodOwner("apps/v1", "DaemonSet", daemon.metadata)
    body = pod_of(template, owner)
    body["spec"] = for_node(body["spec"], node)
    return body


def for_node(spec: Json, node: str) -> Json:
    """A pod spec that matches only one node, with the tolerations of DaemonSets."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    affinity = dict(spec.get("affinity") or {})
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [term | {"matchFields": [field]} for term in required.get("nodeSelectorTerms") or [{}]]
    of_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    affinity["nodeAffinity"] = of_nodes
    covered = [*_TOLERATED, _NETWORK] if spec.get("hostNetwork") else list(_TOLERATED)
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in covered]
    tolerations = [*(spec.get("tolerations") or [])]
    return spec | {
        "affinity": affinity,
        "tolerations": tolerations + [toleration for toleration in added if toleration not in tolerations],
    }


def _terminating(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def _node_of(pod: Pod) -> str:
    """The node that a pod runs on, or that its node affinity names; empty without one."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    for term in required.node_selector_terms if required is not None else ():
        for field in term.match_fields:
            if field.key == "metadata.name" and field.values:
                return field.values[0]
    return ""


def _group_by_node(daemon: DaemonSet, inputs: DaemonSetInputs) -> dict[str, _NodePods]:
    pods_by_node: dict[str, _NodePods] = {}
    for pod in sorted(inputs.pods, key=lambda p: (p.metadata.creation_timestamp or "", p.metadata.name)):
        if active(pod):
            node_pods = pods_by_node.setdefault(_node_of(pod), _NodePods([], []))
            is_new = pod.metadata.labels.get(HASH) == inputs.digest
            (node_pods.new if is_new else node_pods.old).append(pod)
    return pods_by_node


def _available(daemon: DaemonSet, inputs: DaemonSetInputs, pods: Sequence[Pod]) -> bool:
    return any(available_in_s(pod, daemon.spec.min_ready_seconds, inputs.now) == 0.0 for pod in pods)


def _roll(
    daemon: DaemonSet, inputs: DaemonSetInputs, pods_by_node: dict[str, _NodePods], desired: int
) -> tuple[list[str], list[Pod]]:
    """Nodes that get a surge pod, and old pods to replace."""
    update = daemon.spec.update_strategy.rolling_update
    surge = resolve(update.max_surge, "0", desired, up=True)
    room = max(resolve(update.max_unavailable, "1" if not surge else "0", desired, up=True), 0 if surge else 1)
    serving = sum(_available(daemon, inputs, (*node_pods.new, *node_pods.old)) for node_pods in pods_by_node.values())
    room -= desired - serving
    create: list[str] = []
    delete: list[Pod] = []
    surging = sum(bool(node_pods.new and node_pods.old) for node_pods in pods_by_node.values())
    for name, node_pods in sorted(pods_by_node.items()):
        if not node_pods.old:
            continue
        old_works = _available(daemon, inputs, node_pods.old)
        if node_pods.new:
            if not old_works or _available(daemon, inputs, node_pods.new):
                delete += node_pods.old
        elif not old_works:
            delete += node_pods.old
        elif surge:
            if surging < surge:
                surging += 1
                create.append(name)
        elif room > 0:
            room -= 1
            delete += node_pods.old
    return create, delete


def _status(
    daemon: DaemonSet, inputs: DaemonSetInputs, pods_by_node: dict[str, _NodePods], running: set[str]
) -> DaemonSetStatus:
    pods_of_node = {name: (*node_pods.new, *node_pods.old) for name, node_pods in pods_by_node.items()}
    scheduled = [pods for name, pods in pods_of_node.items() if name in running]
    available = sum(_available(daemon, inputs, pods) for pods in scheduled)
    return DaemonSetStatus(
        current_number_scheduled=len(scheduled),
        number_misscheduled=sum(name not in running for name in pods_of_node),
        desired_number_scheduled=len(running),
        number_ready=sum(any(pod.ready for pod in pods) for pods in scheduled),
        observed_generation=daemon.metadata.generation,
        updated_number_scheduled=sum(
            bool(node_pods.new) for name, node_pods in pods_by_node.items() if name in running
        ),
        number_available=available,
        number_unavailable=len(running) - available,
        collision_count=daemon.status.collision_count,
    )


class DaemonSetController:
    """Creates and deletes the pods of DaemonSets."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._daemons = environment.of(DAEMONSETS)
        self._nodes = environment.of(NODES)
        self._pods = environment.pods_by_owner()
        self._orphans = orphans_of(environment)
        self._revisions = Revisions(environment)
        self._writer = PodWriter(environment, "daemonset-controller")
        self._loop = environment.loop("daemonset", self._reconcile, interval_s=_INTERVAL_S)
        self._daemons.subscribe(lambda key, _old, _new: self._loop.touch(key))
        environment.of(PODS).subscribe(self._pod_changed)
        self._nodes.subscribe(self._node_changed)

    def start(self, supervisor: Supervisor) -> None:
        """Starts the loop."""
        self._loop.start(supervisor)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        for key in claimants("DaemonSet", self._daemons.objects, _matches, old, new):
            self._loop.touch(key)

    def _node_changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _scheduling_fields(old) == _scheduling_fields(new):
            return
        for key in self._daemons.objects:
            self._loop.touch(key)

    async def _reconcile(self, key: str) -> None:
        daemon = self._daemons.get(key)
        if daemon is None:
            return
        owner = PodOwner("apps/v1", "DaemonSet", daemon.metadata)
        revision = await self._revisions.ensure(owner, daemon.spec.template)
        uid = daemon.metadata.uid
        if revision is None or not self._writer.own.caught_up(uid):
            self._loop.queue.add_after(key, 0.02 if revision is None else 1.0)
            return
        pods = OwnerPods(
            tuple(p for p in self._pods.of(uid).values() if not self._writer.own.is_deleted(p.metadata.uid)),
            tuple(self._orphans.of(daemon.metadata.namespace).values()),
        )
        claimed = await self._writer.claim(owner, _matches(daemon), pods)
        terminating = tuple(p for p in self._pods.of(uid).values() if self._writer.own.is_deleted(p.metadata.uid))
        digest = revision.metadata.labels.get(HASH, "")
        state = DaemonSetInputs(self._nodes.objects, claimed, digest, self._environment.clock.now())
        chosen = plan(daemon, state)
        # A node whose pod is being deleted gets a new pod after that pod is gone.
        leaving = {_node_of(pod) for pod in terminating}
        bodies = [pod_body(daemon, digest, node) for node in chosen.create if node not in leaving]
        failure = await self._writer.create_many(owner, bodies)
        failure = await self._writer.delete_many(owner, chosen.delete) or failure
        await self._write_status(daemon, chosen.status)
        if failure is not None:
            raise failure
        used = {pod.metadata.labels.get(HASH, "") for pod in (*claimed, *terminating)} | {digest}
        await self._revisions.prune(owner, used, daemon.spec.revision_history_limit)
        if chosen.again_s is not None:
            self._loop.queue.add_after(key, chosen.again_s)

    async def _write_status(self, daemon: DaemonSet, status: DaemonSetStatus) -> None:
        patch = changed_status(daemon.status, status)
        await write_status(self._environment.client, DAEMONSETS, daemon.metadata, patch)


def _matches(daemon: DaemonSet) -> Callable[[Pod], bool]:
    selector = daemon.spec.selector
    return lambda pod: selector is not None and selector.matches(pod.metadata.labels)


def _scheduling_fields(node: Node) -> tuple[object, ...]:
    return node.metadata.labels, node.spec.taints, node.spec.unschedulable, node.metadata.deletion_timestamp
