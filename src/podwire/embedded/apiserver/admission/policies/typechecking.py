"""Checks the expressions of policies against the schemas of their kinds, and writes warnings to the policies' status.

A policy may be for several kinds, so ``object`` has no type when a policy is written, and a wrong field name does not
refuse the policy. Each mistake that a schema shows becomes a warning in ``status.typeChecking``. At most ten kinds are
checked, and none that the rules name with ``*``. Source:
``k8s.io/apiserver/pkg/admission/plugin/policy/validating/typechecking.go``.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from podwire.embedded.apiserver.admission.policies.definitions import PolicySpec
from podwire.embedded.apiserver.admission.policies.validating import POLICIES
from podwire.embedded.apiserver.bootstrap import internal_call
from podwire.embedded.apiserver.cel import published, requests
from podwire.embedded.apiserver.cel.composition import NAME
from podwire.embedded.apiserver.cel.environment import MESSAGES
from podwire.embedded.apiserver.cel.expressions import CompileError, check
from podwire.embedded.apiserver.kinds import KINDS, Key, ResourceKind, kind_named
from podwire.embedded.apiserver.schema.data import SchemaNode
from podwire.embedded.apiserver.store import ObjectChange, Store, StoredObject
from podwire.embedded.apiserver.waits import complete
from podwire.embedded.apiserver.writes import Writer

Object = dict[str, Any]

_KIND = KINDS["admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"]
_MOST_KINDS = 10


class PolicyTypeChecker:
    """Gives every policy its status."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        kinds: Mapping[Key, ResourceKind],
        schema: Callable[[ResourceKind], SchemaNode],
    ) -> None:
        self._store = store
        self._writer = writer
        self._kinds = kinds
        self._schema = schema
        self._waiting: set[str] = set()

    def start(self) -> None:
        """Brings every policy up to date, and follows changes from then on."""
        for entry in self._store.entries(POLICIES):
            self._check(entry)
        self._store.on_change.append(self._observe)

    def _observe(self, change: ObjectChange) -> None:
        if change.entry.table == POLICIES and change.type != "DELETED":
            if not self._waiting:
                asyncio.get_running_loop().call_soon(self._run)
            self._waiting.add(change.entry.name)

    def _run(self) -> None:
        names, self._waiting = self._waiting, set()
        for name in sorted(names):
            entry = self._store.get(POLICIES, "", name)
            if entry is not None:
                self._check(entry)

    def _check(self, entry: StoredObject) -> None:
        policy = entry.object()
        generation = policy["metadata"].get("generation")
        status = policy.get("status") or {}
        if status.get("observedGeneration") == generation or policy["metadata"].get("deletionTimestamp"):
            return
        warnings = list(self.warnings(msgspec.convert(policy.get("spec") or {}, PolicySpec)))
        checked: Object = {"expressionWarnings": warnings} if warnings else {}
        policy["status"] = {**status, "observedGeneration": generation, "typeChecking": checked}
        complete(self._writer.replace(internal_call(_KIND, "", entry.name, "status"), policy, entry))

    def warnings(self, spec: PolicySpec) -> Iterator[Object]:
        """The warnings about the validations of a policy, with ``fieldRef`` and ``warning``."""
        kinds = self._kinds_of(spec)
        types = [self._types(spec, kind) for kind in kinds]
        for index, validation in enumerate(spec.validations):
            for field in ("expression", "messageExpression"):
                problems = [
                    f"{kind.group}/{kind.version}, Kind={kind.kind}: {problem}\n"
                    for kind, kind_types in zip(kinds, types, strict=True)
                    if (problem := _problem(str(validation.get(field) or ""), kind_types))
                ]
                if problems:
                    yield {"fieldRef": f"spec.validations[{index}].{field}", "warning": "\n".join(problems)}

    def _kinds_of(self, spec: PolicySpec) -> list[ResourceKind]:
        """The kinds that the rules name, by group, version and kind."""
        kinds = []
        for rule in spec.match_constraints.resource_rules:
            if "*" in rule.api_groups or "*" in rule.api_versions:
                continue
            for group in sorted(rule.api_groups):
                for version in sorted(rule.api_versions):
                    keys = [(group, version, plural) for plural in sorted(rule.resources)]
                    kinds += [self._kinds[key] for key in keys if key in self._kinds]
        chosen = list(dict.fromkeys(kinds))[:_MOST_KINDS]
        return sorted(chosen, key=lambda kind: (kind.group, kind.version, kind.kind))

    def _types(self, spec: PolicySpec, kind: ResourceKind) -> dict[str, str]:
        """The types of all variables for objects of a kind."""
        params = spec.param_kind is not None
        whole = published.type_of(self._schema(kind), kind.kind)
        types = {**requests.variables(params=params), "object": whole, "oldObject": whole}
        if spec.param_kind is not None:
            resolved = kind_named(spec.param_kind.api_version, spec.param_kind.kind, self._kinds)
            if resolved is not None:
                types["params"] = published.type_of(self._schema(resolved), resolved.kind)
        defined: dict[str, str] = {}
        for variable in spec.variables:
            try:
                result = check(str(variable["expression"]), types)
            except CompileError:
                result = "dyn"
            defined[str(variable["name"])] = "dyn" if result.startswith("optional(") else result
            types[NAME] = MESSAGES.declare(NAME, defined)
        return types


def _problem(source: str, types: Mapping[str, str]) -> str:
    if source:
        try:
            check(source, types)
        except CompileError as failure:
            return str(failure)
    return ""
