"""Holds pods to the Pod Security policy of their namespace.

- A pod that violates the enforced level is refused. A pod that violates the level of ``warn`` is stored, and the client
  gets a warning. One that violates the level of ``audit`` is named in the audit event of the request.
- A workload with a pod template is never refused; the client gets a warning, and the audit event an annotation.
- A namespace with wrong labels is refused. When its labels become stricter, the client gets a warning that names the
  pods that violate them; the pods go on running.

Source: ``k8s.io/pod-security-admission/admission``.
"""

from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.podsecurity.evaluate import describe, violations
from podwire.embedded.apiserver.admission.podsecurity.labels import LevelVersion, PodSecurityPolicy, parse_policy

Object = dict[str, Any]

_TEMPLATES: dict[str, tuple[str, ...]] = {
    "/podtemplates": ("template",),
    "/replicationcontrollers": ("spec", "template"),
    "apps/daemonsets": ("spec", "template"),
    "apps/deployments": ("spec", "template"),
    "apps/replicasets": ("spec", "template"),
    "apps/statefulsets": ("spec", "template"),
    "batch/cronjobs": ("spec", "jobTemplate", "spec", "template"),
    "batch/jobs": ("spec", "template"),
}
"""Where the workloads of each table have their pod template."""

_PODS, _NAMESPACES = "/pods", "/namespaces"
ENFORCED = "pod-security.kubernetes.io/enforce-policy"
VIOLATIONS = "pod-security.kubernetes.io/audit-violations"
"""Annotations of audit events: the enforced level of a pod, and what violates the level of ``audit``."""
_WITHOUT_SPEC = ("binding", "eviction", "status")
_MOST_PODS = 3000


class PodSecurityAdmission:
    """Reads the labels of namespaces."""

    tables = frozenset({_PODS, _NAMESPACES, *_TEMPLATES})

    def __init__(self, context: AdmissionContext) -> None:
        self._store = context.store

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: Forbidden for a pod that violates the enforced level, Invalid for a namespace with wrong labels."""
        if request.operation not in ("CREATE", "UPDATE"):
            return
        if request.table == _PODS:
            self._check_pod(request)
        elif request.table in _TEMPLATES and not request.call.subresource:
            self._check_template(request)
        elif request.table == _NAMESPACES and not request.call.subresource:
            self._check_namespace(request)

    def _policy(self, namespace: str) -> PodSecurityPolicy:
        entry = self._store.get(_NAMESPACES, "", namespace)
        return parse_policy(entry.labels if entry is not None else {})[0]

    def _check_pod(self, request: AdmissionRequest) -> None:
        if request.call.subresource in _WITHOUT_SPEC:
            return
        policy = self._policy(request.call.namespace)
        if policy.privileged or (request.operation == "UPDATE" and not _changes_images(request.obj, request.old)):
            return
        request.call.annotate(ENFORCED, str(policy.enforce))
        _audit(request, policy.audit, request.obj)
        broken = violations(policy.enforce, request.obj)
        if broken:
            problem = f'violates PodSecurity "{policy.enforce}": {describe(broken)}'
            raise failures.forbidden(request.call.kind, request.name, problem)
        _warn(request, policy.warn, request.obj)

    def _check_template(self, request: AdmissionRequest) -> None:
        policy = self._policy(request.call.namespace)
        template: Any = request.obj
        for field in _TEMPLATES[request.table]:
            template = (template or {}).get(field)
        if policy.privileged or not template or not template.get("spec"):
            return
        _audit(request, policy.audit, template)
        _warn(request, policy.warn, template)

    def _check_namespace(self, request: AdmissionRequest) -> None:
        new, invalid_fields = parse_policy(request.obj["metadata"].get("labels") or {})
        old, wrong_before = parse_policy((request.old.get("metadata") or {}).get("labels") or {})
        if invalid_fields and (request.creates or invalid_fields != wrong_before):
            raise failures.invalid(request.call.kind, request.name, invalid_fields)
        relaxed = new.enforce.minor == old.enforce.minor and new.enforce.strictness <= old.enforce.strictness
        if not request.creates and new.enforce.level != "privileged" and not relaxed:
            request.call.warnings += self._existing(request.name, new.enforce)

    def _existing(self, namespace: str, level: LevelVersion) -> list[str]:
        """The warnings about the pods of a namespace that violate its new level."""
        entries = self._store.entries(_PODS, namespace)
        pods: dict[str, list[str]] = {}
        for entry in entries[:_MOST_PODS]:
            reasons = ", ".join(violation.reason for violation in violations(level, entry.object()))
            if reasons:
                pods.setdefault(reasons, []).append(entry.name)
        warnings = []
        if len(entries) > _MOST_PODS:
            warnings.append(
                f"new PodSecurity enforce level only checked against the first {_MOST_PODS} of {len(entries)} "
                "existing pods"
            )
        if pods:
            text = f'existing pods in namespace "{namespace}" violate the new PodSecurity enforce level "{level}"'
            warnings.append(text)
        return warnings + sorted(_first(names) + reasons for reasons, names in pods.items())


def _first(pods: list[str]) -> str:
    """``a: ``, ``a (and 1 other pod): ``, ``a (and 2 other pods): ``."""
    other_pods = len(pods) - 1
    more = f" (and {other_pods} other pod{'s' if other_pods > 1 else ''})" if other_pods else ""
    return f"{min(pods)}{more}: "


def _warn(request: AdmissionRequest, level: LevelVersion, pod: Object) -> None:
    if text := _violated(level, pod):
        request.call.warnings.append(text)


def _audit(request: AdmissionRequest, level: LevelVersion, pod: Object) -> None:
    if text := _violated(level, pod):
        request.call.annotate(VIOLATIONS, text)


def _violated(level: LevelVersion, pod: Object) -> str:
    """What a pod violates of a level that is not enforced; empty for nothing."""
    broken = violations(level, pod)
    return f'would violate PodSecurity "{level}": {describe(broken)}' if broken else ""


def _changes_images(new: Object, old: Object) -> bool:
    """Whether an update adds, removes or changes the image of a container; nothing else that matters can change."""
    fields = ("containers", "initContainers", "ephemeralContainers")

    def images(pod: Object) -> list[list[tuple[str, str]]]:
        return [[(c["name"], c.get("image", "")) for c in pod["spec"].get(field) or ()] for field in fields]

    return images(new) != images(old)
