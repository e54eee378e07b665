"""The objects of a case, and how its actions change them (pure).

A :class:`Stage` has namespaces, pods and policies as the case file names them. Policies are manifests, because they are
sent to the API unchanged, or with ranges of both families (``translate``). ``follow`` returns the stage after an
action. So a whole file can be checked before it runs, and the reference evaluator can judge any step.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from podwire.model.pod import ContainerPort

Manifest = dict[str, Any]

NETWORK_POLICY = ("networking.k8s.io/v1", "NetworkPolicy")
CLUSTER_POLICY = ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy")
OPS: Mapping[str, tuple[str, ...]] = {
    "create_policy": ("policy",),
    "update_policy": ("policy",),
    "delete_policy": ("namespace", "name"),
    "delete_all_policies": (),
    "create_cluster_policy": ("policy",),
    "update_cluster_policy": ("policy",),
    "delete_cluster_policy": ("name",),
    "create_namespace": ("namespace",),
    "set_namespace_labels": ("namespace", "labels"),
    "add_namespace_labels": ("namespace", "labels"),
    "delete_namespace": ("namespace",),
    "create_pod": ("namespace", "pod", "ip"),
    "set_pod_labels": ("namespace", "pod", "labels"),
    "add_pod_labels": ("namespace", "pod", "labels"),
    "delete_pod": ("namespace", "pod"),
}
"""The actions of a step, and the fields that each needs."""


class CasePod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a case; a pod in the host network has the address of its node."""

    namespace: str
    name: str
    address: str
    """IPv4."""
    ipv6: str = ""
    """The IPv6 address; empty: the one that :attr:`address` is translated to, if it is."""
    translate: bool = True
    """Whether a pod without :attr:`ipv6` has an IPv6 address as well."""
    labels: dict[str, str] = {}
    ports: tuple[ContainerPort, ...] = ()
    host_network: bool = False
    node_address: str = ""
    """The address of the pod's node in the case file; empty: the pod's own address determines the node."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class CaseNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a case: its address in the case file, and its labels."""

    address: str
    labels: dict[str, str] = {}


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a case at one moment; policies by ``namespace/name``, cluster policies by name."""

    namespaces: dict[str, dict[str, str]] = {}
    pods: dict[str, CasePod] = {}
    nodes: tuple[CaseNode, ...] = ()
    policies: dict[str, Manifest] = {}
    cluster_policies: dict[str, Manifest] = {}
    translate: bool = True
    """Whether IPv4 addresses and ranges stand for those of both families; otherwise nothing is added to them."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One change; ``op`` is a key of :data:`OPS`, and fields that it does not need are empty."""

    op: str
    namespace: str = ""
    name: str = ""
    labels: dict[str, str] = {}
    pod: CasePod | None = None
    policy: Manifest | None = None

    @property
    def key(self) -> str:
        """The changed object: ``namespace/name``, or the name of an object without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace and self.name else self.namespace or self.name


def follow(stage: Stage, action: Action) -> Stage:  # noqa: PLR0911 - one return for each kind of action
    """The stage after an action.

    Raises: ValueError with the expectation when the action is impossible in this stage.
    """
    match action.op:
        case "create_policy" | "update_policy" | "delete_policy":
            if action.namespace not in stage.namespaces:
                raise ValueError(f"expected a namespace that exists, found {action.namespace!r}")
            return replace(stage, policies=_changed(stage.policies, action, "policy"))
        case "create_cluster_policy" | "update_cluster_policy" | "delete_cluster_policy":
            return replace(stage, cluster_policies=_changed(stage.cluster_policies, action, "cluster policy"))
        case "delete_all_policies":
            return replace(stage, policies={})
        case "create_pod" | "set_pod_labels" | "add_pod_labels" | "delete_pod":
            return _pod_changed(stage, action)
        case "create_namespace":
            _check(action.namespace not in stage.namespaces, f"expected a new namespace, found {action.namespace!r}")
            return replace(stage, namespaces=stage.namespaces | {action.namespace: action.labels})
    _check(action.namespace in stage.namespaces, f"expected a namespace that exists, found {action.namespace!r}")
    if action.op == "delete_namespace":
        return replace(
            stage,
            namespaces={name: labels for name, labels in stage.namespaces.items() if name != action.namespace},
            pods={key: pod for key, pod in stage.pods.items() if pod.namespace != action.namespace},
            policies={key: policy for key, policy in stage.policies.items() if namespace_of(key) != action.namespace},
        )
    before = stage.namespaces[action.namespace] if action.op == "add_namespace_labels" else {}
    return replace(stage, namespaces=stage.namespaces | {action.namespace: before | action.labels})


def namespace_of(key: str) -> str:
    """The namespace in ``namespace/name``."""
    return key.partition("/")[0]


def _check(good: bool, problem: str) -> None:  # noqa: FBT001 - a condition and the error text when it is false
    if not good:
        raise ValueError(problem)


def _changed(have: dict[str, Manifest], action: Action, noun: str) -> dict[str, Manifest]:
    if action.op.startswith("create"):
        _check(action.key not in have, f"expected a new {noun}, found {action.key}")
    else:
        _check(action.key in have, f"expected a {noun} that exists, found {action.key}")
    if action.policy is None:
        return {key: manifest for key, manifest in have.items() if key != action.key}
    return have | {action.key: action.policy}


def _pod_changed(stage: Stage, action: Action) -> Stage:
    if action.op == "create_pod":
        assert action.pod is not None, "a pod to create is a whole pod"
        _check(action.namespace in stage.namespaces, f"expected a namespace that exists, found {action.namespace!r}")
        _check(action.key not in stage.pods, f"expected a new pod, found {action.key}")
        holders = [pod.key for pod in stage.pods.values() if pod.address == action.pod.address and not pod.host_network]
        _check(
            not holders or action.pod.host_network,
            f"expected an address that no pod has, found the address of {', '.join(holders)}",
        )
        return replace(stage, pods=stage.pods | {action.key: action.pod})
    _check(action.key in stage.pods, f"expected a pod that exists, found {action.key}")
    if action.op == "delete_pod":
        return replace(stage, pods={key: pod for key, pod in stage.pods.items() if key != action.key})
    pod = stage.pods[action.key]
    labels = action.labels if action.op == "set_pod_labels" else pod.labels | action.labels
    return replace(stage, pods=stage.pods | {action.key: replace(pod, labels=labels)})
