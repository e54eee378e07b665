"""Refuses roles and bindings that grant rights which the user who writes them does not hold.

The verb ``escalate`` on a role, or ``bind`` on the role of a binding, lifts the check. An ``aggregationRule`` can
collect any right, so it needs all rights. Source: ``k8s.io/kubernetes/pkg/registry/rbac/*/policybased``.
"""

from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.authorization import policy
from podwire.embedded.apiserver.authorization.authorizer import MASTERS
from podwire.embedded.apiserver.authorization.rules import (
    FULL_AUTHORITY,
    PolicyRule,
    RequestAttributes,
    missing_rules,
    parse_rules,
    quoted_list,
)
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.kinds import KINDS

Object = dict[str, Any]

_COLLECTED = ("ownerReferences", "finalizers", "managedFields", "resourceVersion")
"""Metadata that the garbage collector changes."""


class EscalationCheck:
    """Looks at every write of a role or binding."""

    tables = policy.TABLES

    def __init__(self, context: AdmissionContext) -> None:
        self._authorizer = context.authorizer

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: ApiError 403 for a write that would grant more than its user holds; NotFound for a missing role."""
        call, table = request.call, request.table
        if request.operation == "DELETE" or MASTERS in call.user.groups:
            return
        new, old = request.obj, request.old or None
        if _same_but_collected(new, old):
            return
        if table in (policy.ROLES, policy.CLUSTER_ROLES):
            self._admit_role(call, new, old)
        else:
            self._admit_binding(call, new)

    def _admit_role(self, call: Call, new: Object, old: Object | None) -> None:
        if self._may(call, "escalate", call.kind.plural, call.name):
            return
        self._confirm(call, new, parse_rules(new.get("rules")))
        if new.get("aggregationRule") or (old or {}).get("aggregationRule"):
            held_rules = self._authorizer.policy.held(call.user, "").rules
            if missing_rules(held_rules, FULL_AUTHORITY):
                problem = "must have cluster-admin privileges to use aggregationRule"
                raise failures.forbidden(call.kind, new["metadata"].get("name", ""), problem)

    def _admit_binding(self, call: Call, new: Object) -> None:
        reference = new.get("roleRef") or {}
        kind, name = reference.get("kind") or "", reference.get("name") or ""
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}.get(kind)
        if plural is None or self._may(call, "bind", plural, name):
            return
        rules = self._authorizer.policy.role(kind, call.namespace, name)
        if rules is None:
            raise failures.not_found(KINDS[policy.GROUP, "v1", plural], name)
        self._confirm(call, new, rules)

    def _may(self, call: Call, verb: str, plural: str, name: str) -> bool:
        attributes = RequestAttributes(verb, policy.GROUP, "v1", plural, namespace=call.namespace, name=name)
        return self._authorizer.decide(call.user, attributes).allowed

    def _confirm(self, call: Call, new: Object, rules: tuple[PolicyRule, ...]) -> None:
        """Raises: ApiError 403 naming the rights that the user does not hold."""
        held_rules = self._authorizer.policy.held(call.user, call.namespace)
        missing = missing_rules(held_rules.rules, rules)
        if not missing:
            return
        user = call.user
        problem = (
            f'user "{user.name}" (groups={quoted_list(user.groups)}) is attempting to grant RBAC permissions not '
            "currently held:\n" + "\n".join(sorted(str(rule) for rule in missing))
        )
        if held_rules.problems:
            problem += f"; resolution errors: {policy.aggregated(held_rules.problems)}"
        raise failures.forbidden(call.kind, new["metadata"].get("name", ""), problem)


def _same_but_collected(new: Object, old: Object | None) -> bool:
    return old is not None and _without_collected(new) == _without_collected(old)


def _without_collected(obj: Object) -> Object:
    meta = {field: value for field, value in obj["metadata"].items() if field not in _COLLECTED}
    return {**obj, "metadata": meta}
