"""Finds the policies, bindings and parameters that apply to a request.

A policy without a binding applies to no request. A request that no policy covers costs one look-up: the policies whose
rules cover a kind, subresource and operation are cached until a policy, a binding or a definition changes. Source:
``k8s.io/apiserver/pkg/admission/plugin/policy/generic``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.matching import covered_kind, equivalents, is_exempt, selects
from podwire.embedded.apiserver.admission.policies.definitions import (
    BindingSpec,
    BoundPolicy,
    MatchResources,
    Object,
    ParamKind,
    ParamRef,
    PolicyBinding,
    PolicySpec,
)
from podwire.embedded.apiserver.kinds import ResourceKind, kind_named
from podwire.embedded.apiserver.store import ObjectChange
from podwire.embedded.apiserver.waits import Waits
from podwire.errors import ApiError, PodwireError
from podwire.model.selector import LabelSelector

_DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"


class Misconfigured(PodwireError):
    """The parameters of a binding cannot be found."""


class Invocation(NamedTuple):
    """A policy that applies to a request through a binding, with one parameter object."""

    policy: BoundPolicy
    binding: PolicyBinding
    kind: ResourceKind
    """The kind in whose version the policy wants the objects."""
    param: Object | None
    problem: str = ""
    """Why the policy cannot be evaluated; empty when it can."""


class PolicyHooks:
    """The policies of one table, with the bindings of another one."""

    def __init__(self, context: AdmissionContext, policies: str, bindings: str) -> None:
        self._store = context.store
        self._kinds = context.kinds
        self._view = context.view
        self._tables = (policies, bindings)
        self._policies: tuple[BoundPolicy, ...] | None = None
        self._candidates: dict[tuple[str, str, str, str, bool], tuple[BoundPolicy, ...]] = {}
        context.store.on_write.append(self._observe)
        context.store.on_rollback.append(self._forget)

    def _observe(self, change: ObjectChange) -> None:
        if change.entry.table in self._tables:
            self._forget()
        elif change.entry.table == _DEFINITIONS:
            self._candidates.clear()

    def _forget(self) -> None:
        self._policies = None
        self._candidates.clear()

    def _bound(self) -> tuple[BoundPolicy, ...]:
        """All policies with a binding, by name."""
        bindings: dict[str, list[PolicyBinding]] = {}
        for entry in self._store.entries(self._tables[1]):
            spec = msgspec.convert(entry.object().get("spec") or {}, BindingSpec)
            bindings.setdefault(spec.policy_name, []).append(PolicyBinding(entry.name, spec))
        return tuple(
            BoundPolicy(entry.name, entry.version, msgspec.convert(entry.object().get("spec") or {}, PolicySpec),
                   tuple(bindings[entry.name]))
            for entry in self._store.entries(self._tables[0])
            if entry.name in bindings
        )  # fmt: skip

    def candidates(self, request: AdmissionRequest) -> tuple[BoundPolicy, ...]:
        """The policies whose rules have the kind and the operation of a request."""
        if self._policies is None:
            self._policies = self._bound()
        call = request.call
        if not self._policies or call.internal or is_exempt(call.kind):
            return ()
        kind = call.kind
        namespaced = bool(call.namespace) and kind.namespaced
        key = (kind.table, kind.version, call.subresource, request.operation, namespaced)
        known_candidates = self._candidates.get(key)
        if known_candidates is None:
            known_candidates = self._candidates[key] = tuple(
                policy for policy in self._policies if self._may_cover(policy, request, namespaced=namespaced)
            )
        return known_candidates

    def _may_cover(self, policy: BoundPolicy, request: AdmissionRequest, *, namespaced: bool) -> bool:
        match, call = policy.spec.match_constraints, request.call
        return any(
            rule.covers(kind, call.subresource, request.operation, namespaced=namespaced)
            for kind in equivalents(match.match_policy, call.kind, self._kinds)
            for rule in match.resource_rules
        )

    def invocations(self, policies: tuple[BoundPolicy, ...], request: AdmissionRequest) -> Waits[list[Invocation]]:
        """The invocations for the request, policy by policy, binding by binding."""
        met = []
        for policy in policies:
            kind = self._matched(policy.spec.match_constraints, request)
            for binding in policy.bindings if kind is not None else ():
                resources = binding.spec.match_resources
                if kind is None or (resources is not None and self._matched(resources, request) is None):
                    continue
                try:
                    params = yield from self._params(policy.spec.param_kind, binding.spec.param_ref, request)
                except Misconfigured as failure:
                    met.append(Invocation(policy, binding, kind, None, f"failed to configure binding: {failure!s}"))
                    continue
                met += [Invocation(policy, binding, kind, param) for param in params]
        return met

    def _matched(self, match: MatchResources, request: AdmissionRequest) -> ResourceKind | None:
        if not selects(match, request, self._store):
            return None
        if covered_kind(match.exclude_resource_rules, match.match_policy, request, self._kinds) is not None:
            return None
        if not match.resource_rules:
            return request.call.kind
        return covered_kind(match.resource_rules, match.match_policy, request, self._kinds)

    def _params(
        self, param_kind: ParamKind | None, ref: ParamRef | None, request: AdmissionRequest
    ) -> Waits[Sequence[Object | None]]:
        if param_kind is None or ref is None:
            return [None]
        kind = kind_named(param_kind.api_version, param_kind.kind, self._kinds)
        if kind is None:
            raise Misconfigured(f"paramKind kind `{param_kind}` not known")
        namespace = ""
        if kind.namespaced:
            namespace = ref.namespace or request.call.namespace
            if not namespace:
                raise Misconfigured(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                )
        elif ref.namespace:
            raise Misconfigured("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        parameters = yield from self._selected(kind, namespace, ref)
        if not parameters and ref.parameter_not_found_action == "Deny":
            raise Misconfigured("no params found for policy binding with `Deny` parameterNotFoundAction")
        return parameters

    def _selected(self, kind: ResourceKind, namespace: str, ref: ParamRef) -> Waits[list[Object]]:
        """The parameters, in the version of ``kind``."""
        if ref.name:
            entry = self._store.get(kind.table, namespace, ref.name)
            entries = [entry] if entry is not None else []
        else:
            selector = (ref.selector or LabelSelector()).requirements()
            entries = [
                entry for entry in self._store.entries(kind.table)
                if entry.namespace == namespace and selector.matches(entry.labels)
            ]  # fmt: skip
        matching_entries = []
        for entry in entries:
            try:
                matching_entries.append((yield from self._view(kind, entry)))
            except ApiError as failure:
                raise Misconfigured(f"failed to convert params: {failure.message}") from failure
        return matching_entries
