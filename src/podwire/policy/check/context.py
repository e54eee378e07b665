"""The objects that policies are checked against: pods, namespaces and Services of the cluster (pure).

Files may describe only a part of a cluster. Objects that the files leave out are not a finding: see
:attr:`ClusterDetails.complete`.
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


class ClusterDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a cluster besides the objects that verdicts depend on."""

    services: tuple[Service, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    pod_cidrs: tuple[str, ...] = ()
    complete: bool = True
    """Whether all objects of a cluster are known; False: files, which may leave out namespaces and their pods."""
    assumed_addresses: bool = False
    """Whether the addresses of pods and nodes are assumed because the files do not give them."""
    written: Mapping[str, Mapping[str, Any]] = {}
    """Policies as in their manifests, without the defaults of the API server: by ``kind namespace/name``."""
    duplicates: Mapping[str, str] = {}
    """Objects that files define more than once (``kind namespace/name``), ``file:line`` of an unused definition."""
    unenforced: tuple["UnenforcedPolicy", ...] = ()
    """Policies of kinds that podwire does not enforce."""
    operated: Mapping[str, tuple[str, ...]] = {}
    """Custom resources (``Prometheus k8s``) for which an operator probably makes pods, by namespace; files only."""


class UnenforcedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy of a kind that podwire does not enforce."""

    api_version: str
    kind: str
    name: str
    """``namespace/name`` of the object."""
    where: str
    """``file:line``."""
    annotations: Mapping[str, str] = {}


class PodGroup(msgspec.Struct, frozen=True):
    """Pods of a namespace with the same labels."""

    namespace: str
    labels: Mapping[str, str]
    pods: tuple[Pod, ...]


class ClusterIndex:
    """A cluster, indexed so that checks find the pods that a selector selects."""

    def __init__(self, world: World, details: ClusterDetails | None = None) -> None:
        self.world = world
        self.details = details or ClusterDetails()
        self.policies: tuple[PolicyOutline, ...] = (
            *(outline(policy) for policy in sorted(world.policies, key=lambda p: _order(p.metadata))),
            *(outline_cluster(policy) for policy in sorted(world.cluster_policies, key=lambda p: _order(p.metadata))),
        )
        self.groups = _grouped(pod for pod in world.pods if owns_addresses(pod))
        self.excluded = _grouped(pod for pod in world.pods if not owns_addresses(pod))
        """Pods in the host network and finished pods: policies do not apply to them."""
        listed = {namespace.metadata.name for namespace in world.namespaces}
        self.namespaces = {name: world.labels_of(name) for name in sorted(listed | set(self.groups))}
        """The labels of all known namespaces, also of those that only pods name."""
        self.with_object = frozenset(listed)
        """Namespaces that have a Namespace object, so their labels are known."""
        self._groups_by_selector: dict[bytes, tuple[PodGroup, ...]] = {}
        self._services: dict[str, list[Service]] = {}
        for service in self.details.services:
            if service.spec.selector:
                self._services.setdefault(service.metadata.namespace, []).append(service)

    def matching(self, selector: PodSelector) -> tuple[PodGroup, ...]:
        """The groups of pods that a selector selects; without pods to which no policy applies."""
        text = msgspec.json.encode(selector, order="deterministic")
        groups = self._groups_by_selector.get(text)
        if groups is None:
            groups = self._groups_by_selector[text] = self.among(self.groups, selector)
        return groups

    def pods(self, selector: PodSelector) -> tuple[Pod, ...]:
        """The pods that a selector selects; without pods to which no policy applies."""
        return tuple(pod for group in self.matching(selector) for pod in group.pods)

    def among(self, groups: Mapping[str, Sequence[PodGroup]], selector: PodSelector) -> tuple[PodGroup, ...]:
        """The groups in ``groups`` that a selector selects."""
        names = self.namespaces_of(selector)
        return tuple(
            group for name in names for group in groups.get(name, ()) if selector.pods.matches(dict(group.labels))
        )

    def namespaces_of(self, selector: PodSelector) -> tuple[str, ...]:
        """The known namespaces in which a selector may select pods."""
        if selector.namespace:
            return (selector.namespace,)
        return self.namespaces_with(selector.namespaces)

    def namespaces_with(self, selector: LabelSelector) -> tuple[str, ...]:
        """The known namespaces whose labels match a selector."""
        return tuple(name for name, labels in self.namespaces.items() if selector.matches(labels))

    def knows_pods(self, selector: PodSelector) -> bool:
        """Whether a selector without a match is a finding: the pods of its namespaces are known."""
        return self.details.complete or any(name in self.groups for name in self.namespaces_of(selector))

    def destinations(self, policy: PolicyOutline, rule: RuleOutline) -> tuple[Pod, ...] | None:
        """The pods that a rule names ports of; None: not all of them are known."""
        if rule.direction == "Ingress":
            return self.pods(policy.subject)
        if rule.everyone:
            return None
        selectors = [peer.pods for peer in rule.peers if peer.pods is not None]
        if not all(self.matching(selector) for selector in selectors):
            return None
        return tuple(pod for selector in selectors for pod in self.pods(selector))

    def services_of(self, pod: Pod) -> tuple[Service, ...]:
        """The Services that select a pod."""
        labels = pod.metadata.labels.items()
        own = self._services.get(pod.metadata.namespace, ())
        return tuple(service for service in own if service.spec.selector.items() <= labels)

    def only_pods(self, peers: Iterable[PeerOutline]) -> bool:
        """Whether all peers are pods."""
        return all(peer.pods is not None for peer in peers)


def _order(meta: Any) -> tuple[str, str]:
    return (meta.namespace, meta.name)


def _grouped(pods: Iterable[Pod]) -> dict[str, tuple[PodGroup, ...]]:
    """By namespace, in the order of their labels."""
    groups: dict[str, dict[tuple[tuple[str, str], ...], list[Pod]]] = {}
    for pod in pods:
        labels = tuple(sorted(pod.metadata.labels.items()))
        groups.setdefault(pod.metadata.namespace, {}).setdefault(labels, []).append(pod)
    return {
        namespace: tuple(
            PodGroup(namespace, dict(labels), tuple(members)) for labels, members in sorted(by_labels.items())
        )
        for namespace, by_labels in groups.items()
    }
