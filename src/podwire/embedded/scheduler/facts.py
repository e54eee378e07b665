"""What the scheduler knows: nodes with what runs on them, kept current pod by pod.

Adding or removing a pod costs a few dictionary updates, so the state is never rebuilt. A pod that was just
bound counts from the moment of the decision, before the API shows it.
"""

from collections import Counter
from dataclasses import dataclass, field

from podwire.embedded.scheduler.quantity import parse_milli
from podwire.errors import ConfigError
from podwire.model.meta import controller_of
from podwire.model.node import Node
from podwire.model.pod import Container, Pod, PodAffinityTerm

HostPort = tuple[str, str, int]
"""Host address (``0.0.0.0`` for all), protocol, port."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod and what is computed of it once."""

    pod: Pod
    requests: dict[str, int]
    host_ports: tuple[HostPort, ...]
    owner: str
    anti_affinity: tuple[PodAffinityTerm, ...]


@dataclass(slots=True)
class NodeFacts:
    """A node and the pods on it; resources in thousandths."""

    node: Node
    allocatable: dict[str, int]
    used: Counter[str] = field(default_factory=Counter)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    owners: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.metadata.name

    @property
    def labels(self) -> dict[str, str]:
        """The node's labels."""
        return self.node.metadata.labels


class Facts:
    """All nodes; pods by uid."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeFacts] = {}
        self.namespaces: dict[str, dict[str, str]] = {}
        self.anti_affine: dict[str, tuple[str, PodFacts]] = {}
        self._where: dict[str, str] = {}
        self._homeless: dict[str, dict[str, PodFacts]] = {}

    def put_node(self, node: Node) -> None:
        """Adds a node or takes over its new form."""
        allocatable = _amounts({**node.status.capacity, **node.status.allocatable})
        known = self.nodes.get(node.metadata.name)
        if known is not None:
            known.node, known.allocatable = node, allocatable
            return
        self.nodes[node.metadata.name] = NodeFacts(node, allocatable)
        for facts in self._homeless.pop(node.metadata.name, {}).values():
            self._add(node.metadata.name, facts)

    def drop_node(self, name: str) -> None:
        """Forgets a node; its pods are kept for the case that it comes back."""
        gone = self.nodes.pop(name, None)
        if gone is not None and gone.pods:
            self._homeless[name] = dict(gone.pods)

    def place(self, facts: PodFacts, node: str) -> None:
        """Counts a pod on a node, moving it when it was counted elsewhere."""
        self.remove(facts.pod.metadata.uid)
        self._where[facts.pod.metadata.uid] = node
        if node in self.nodes:
            self._add(node, facts)
        else:
            self._homeless.setdefault(node, {})[facts.pod.metadata.uid] = facts
        if facts.anti_affinity:
            self.anti_affine[facts.pod.metadata.uid] = (node, facts)

    def remove(self, uid: str) -> bool:
        """Stops counting a pod; whether it was counted."""
        self.anti_affine.pop(uid, None)
        node = self._where.pop(uid, None)
        if node is None:
            return False
        self._homeless.get(node, {}).pop(uid, None)
        place = self.nodes.get(node)
        facts = place.pods.pop(uid, None) if place is not None else None
        if place is not None and facts is not None:
            place.used.subtract(facts.requests)
            place.owners[facts.owner] -= 1
        return True

    def node_of(self, uid: str) -> str:
        """Where a pod is counted; empty for nowhere."""
        return self._where.get(uid, "")

    def _add(self, node: str, facts: PodFacts) -> None:
        place = self.nodes[node]
        place.pods[facts.pod.metadata.uid] = facts
        place.used.update(facts.requests)
        place.owners[facts.owner] += 1


def pod_facts(pod: Pod) -> PodFacts:
    """What is computed of a pod once; requests that do not parse count as none."""
    owner = controller_of(pod.metadata)
    affinity = pod.spec.affinity
    anti = affinity.pod_anti_affinity if affinity is not None else None
    return PodFacts(
        pod=pod,
        requests=_requests(pod),
        host_ports=_host_ports(pod),
        owner=owner.uid if owner is not None else "",
        anti_affinity=anti.required if anti is not None else (),
    )


def _requests(pod: Pod) -> dict[str, int]:
    """Containers and sidecars together, or the largest init container, whichever is more."""
    total: Counter[str] = Counter()
    for container in pod.spec.containers:
        total.update(_container_requests(container))
    peak: Counter[str] = Counter()
    sidecars: Counter[str] = Counter()
    for container in pod.spec.init_containers:
        wants = _container_requests(container)
        if container.restart_policy == "Always":
            sidecars.update(wants)
            total.update(wants)
            peak |= sidecars
        else:
            peak |= Counter(wants) + sidecars
    return dict(total | peak)


def _container_requests(container: Container) -> dict[str, int]:
    return _amounts({**container.resources.limits, **container.resources.requests})


def _amounts(quantities: dict[str, str | int | float] | dict[str, str]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for name, quantity in quantities.items():
        try:
            amounts[name] = parse_milli(quantity)
        except ConfigError:
            continue
    return amounts


def _host_ports(pod: Pod) -> tuple[HostPort, ...]:
    ports: list[HostPort] = []
    for container in pod.spec.containers:
        for port in container.ports:
            number = port.host_port or (port.container_port if pod.spec.host_network else 0)
            if number:
                ports.append((port.host_ip or "0.0.0.0", port.protocol, number))  # noqa: S104
    return tuple(ports)
