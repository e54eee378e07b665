"""Limits what a node may write: its own Node and Lease, the status of its own pods, and tokens of these.

The authorizer sees only the request line; this plugin checks the objects.
Source: ``k8s.io/kubernetes/plugin/pkg/admission/noderestriction``.
"""

from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.authorization.nodes import node_name, references
from podwire.embedded.apiserver.calls import Call

Object = dict[str, Any]

_MIRROR = "kubernetes.io/config.mirror"
_LABELS = frozenset({
    "kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region", "node.kubernetes.io/instance-type", "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region", "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
})  # fmt: skip
_LABEL_DOMAINS = ("kubelet.kubernetes.io", "node.kubernetes.io")
"""Labels of Kubernetes that a node may set on itself, by name and by prefix."""


class NodeRestriction:
    """Looks at every write of a node."""

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: ApiError 403 for a write on an object of another node."""
        call = request.call
        node = node_name(call.user)
        if not node:
            return
        if request.operation == "DELETE" or call.subresource == "eviction":
            _check_deletion(node, request)
            return
        new, old = request.obj, request.old or None
        problem = ""
        match call.kind.table, call.subresource:
            case "/pods", "":
                problem = _created_pod(node, new, old)
            case "/pods", "status":
                problem = _pod_status(node, new, old or {})
            case "/nodes", _:
                problem = _node(node, call, new, old)
            case "/serviceaccounts", "token":
                problem = self._token(node, call, new)
            case (("coordination.k8s.io/leases" | "storage.k8s.io/csinodes"), _):
                if new["metadata"].get("name") != node:
                    noun = "node lease" if call.kind.kind == "Lease" else call.kind.kind
                    problem = f"can only access {noun} with the same name as the requesting node"
        if problem:
            raise failures.forbidden(call.kind, call.name or new.get("metadata", {}).get("name", ""), problem)

    def _token(self, node: str, call: Call, request: Object) -> str:
        reference = (request.get("spec") or {}).get("boundObjectRef") or {}
        if reference.get("kind") != "Pod" or not reference.get("name"):
            return "node requested token not bound to a pod"
        if not reference.get("uid"):
            return "node requested token with a pod binding without a uid"
        entry = self._store.get("/pods", call.namespace, str(reference["name"]))
        if entry is not None and entry.fields["spec.nodeName"] != node:
            return "node requested token bound to a pod scheduled on a different node"
        return ""


def _check_deletion(node: str, request: AdmissionRequest) -> None:
    """Raises: ApiError 403 for a deletion or an eviction of another node's pod."""
    if request.table == "/pods" and (request.old.get("spec") or {}).get("nodeName") != node:
        verb = "evict" if request.call.subresource == "eviction" else "delete"
        problem = f'node "{node}" can only {verb} pods with spec.nodeName set to itself'
        raise failures.forbidden(request.call.kind, request.old["metadata"]["name"], problem)


def _created_pod(node: str, new: Object, old: Object | None) -> str:
    if old is not None:
        return f'unexpected operation "UPDATE", node "{node}" can only create and delete mirror pods'
    if _MIRROR not in (new["metadata"].get("annotations") or {}):
        return f'pod does not have "{_MIRROR}" annotation, node "{node}" can only create mirror pods'
    if new["spec"].get("nodeName") != node:
        return f'node "{node}" can only create pods with spec.nodeName set to itself'
    for resource, _ in references(new):
        if resource != "serviceaccounts":
            return f'node "{node}" can not create pods that reference {resource}'
    return ""


def _pod_status(node: str, new: Object, old: Object) -> str:
    if (old.get("spec") or {}).get("nodeName") != node:
        return f'node "{node}" can only update pod status for pods with spec.nodeName set to itself'
    if (new["metadata"].get("labels") or {}) != (old["metadata"].get("labels") or {}):
        return f'node "{node}" cannot update labels through pod status'
    return ""


def _node(node: str, call: Call, new: Object, old: Object | None) -> str:
    name = call.name or new["metadata"].get("name", "")
    if name != node:
        return f'node "{node}" is not allowed to modify node "{name}"'
    if old is not None and (new.get("spec") or {}).get("taints") != (old.get("spec") or {}).get("taints"):
        return f'node "{node}" is not allowed to modify taints'
    before = ((old or {}).get("metadata") or {}).get("labels") or {}
    after = new["metadata"].get("labels") or {}
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    refused = sorted(key for key in changed if not _may_label(key))
    if refused:
        return f'node "{node}" is not allowed to modify labels: {", ".join(refused)}'
    return ""


def _may_label(key: str) -> bool:
    domain = key.rpartition("/")[0]
    if key in _LABELS or any(domain == own or domain.endswith(f".{own}") for own in _LABEL_DOMAINS):
        return True
    return not any(domain == own or domain.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io"))
