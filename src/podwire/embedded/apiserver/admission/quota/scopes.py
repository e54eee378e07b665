"""Which objects a ResourceQuota counts: ``scopes`` and ``scopeSelector``.

Source: ``k8s.io/kubernetes/pkg/quota/v1/evaluator/core`` (``podMatchesScopeFunc``, ``pvcMatchesScopeFunc``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from podwire.embedded.apiserver.admission.quota.usage import CLAIMS, PODS

Object = Mapping[str, Any]


def is_in_scope(spec: Object, table: str, obj: Object) -> bool:
    """Whether all scopes of a quota's spec select the object; a quota without scopes selects everything."""
    return all(_selects(term, table, obj) for term in _terms(spec))


def _terms(spec: Object) -> Iterator[Object]:
    for scope in spec.get("scopes") or ():
        yield {"scopeName": scope, "operator": "Exists"}
    yield from (spec.get("scopeSelector") or {}).get("matchExpressions") or ()


def _selects(term: Object, table: str, obj: Object) -> bool:
    scope, spec = term.get("scopeName"), obj.get("spec") or {}
    if table == CLAIMS:
        return scope == "VolumeAttributesClass" and _matches(term, spec.get("volumeAttributesClassName") or "")
    if table != PODS:
        return False
    match scope:
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return _best_effort(obj)
        case "NotBestEffort":
            return not _best_effort(obj)
        case "PriorityClass":
            return _matches(term, spec.get("priorityClassName") or "")
        case "CrossNamespacePodAffinity":
            return _crosses_namespaces(spec)
    return False


def _matches(term: Object, name: str) -> bool:
    """Whether the operator of a term selects an object whose class is ``name``; empty for none."""
    values: Sequence[str] = term.get("values") or ()
    match term.get("operator"):
        case "In":
            return name in values
        case "NotIn":
            return name not in values
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
    return False


def _best_effort(pod: Object) -> bool:
    return (pod.get("status") or {}).get("qosClass") == "BestEffort"


def _crosses_namespaces(spec: Object) -> bool:
    """Whether a rule of affinity names other namespaces."""
    for field in ("podAffinity", "podAntiAffinity"):
        rules = (spec.get("affinity") or {}).get(field) or {}
        terms = list(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        for weighted in rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            terms.append(weighted.get("podAffinityTerm") or {})
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False
