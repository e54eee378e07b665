"""What policies are checked against: the pods, namespaces and Services around them (pure).

Files may leave out much of a cluster. What they have nothing of is not held against a policy: see :attr:`Around.whole`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from podwire.cluster.addresses import owns_addresses
from podwire.cluster.world import World
from podwire.model.pod import Pod
from podwire.model.selector import LabelSelector
from podwire.model.service import Service
from podwire.policy.check.outline import PeerOutline, PolicyOutline, RuleOutline, outline, outline_cluster
from podwire.policy.selectors import PodSelector


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What there is beside the objects that verdicts depend on."""

    services: tuple[Service, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    pod_cidrs: tuple[str, ...] = ()
    whole: bool = True
    """Whether this is a whole cluster; False: files, which may leave out namespaces and their pods."""
    made_up: bool = False
    """Whether addresses of pods and nodes are made up."""
    written: Mapping[str, Mapping[str, Any]] = {}
    """Policies as they were written, without what the API server fills in: by ``kind namespace/name``."""
    twice: Mapping[str, str] = {}
    """Objects that files have more than once (``kind namespace/name``), and where one that does not count is."""
    others: tuple["Other", ...] = ()
    """Policies of kinds that nobody here enforces."""


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """A policy of a kind that podwire does not enforce."""

    api_version: str
    kind: str
    name: str
    """``namespace/name`` of the object."""
    where: str
    """``file:line``."""
    annotations: Mapping[str, str] = {}


class Group(msgspec.Struct, frozen=True):
    """Pods of a namespace with the same labels."""

    namespace: str
    labels: Mapping[str, str]
    pods: tuple[Pod, ...]


class Scene:
    """A cluster, prepared for many questions about it."""

    def __init__(self, world: World, around: Around | None = None) -> None:
        self.world = world
        self.around = around or Around()
        self.policies: tuple[PolicyOutline, ...] = (
            *(outline(policy) for policy in sorted(world.policies, key=lambda p: _order(p.metadata))),
            *(outline_cluster(policy) for policy in sorted(world.cluster_policies, key=lambda p: _order(p.metadata))),
        )
        self.groups = _grouped(pod for pod in world.pods if owns_addresses(pod))
        self.excluded = _grouped(pod for pod in world.pods if not owns_addresses(pod))
        """Pods with their node's network, and ended ones."""
        listed = {each.metadata.name for each in world.namespaces}
        self.namespaces = {name: world.labels_of(name) for name in sorted(listed | set(self.groups))}
        """The labels of the namespaces that are known."""
        self.described = frozenset(listed)
        """Namespaces whose labels are known for sure."""
        self._found: dict[bytes, tuple[Group, ...]] = {}
        self._services: dict[str, list[Service]] = {}
        for service in self.around.services:
            if service.spec.selector:
                self._services.setdefault(service.metadata.namespace, []).append(service)

    def matching(self, selector: PodSelector) -> tuple[Group, ...]:
        """The pods that policies see and a selector selects."""
        text = msgspec.json.encode(selector, order="deterministic")
        found = self._found.get(text)
        if found is None:
            found = self._found[text] = self.among(self.groups, selector)
        return found

    def pods(self, selector: PodSelector) -> tuple[Pod, ...]:
        """The same as single pods."""
        return tuple(pod for group in self.matching(selector) for pod in group.pods)

    def among(self, groups: Mapping[str, Sequence[Group]], selector: PodSelector) -> tuple[Group, ...]:
        """Those of some groups that a selector selects."""
        names = self.namespaces_of(selector)
        return tuple(
            group for name in names for group in groups.get(name, ()) if selector.pods.matches(dict(group.labels))
        )

    def namespaces_of(self, selector: PodSelector) -> tuple[str, ...]:
        """The known namespaces that a selector speaks of."""
        if selector.namespace:
            return (selector.namespace,)
        return self.namespaces_with(selector.namespaces)

    def namespaces_with(self, selector: LabelSelector) -> tuple[str, ...]:
        """The known namespaces with some labels."""
        return tuple(name for name, labels in self.namespaces.items() if selector.matches(labels))

    def knows_pods(self, selector: PodSelector) -> bool:
        """Whether what a selector does not match is not there: the files have pods of its namespaces."""
        return self.around.whole or any(name in self.groups for name in self.namespaces_of(selector))

    def destinations(self, policy: PolicyOutline, rule: RuleOutline) -> tuple[Pod, ...] | None:
        """The pods whose ports a rule speaks of; None: they are not all known."""
        if rule.direction == "Ingress":
            return self.pods(policy.subject)
        if rule.everyone:
            return None
        selectors = [peer.pods for peer in rule.peers if peer.pods is not None]
        if not all(self.matching(each) for each in selectors):
            return None
        return tuple(pod for each in selectors for pod in self.pods(each))

    def services_of(self, pod: Pod) -> tuple[Service, ...]:
        """The Services that select a pod."""
        labels = pod.metadata.labels.items()
        own = self._services.get(pod.metadata.namespace, ())
        return tuple(service for service in own if service.spec.selector.items() <= labels)

    def only_pods(self, peers: Iterable[PeerOutline]) -> bool:
        """Whether peers are all pods."""
        return all(peer.pods is not None for peer in peers)


def _order(meta: Any) -> tuple[str, str]:
    return (meta.namespace, meta.name)


def _grouped(pods: Iterable[Pod]) -> dict[str, tuple[Group, ...]]:
    """By namespace, in the order of their labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], list[Pod]]] = {}
    for pod in pods:
        labels = tuple(sorted(pod.metadata.labels.items()))
        found.setdefault(pod.metadata.namespace, {}).setdefault(labels, []).append(pod)
    return {
        namespace: tuple(Group(namespace, dict(labels), tuple(some)) for labels, some in sorted(each.items()))
        for namespace, each in found.items()
    }
