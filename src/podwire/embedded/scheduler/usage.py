"""The scheduler's state: the nodes and the pods that use them, updated pod by pod.

To add or remove a pod costs a few dictionary updates, so the state is never built again. A pod counts from the moment
of the decision, before the API shows its binding. A pod for which other pods are deleted is *nominated* for a node: it
counts there for pods of the same or lower priority, so that these do not take the room that becomes free.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from podwire.embedded.storage.claims import claims_of
from podwire.model.hostports import HostPort, host_ports
from podwire.model.meta import controller_of
from podwire.model.node import Node
from podwire.model.pod import Pod, PodAffinityTerm
from podwire.model.requests import amounts, pod_requests


class PodDemand(msgspec.Struct, frozen=True):
    """A pod and the values that are computed from it once."""

    pod: Pod
    requests: dict[str, int]
    host_ports: tuple[HostPort, ...]
    owner: str
    anti_affinity: tuple[PodAffinityTerm, ...]
    claims: tuple[str, ...] = ()
    """The claims that the pod uses, as ``namespace/name``."""

    @property
    def priority(self) -> int:
        """The pod's priority; 0 when it has none."""
        return self.pod.spec.priority or 0


class NodeUsage(msgspec.Struct):
    """A node and its pods; resources in thousandths of their unit."""

    node: Node
    allocatable: dict[str, int]
    used: Counter[str] = msgspec.field(default_factory=Counter)
    pods: dict[str, PodDemand] = msgspec.field(default_factory=dict)
    owners: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.metadata.name

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels."""
        return self.node.metadata.labels


class SchedulerState:
    """The nodes by name with their pods by uid."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeUsage] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self.claim_users: Counter[str] = Counter()
        """The number of placed pods that use a claim."""
        self.anti_affine: dict[str, tuple[str, PodDemand]] = {}
        self.nominated: dict[str, tuple[str, PodDemand]] = {}
        """The node for which a waiting pod is nominated, with the pod, by the pod's uid."""
        self._node_names: dict[str, str] = {}
        self._unplaced: dict[str, dict[str, PodDemand]] = {}

    def put_node(self, node: Node) -> None:
        """Adds a node, or replaces it by a new version."""
        allocatable = amounts({**node.status.capacity, **node.status.allocatable})
        known = self.nodes.get(node.metadata.name)
        if known is not None:
            known.node, known.allocatable = node, allocatable
            return
        self.nodes[node.metadata.name] = NodeUsage(node, allocatable)
        for demand in self._unplaced.pop(node.metadata.name, {}).values():
            self._add(node.metadata.name, demand)

    def drop_node(self, name: str) -> None:
        """Removes a node; its pods are kept in case the node is added again."""
        gone = self.nodes.pop(name, None)
        if gone is not None and gone.pods:
            self._unplaced[name] = dict(gone.pods)

    def put_pod(self, demand: PodDemand, node: str) -> None:
        """Counts a pod on a node, and no longer on the node where it was counted before."""
        self.drop_pod(demand.pod.metadata.uid)
        self._node_names[demand.pod.metadata.uid] = node
        self.claim_users.update(demand.claims)
        if node in self.nodes:
            self._add(node, demand)
        else:
            self._unplaced.setdefault(node, {})[demand.pod.metadata.uid] = demand
        if demand.anti_affinity:
            self.anti_affine[demand.pod.metadata.uid] = (node, demand)

    def drop_pod(self, uid: str) -> bool:
        """Stops counting a pod; returns whether the pod was counted."""
        self.anti_affine.pop(uid, None)
        node = self._node_names.pop(uid, None)
        if node is None:
            return False
        unplaced = self._unplaced.get(node, {}).pop(uid, None)
        usage = self.nodes.get(node)
        demand = usage.pods.pop(uid, None) if usage is not None else None
        for placed in (unplaced, demand):
            self.claim_users.subtract(placed.claims if placed is not None else ())
        if usage is not None and demand is not None:
            usage.used.subtract(demand.requests)
            usage.owners[demand.owner] -= 1
        return True

    @contextmanager
    def counting_nominated(self, demand: PodDemand) -> Iterator[None]:
        """Counts the nominated pods of the same or higher priority, without ``demand`` itself, within the block."""
        counted = [
            (node, waiting)
            for uid, (node, waiting) in self.nominated.items()
            if uid != demand.pod.metadata.uid and waiting.priority >= demand.priority and not self.node_of(uid)
        ]
        for node, waiting in counted:
            self.put_pod(waiting, node)
        try:
            yield
        finally:
            for _, waiting in counted:
                self.drop_pod(waiting.pod.metadata.uid)

    def node_of(self, uid: str) -> str:
        """The name of the node on which a pod is counted; empty when the pod is not counted."""
        return self._node_names.get(uid, "")

    def _add(self, node: str, demand: PodDemand) -> None:
        usage = self.nodes[node]
        usage.pods[demand.pod.metadata.uid] = demand
        usage.used.update(demand.requests)
        usage.owners[demand.owner] += 1


def pod_demand(pod: Pod) -> PodDemand:
    """The demand of a pod; requests that do not parse are left out."""
    owner = controller_of(pod.metadata)
    affinity = pod.spec.affinity
    anti = affinity.pod_anti_affinity if affinity is not None else None
    return PodDemand(
        pod=pod,
        requests=pod_requests(pod),
        host_ports=host_ports(pod),
        owner=owner.uid if owner is not None else "",
        anti_affinity=anti.required if anti is not None else (),
        claims=tuple(f"{pod.metadata.namespace}/{name}" for name in claims_of(pod)),
    )
