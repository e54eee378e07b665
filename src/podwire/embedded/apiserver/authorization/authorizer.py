"""Decides about every request: members of ``system:masters``, nodes, then roles.

Follows the store's writes at once, so that the request after a change of a role is decided by that change.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from podwire.embedded.apiserver.authorization import policy
from podwire.embedded.apiserver.authorization.nodes import NodeAuthorizer, node_name
from podwire.embedded.apiserver.authorization.policy import AccessDecision, RolePolicy
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import UserInfo
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.errors import ApiError

Object = dict[str, Any]

MASTERS = "system:masters"
"""The group that may do everything, whatever the roles are."""
_ALLOWED = AccessDecision(True)
_PODS = "/pods"
_VOLUMES = "/persistentvolumes"
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class StoredNodeObjects:
    """Pods by node, from the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._by_node: dict[str, set[tuple[str, str]]] = {}

    def derive(self) -> None:
        """Reads all pods again."""
        self._by_node.clear()
        for entry in self._store.table(_PODS).objects.values():
            self._by_node.setdefault(entry.fields["spec.nodeName"], set()).add(entry.key)

    def observe(self, change: ObjectChange) -> None:
        """Takes a write of a pod."""
        entry, before = change.entry, change.before
        node = entry.fields["spec.nodeName"]
        if before is not None and (change.type == "DELETED" or before.fields["spec.nodeName"] != node):
            self._by_node.get(before.fields["spec.nodeName"], set()).discard(entry.key)
        if change.type != "DELETED":
            self._by_node.setdefault(node, set()).add(entry.key)

    def pods(self, node: str, namespace: str, mentioning: str) -> Iterable[Object]:
        """The pods of a node in a namespace whose text has ``mentioning`` in it."""
        text = mentioning.encode()
        for entry in self._entries(node, namespace):
            if text in entry.raw:
                yield entry.object()

    def _entries(self, node: str, namespace: str) -> Iterator[StoredObject]:
        for key in self._by_node.get(node, ()):
            entry = self._store.get(_PODS, *key) if key[0] == namespace else None
            if entry is not None:
                yield entry

    def is_on(self, node: str, namespace: str, pod: str) -> bool:
        """Whether a pod is bound to a node."""
        return (namespace, pod) in self._by_node.get(node, ())

    def claim_of(self, volume: str) -> tuple[str, str]:
        """Namespace and name of the claim that a PersistentVolume is bound to; empty for none."""
        entry = self._store.get(_VOLUMES, "", volume)
        claim = ((entry.object().get("spec") or {}).get("claimRef") or {}) if entry is not None else {}
        return claim.get("namespace", ""), claim.get("name", "")


class Authorizer:
    """Answers whether a user may do something."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.policy = RolePolicy()
        self.node_objects = StoredNodeObjects(store)
        self._nodes = NodeAuthorizer(self.node_objects)

    def start(self) -> None:
        """Reads roles, bindings and pods from the store, and follows its writes."""
        self._derive()
        self._store.on_write.append(self._observe)
        self._store.on_rollback.append(self._derive)

    def _derive(self) -> None:
        self.policy = RolePolicy()
        for table in policy.TABLES:
            for entry in self._store.table(table).objects.values():
                self.policy.put(table, entry.object())
        self.node_objects.derive()

    def _observe(self, change: ObjectChange) -> None:
        entry = change.entry
        if entry.table == _PODS:
            self.node_objects.observe(change)
        elif entry.table in policy.TABLES:
            if change.type == "DELETED":
                self.policy.remove(entry.table, *entry.key)
            else:
                self.policy.put(entry.table, entry.object())

    def decide(self, user: UserInfo, asked: RequestAttributes) -> AccessDecision:
        """Whether a user may do something, and why or why not."""
        if MASTERS in user.groups:
            return _ALLOWED
        node = node_name(user)
        by_node = self._nodes.decide(node, asked) if node else None
        if by_node is not None and by_node.allowed:
            return by_node
        by_role = self.policy.decide(user, asked)
        if by_role.allowed or by_node is None:
            return by_role
        return AccessDecision(False, "\n".join(filter(None, (by_node.reason, by_role.reason))))

    def check(self, user: UserInfo, asked: RequestAttributes) -> None:
        """Raises: ApiError 403 unless the user may do it."""
        decision = self.decide(user, asked)
        if not decision.allowed:
            raise forbidden(user, asked, decision.reason)


def forbidden(user: UserInfo, asked: RequestAttributes, reason: str = "") -> ApiError:
    """The refusal of an action, in the words of Kubernetes."""
    if asked.path:
        problem = f'User "{user.name}" cannot {asked.verb} path "{asked.path}"'
    else:
        where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        problem = (
            f'User "{user.name}" cannot {asked.verb} resource "{asked.target}" in API group "{asked.group}" {where}'
        )
    problem = problem.translate(_ESCAPES) + (f": {reason}" if reason else "")
    if asked.path:
        return ApiError(403, "Forbidden", f"forbidden: {problem}", {})
    noun = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    named = f' "{asked.name}"' if asked.name else ""
    details = {"name": asked.name, "group": asked.group, "kind": asked.resource}
    shown = {field: value for field, value in details.items() if value}
    return ApiError(403, "Forbidden", f"{noun}{named} is forbidden: {problem}", shown)
