"""The rights of a node: to read objects that its pods use, and its own Node, Lease and pods. The role ``system:node``
decides about all other requests.

A kubelet's user is ``system:node:NAME`` in the group ``system:nodes``. A ConfigMap, Secret, claim or ServiceAccount
is a pod's if the pod's spec refers to it. Source: ``k8s.io/kubernetes/plugin/pkg/auth/authorizer/node``.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from podwire.embedded.apiserver.authorization.defaultroles import NODE
from podwire.embedded.apiserver.authorization.policy import AccessDecision
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import UserInfo

Object = dict[str, Any]

LEASES = "kube-node-lease"
_PREFIX = "system:node:"
_ALLOWED = AccessDecision(True)
_NO = AccessDecision(False)
_REFERENCES: Mapping[str, Mapping[str, str]] = {
    "configmaps": {"configMap": "name", "configMapRef": "name", "configMapKeyRef": "name"},
    "secrets": {"secretRef": "name", "secretKeyRef": "name", "nodePublishSecretRef": "name"},
    "persistentvolumeclaims": {"persistentVolumeClaim": "claimName"},
}
"""Fields of a pod's spec that refer to an object, and the field of the name in them."""


def node_name(user: UserInfo) -> str:
    """The name of the node that a user is; empty for any other user."""
    if not user.name.startswith(_PREFIX) or "system:nodes" not in user.groups:
        return ""
    return user.name.removeprefix(_PREFIX)


def references(pod: Object) -> Iterator[tuple[str, str]]:
    """Resource and name of each object that a pod's spec refers to."""
    spec = pod.get("spec") or {}
    yield "serviceaccounts", spec.get("serviceAccountName") or "default"
    for secret in spec.get("imagePullSecrets") or ():
        yield "secrets", secret.get("name", "")
    for volume in spec.get("volumes") or ():
        if "ephemeral" in volume:
            yield "persistentvolumeclaims", f"{pod['metadata']['name']}-{volume.get('name', '')}"
    yield from _below(spec)


def _below(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for inner in value:
            yield from _below(inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, dict):
                yield from _named(key, inner)
            yield from _below(inner)


def _named(key: str, value: Object) -> Iterator[tuple[str, str]]:
    if key == "secret":
        yield "secrets", value.get("secretName") or value.get("name") or ""
    for resource, fields in _REFERENCES.items():
        if key in fields:
            yield resource, value.get(fields[key]) or ""


class NodeObjects(Protocol):
    """The objects that a node's rights depend on."""

    def pods(self, node: str, namespace: str, mentioning: str) -> Iterable[Object]:
        """The pods of a node in a namespace whose text has ``mentioning`` in it."""
        ...

    def is_on(self, node: str, namespace: str, pod: str) -> bool:
        """Whether a pod is bound to a node."""
        ...

    def claim_of(self, volume: str) -> tuple[str, str]:
        """Namespace and name of the claim that a PersistentVolume is bound to; empty for none."""
        ...


class NodeAuthorizer:
    """Decides about the actions of nodes."""

    def __init__(self, objects: NodeObjects) -> None:
        self._objects = objects

    def decide(self, node: str, asked: RequestAttributes) -> AccessDecision:
        """Whether a node may do something, and why not."""
        narrowed = {
            ("", "configmaps"): self._read,
            ("", "secrets"): self._read,
            ("", "persistentvolumeclaims"): self._claim,
            ("", "persistentvolumes"): self._volume,
            ("", "serviceaccounts"): self._token,
            ("", "nodes"): _own_node,
            ("", "pods"): self._pod,
            ("coordination.k8s.io", "leases"): _lease,
            ("storage.k8s.io", "csinodes"): _csi_node,
        }.get((asked.group, asked.resource))
        if narrowed is not None and not asked.path:
            return narrowed(node, asked)
        return _ALLOWED if any(rule.allows(asked) for rule in NODE) else _NO

    def _related(self, node: str, asked: RequestAttributes, resource: str = "") -> AccessDecision:
        if not asked.name:
            return AccessDecision(False, "No Object name found")
        reference = (resource or asked.resource, asked.name)
        # The name of an ephemeral volume's claim is POD-VOLUME, so it does not occur in the pod's text as a whole.
        mentioning = "" if reference[0] == "persistentvolumeclaims" else asked.name
        for pod in self._objects.pods(node, asked.namespace, mentioning):
            if reference in references(pod):
                return _ALLOWED
        return _unrelated(node)

    def _read(self, node: str, asked: RequestAttributes) -> AccessDecision:
        if asked.verb not in ("get", "list", "watch"):
            return AccessDecision(False, "can only read resources of this type")
        if asked.subresource:
            return AccessDecision(False, "cannot read subresource")
        if not asked.namespace:
            return AccessDecision(False, "can only read namespaced object of this type")
        return self._related(node, asked)

    def _claim(self, node: str, asked: RequestAttributes) -> AccessDecision:
        if asked.subresource == "status":
            if asked.verb not in ("update", "patch"):
                return AccessDecision(False, "can only get/update/patch this type")
            return self._related(node, asked)
        return _only_get(asked) or self._related(node, asked)

    def _volume(self, node: str, asked: RequestAttributes) -> AccessDecision:
        refused = _only_get(asked)
        if refused is not None:
            return refused
        namespace, claim = self._objects.claim_of(asked.name)
        if not claim:
            return _unrelated(node)
        return self._related(node, RequestAttributes("get", namespace=namespace, name=claim), "persistentvolumeclaims")

    def _token(self, node: str, asked: RequestAttributes) -> AccessDecision:
        if asked.verb != "create" or not asked.name:
            return AccessDecision(False, "can only create tokens for individual service accounts")
        if asked.subresource != "token":
            return AccessDecision(False, "can only create token subresource of serviceaccount")
        return self._related(node, asked)

    def _pod(self, node: str, asked: RequestAttributes) -> AccessDecision:
        if asked.subresource == "status":
            return _ALLOWED if asked.verb in ("update", "patch") else _NO
        if asked.subresource == "eviction":
            return _ALLOWED if asked.verb == "create" else _NO
        if asked.subresource or asked.verb not in ("get", "list", "watch", "create", "delete"):
            return _NO
        if asked.verb in ("create", "delete"):
            return _ALLOWED
        if asked.verb != "get" and asked.selected.get("spec.nodeName") == node:
            return _ALLOWED
        if asked.verb != "get" and not asked.name:
            return AccessDecision(False, "can only list/watch pods with spec.nodeName field selector")
        return _ALLOWED if self._objects.is_on(node, asked.namespace, asked.name) else _unrelated(node)


def _unrelated(node: str) -> AccessDecision:
    return AccessDecision(False, f"no relationship found between node '{node}' and this object")


def _only_get(asked: RequestAttributes) -> AccessDecision | None:
    if asked.verb != "get":
        return AccessDecision(False, "can only get individual resources of this type")
    return AccessDecision(False, "cannot get subresource") if asked.subresource else None


def _own_node(node: str, asked: RequestAttributes) -> AccessDecision:
    if asked.subresource == "status":
        return _ALLOWED if asked.verb in ("update", "patch") else _NO
    if asked.subresource or asked.verb not in ("create", "update", "patch", "get", "list", "watch"):
        return _NO
    if asked.verb in ("create", "update", "patch") or asked.name == node:
        return _ALLOWED
    if not asked.name:
        return AccessDecision(False, f"node '{node}' cannot read all nodes, only its own Node object")
    return AccessDecision(False, f"node '{node}' cannot read '{asked.name}', only its own Node object")


def _lease(node: str, asked: RequestAttributes) -> AccessDecision:
    if asked.verb not in ("get", "create", "update", "patch", "delete"):
        return AccessDecision(False, "can only get, create, update, patch, or delete a node lease")
    if asked.namespace != LEASES:
        return AccessDecision(False, f'can only access leases in the "{LEASES}" system namespace')
    if asked.verb != "create" and asked.name != node:
        return AccessDecision(False, "can only access node lease with the same name as the requesting node")
    return _ALLOWED


def _csi_node(node: str, asked: RequestAttributes) -> AccessDecision:
    if asked.verb not in ("get", "create", "update", "patch", "delete"):
        return AccessDecision(False, "can only get, create, update, patch, or delete a CSINode")
    if asked.subresource:
        return AccessDecision(False, "cannot authorize CSINode subresources")
    if asked.verb != "create" and asked.name != node:
        return AccessDecision(False, "can only access CSINode with the same name as the requesting node")
    return _ALLOWED
