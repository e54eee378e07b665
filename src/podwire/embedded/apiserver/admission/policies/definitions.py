"""Policies and bindings, parsed from their objects.

Both kinds of policies, validating and mutating, are bound to requests in the same way.
"""

from typing import Any

from podwire.embedded.apiserver.admission.matching import ConfigurationModel, ResourceRule
from podwire.model.selector import LabelSelector

Object = dict[str, Any]


class MatchResources(ConfigurationModel, frozen=True):
    """Which requests a policy or a binding is for."""

    resource_rules: tuple[ResourceRule, ...] = ()
    exclude_resource_rules: tuple[ResourceRule, ...] = ()
    match_policy: str = "Equivalent"
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()


class ParamKind(ConfigurationModel, frozen=True):
    """The kind of the parameters."""

    api_version: str = ""
    kind: str = ""

    def __str__(self) -> str:
        return f"&ParamKind{{APIVersion:{self.api_version},Kind:{self.kind},}}"


class ParamRef(ConfigurationModel, frozen=True):
    """Which objects are parameters."""

    name: str = ""
    namespace: str = ""
    selector: LabelSelector | None = None
    parameter_not_found_action: str = "Deny"


class PolicySpec(ConfigurationModel, frozen=True):
    """The spec of a policy of either kind; expressions are as they were written."""

    match_constraints: MatchResources = MatchResources()
    param_kind: ParamKind | None = None
    failure_policy: str = "Fail"
    match_conditions: tuple[Object, ...] = ()
    variables: tuple[Object, ...] = ()
    validations: tuple[Object, ...] = ()
    audit_annotations: tuple[Object, ...] = ()
    mutations: tuple[Object, ...] = ()
    reinvocation_policy: str = "Never"


class BindingSpec(ConfigurationModel, frozen=True):
    """The spec of a binding of either kind."""

    policy_name: str = ""
    param_ref: ParamRef | None = None
    match_resources: MatchResources | None = None
    validation_actions: tuple[str, ...] = ()


class PolicyBinding(ConfigurationModel, frozen=True):
    """A binding and its name."""

    name: str
    spec: BindingSpec


class BoundPolicy(ConfigurationModel, frozen=True):
    """A policy with its bindings; ``version`` is the resourceVersion of the policy."""

    name: str
    version: int
    spec: PolicySpec
    bindings: tuple[PolicyBinding, ...]
