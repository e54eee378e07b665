"""Roles and bindings, indexed by the users and groups that they grant rights to.

A decision looks only at the bindings of the user and of its groups. The rules of a user in a namespace are cached, and
so is each action that a rule without resource names has allowed. A change of any role or binding clears both caches.
Source: ``k8s.io/kubernetes/pkg/registry/rbac/validation/rule.go``.

Cost: a few lookups for an action that was allowed before; about 1 microsecond a rule for any other.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from podwire.embedded.apiserver.authorization.rules import PolicyRule, RequestAttributes, parse_rules
from podwire.embedded.apiserver.calls import UserInfo

GROUP = "rbac.authorization.k8s.io"
ROLES = f"{GROUP}/roles"
CLUSTER_ROLES = f"{GROUP}/clusterroles"
ROLE_BINDINGS = f"{GROUP}/rolebindings"
CLUSTER_ROLE_BINDINGS = f"{GROUP}/clusterrolebindings"
TABLES = frozenset({ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS})
"""Names of the store's tables that hold roles and bindings."""

_REMEMBERED = 10_000

Key = tuple[str, str]
"""Namespace and name; the namespace is empty for ClusterRoles and ClusterRoleBindings."""


class AccessDecision(msgspec.Struct, frozen=True):
    """Whether an action is allowed, and why."""

    allowed: bool
    reason: str = ""


class RoleSubject(msgspec.Struct, frozen=True):
    """A user, group or ServiceAccount that a binding grants its role to."""

    kind: str = ""
    name: str = ""
    namespace: str = ""

    def identity(self, namespace: str) -> tuple[str, str]:
        """Kind and name under which the binding is indexed; ``namespace`` is that of the binding."""
        if self.kind != "ServiceAccount":
            return self.kind, self.name
        return "User", f"system:serviceaccount:{self.namespace or namespace}:{self.name}"

    def shown(self, namespace: str) -> str:
        """The subject as Kubernetes names it in a reason."""
        if self.kind != "ServiceAccount":
            return f'{self.kind} "{self.name}"'
        return f'{self.kind} "{self.name}/{self.namespace or namespace}"'


class RoleReference(msgspec.Struct, frozen=True):
    """The role of a binding."""

    kind: str = ""
    name: str = ""


class RoleBinding(msgspec.Struct, frozen=True):
    """A RoleBinding, or a ClusterRoleBinding without a namespace."""

    namespace: str
    name: str
    role: RoleReference
    subjects: tuple[RoleSubject, ...] = ()

    @property
    def role_key(self) -> Key:
        """The role's namespace and name."""
        return (self.namespace if self.role.kind == "Role" else "", self.role.name)

    def shown(self, subject: RoleSubject) -> str:
        """How the binding grants its role to one of its subjects."""
        kind = "RoleBinding" if self.namespace else "ClusterRoleBinding"
        name = f"{self.name}/{self.namespace}" if self.namespace else self.name
        return f'{kind} "{name}" of {self.role.kind} "{self.role.name}" to {subject.shown(self.namespace)}'


class RoleGrant(msgspec.Struct, frozen=True):
    """One rule with the binding and the subject by which a user holds it."""

    rule: PolicyRule
    binding: RoleBinding
    subject: RoleSubject


class HeldRules(msgspec.Struct, frozen=True):
    """The rules of a user in a namespace, and the problems of bindings whose roles do not exist."""

    grants: tuple[RoleGrant, ...]
    problems: tuple[str, ...]

    @property
    def rules(self) -> tuple[PolicyRule, ...]:
        """The rules without their bindings."""
        return tuple(grant.rule for grant in self.grants)


class RolePolicy:
    """All roles and bindings, and the decisions that follow from them."""

    def __init__(self) -> None:
        self._roles: dict[Key, tuple[PolicyRule, ...]] = {}
        self._bindings: dict[Key, RoleBinding] = {}
        self._by_subject: dict[tuple[str, str], set[Key]] = {}
        self._held: dict[tuple[str, tuple[str, ...], str], HeldRules] = {}
        self._allowed: dict[tuple[object, ...], AccessDecision] = {}

    def put(self, table: str, obj: dict[str, Any]) -> None:
        """Takes a role or binding as stored."""
        self.remove(table, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        if table in (ROLES, CLUSTER_ROLES):
            self._roles[key] = parse_rules(obj.get("rules"))
            return
        subjects = msgspec.convert(obj.get("subjects") or (), tuple[RoleSubject, ...])
        binding = RoleBinding(*key, msgspec.convert(obj.get("roleRef") or {}, RoleReference), subjects)
        self._bindings[key] = binding
        for subject in subjects:
            self._by_subject.setdefault(subject.identity(key[0]), set()).add(key)

    def remove(self, table: str, namespace: str, name: str) -> None:
        """Forgets a role or binding."""
        self._held.clear()
        self._allowed.clear()
        key = (namespace, name)
        if table in (ROLES, CLUSTER_ROLES):
            self._roles.pop(key, None)
            return
        binding = self._bindings.pop(key, None)
        for subject in binding.subjects if binding is not None else ():
            keys = self._by_subject.get(subject.identity(namespace), set())
            keys.discard(key)
            if not keys:
                self._by_subject.pop(subject.identity(namespace), None)

    def role(self, kind: str, namespace: str, name: str) -> tuple[PolicyRule, ...] | None:
        """The rules of a role, None when there is none."""
        return self._roles.get((namespace if kind == "Role" else "", name))

    def held(self, user: UserInfo, namespace: str) -> HeldRules:
        """The rules of a user in a namespace; with an empty namespace, in the whole cluster."""
        key = (user.name, user.groups, namespace)
        held_rules = self._held.get(key)
        if held_rules is None:
            if len(self._held) >= _REMEMBERED:
                self._held.clear()
            held_rules = self._held[key] = self._collect(user, namespace)
        return held_rules

    def _collect(self, user: UserInfo, namespace: str) -> HeldRules:
        identities = (("User", user.name), *(("Group", group) for group in user.groups))
        keys = {key for identity in identities for key in self._by_subject.get(identity, ())}
        grants: list[RoleGrant] = []
        problems: list[str] = []
        for key in sorted(key for key in keys if key[0] in ("", namespace)):
            binding = self._bindings[key]
            rules = self._roles.get(binding.role_key)
            if rules is None:
                problems.append(f'{binding.role.kind.lower()}.{GROUP} "{binding.role.name}" not found')
                continue
            subject = next(s for s in binding.subjects if s.identity(key[0]) in identities)
            grants += (RoleGrant(rule, binding, subject) for rule in rules)
        return HeldRules(tuple(grants), tuple(dict.fromkeys(problems)))

    def decide(self, user: UserInfo, asked: RequestAttributes) -> AccessDecision:
        """Whether a role allows an action, with the binding as the reason."""
        key = (user.name, user.groups, asked.verb, asked.group, asked.resource, asked.subresource, asked.namespace)
        known = self._allowed.get(key) if not asked.path else None
        if known is not None:
            return known
        held_rules = self.held(user, asked.namespace)
        grant = _first(held_rules.grants, asked)
        if grant is None:
            return AccessDecision(False, f"RBAC: {aggregated(held_rules.problems)}" if held_rules.problems else "")
        decision = AccessDecision(True, f"RBAC: allowed by {grant.binding.shown(grant.subject)}")
        if not asked.path and not grant.rule.resource_names:
            if len(self._allowed) >= _REMEMBERED:
                self._allowed.clear()
            self._allowed[key] = decision
        return decision


def _first(grants: Iterable[RoleGrant], asked: RequestAttributes) -> RoleGrant | None:
    return next((grant for grant in grants if grant.rule.allows(asked)), None)


def aggregated(problems: tuple[str, ...]) -> str:
    """Several problems as Kubernetes joins them."""
    return problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"
